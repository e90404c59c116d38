package vitest

func needsCut(h Harness) string {
	if h.Faults.Cut == nil {
		return "the harness can't cut the transport"
	}
	return ""
}

func needsCorrupt(h Harness) string {
	if h.Faults.Corrupt == nil {
		return "the harness can't corrupt messages"
	}
	return ""
}

// families is the checklist. [VIA 8.3]
var families = []family{
	{name: "Create", run: testCreate, lossy: true},
	{name: "States", run: testStates, lossy: true},
	{name: "CloseSequence", run: testCloseSequence},
	{name: "Reuse", run: testReuse},
	{name: "LateDelivery", run: testLateDelivery},
	{name: "CloseNIC", run: testCloseNIC, lossy: true},
	{name: "ClientServer", run: testClientServer},
	{name: "Matching", run: testMatching, once: true},
	{name: "ConnectFailures", run: testConnectFailures},
	{name: "Waits", run: testWaits, once: true},
	{name: "Mismatch", run: testMismatch, lossy: true},
	{name: "ConnectAbort", run: testConnectAbort, lossy: true},
	{name: "ManyConnections", run: testManyConnections},
	{name: "Peer", run: testPeer},
	{name: "ErrorMatrix", run: testErrorMatrix},
	{name: "CorruptUnreliable", run: testCorruptUnreliable, skipped: needsCorrupt},
	{name: "ErrorOrder", run: testErrorOrder},
	{name: "RemoteDisconnect", run: testRemoteDisconnect, lossy: true},
	{name: "Cut", run: testCut, skipped: needsCut, lossy: true},
}

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

// families lists the families of tests. [VIA 8.3]
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
	{name: "Sizes", run: testSizes},
	{name: "Segments", run: testSegments},
	{name: "Immediate", run: testImmediate},
	{name: "Descriptor", run: testDescriptor},
	{name: "Reception", run: testReception},
	{name: "PostingNeverBlocks", run: testPostingNeverBlocks},
	{name: "Read", run: testRead, read: true},
	{name: "ReadOrder", run: testReadOrder, read: true},
	{name: "FlowControl", run: testFlowControl, flow: true},
	{name: "DoneWait", run: testDoneWait},
	{name: "DoneBesideWait", run: testDoneBesideWait},
	{name: "Notify", run: testNotify},
	{name: "CQ", run: testCQ},
	{name: "CQBusy", run: testCQBusy},
	{name: "Overrun", run: testOverrun, lossy: true},
	{name: "Edges", run: testEdges},
	{name: "Protection", run: testProtection},
	{name: "AttributeChange", run: testAttributeChange},
	{name: "Registration", run: testRegistration},
	{name: "Deregister", run: testDeregister},
	{name: "Traffic", run: testTraffic},
	{name: "Unreliable", run: testUnreliable, lossy: true},
	{name: "Threads", run: testThreads, lossy: true},
	{name: "ErrorHandler", run: testErrorHandler, once: true},
	{name: "TeardownInHandler", run: testTeardownInHandler, lossy: true},
	{name: "Limits", run: testLimits, once: true},
	{name: "NIC", run: testNIC, lossy: true},
	{name: "Names", run: testNames, once: true},
	{name: "ErrorMatrix", run: testErrorMatrix},
	{name: "CorruptUnreliable", run: testCorruptUnreliable, skipped: needsCorrupt},
	{name: "ErrorOrder", run: testErrorOrder},
	{name: "NothingAfterError", run: testNothingAfterError},
	{name: "RemoteDisconnect", run: testRemoteDisconnect, lossy: true},
	{name: "Cut", run: testCut, skipped: needsCut, lossy: true},
}

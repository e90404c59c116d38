package conform

import "viaduct/internal/wire/ib"

// roceOpcodes tests the order of opcodes.
var roceOpcodes = []Case{
	invalidAfter("middle-first", "ROCE-RESP-7", "a Middle without First is refused", nil,
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendMiddle, pattern(e.mtu))} }),
	invalidAfter("last-first", "ROCE-RESP-7", "a Last without First is refused", nil,
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendLast, pattern(8))} }),
	invalidAfter("only-inside", "ROCE-RESP-7", "an Only inside a message is refused",
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendFirst, pattern(e.mtu))} },
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendOnly, pattern(8))} }),
	invalidAfter("kinds-mixed", "ROCE-RESP-7", "an RDMA Write Last that follows a Send First is refused",
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendFirst, pattern(e.mtu))} },
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.WriteLast, pattern(8))} }),
	ignored("opcode-unassigned", "ROCE-OP-3", "an opcode that is not assigned is dropped",
		func(_ *roceEnd, b []byte) { b[0] = 0x1f }),
	ignored("opcode-transport", "ROCE-OP-3", "an opcode of another transport is dropped",
		func(_ *roceEnd, b []byte) { b[0] = byte(ib.SendOnly.On(ib.UC)) }),
}

// roceFields tests the other fields of a packet.
var roceFields = []Case{
	ignored("version", "ROCE-BTH-2", "another transport version is dropped", func(_ *roceEnd, b []byte) { b[1] |= 1 }),
	ignored("partition", "ROCE-BTH-4", "another partition is dropped",
		func(_ *roceEnd, b []byte) { b[2], b[3] = 0x80, 0x01 }),
	ignored("no-queue-pair", "ROCE-NET-5", "a packet for a queue pair that is not there is dropped",
		func(_ *roceEnd, b []byte) { b[5] ^= 0x40; b[6] ^= 0x5a }),
	{Name: "roce/partition-limited", Rows: list("ROCE-BTH-4"), Text: "a limited member of the partition is taken",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			p.PKey = 0x7fff
			e.sendNext(p)
			e.acked("ROCE-BTH-4", "a Send of a limited member")
		}},
	{Name: "roce/reserved-bits", Rows: list("ROCE-BTH-6"), Text: "reserved bits are not looked at",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			b := p.Append(nil)
			b[8] |= 0x7f
			e.raw(b)
			e.psn, e.msn = e.psn.Add(1), e.msn+1
			e.acked("ROCE-BTH-6", "a Send with reserved bits")
		}},
	{Name: "roce/icrc", Rows: list("ROCE-ICRC-3"), Text: "a packet whose invariant CRC is wrong is dropped",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(16))
			flow := ib.Flow{Source: e.from(), Destination: e.to()}
			b := flow.Seal(p.Append(nil))
			b[ib.BTHLen] ^= 1
			e.sealed(b)
			e.silent("ROCE-ICRC-3", "a packet with a wrong CRC")
			e.alive("ROCE-ICRC-3", "one with a wrong CRC")
		}},
}

// roceLengths tests the lengths of payloads and messages.
var roceLengths = []Case{
	{Name: "roce/empty-send", Rows: list("ROCE-RESP-8"), Text: "a Send of no bytes is a message",
		run: func(t *T) {
			e := t.startRoCE()
			e.sendNext(e.request(ib.SendOnly, nil))
			e.acked("ROCE-RESP-8", "a Send of no bytes")
		}},
	invalidAfter("first-short", "ROCE-RESP-8", "a First with less than the MTU is refused", nil,
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendFirst, pattern(e.mtu/2))} }),
	invalidAfter("last-empty", "ROCE-RESP-8", "a Last without payload is refused",
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendFirst, pattern(e.mtu))} },
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendLast, nil)} }),
	invalidAfter("only-long", "ROCE-RESP-8", "an Only with more than the MTU is refused", nil,
		func(e *roceEnd) []ib.Packet { return []ib.Packet{e.request(ib.SendOnly, pattern(e.mtu+4))} }),
	{Name: "roce/too-long", Rows: list("ROCE-RESP-12"), Text: "a Send that is longer than its receive is refused",
		run: func(t *T) {
			e := t.startRoCE()
			n := e.peer.receives.len
			if e.peer.receives.count == 0 {
				t.hidden("the peer does not announce how long its receives are")
			}
			op := ib.SendFirst
			for sent := 0; sent <= n; sent += e.mtu {
				p := e.request(op, pattern(e.mtu))
				if sent+e.mtu > n { // this packet must be refused
					if p.Opcode = ib.SendLast; op == ib.SendFirst {
						p.Opcode = ib.SendOnly
					}
					p.AckReq = true
					e.send(p)
					break
				}
				e.sendNext(p)
				op = ib.SendMiddle
			}
			e.refused("ROCE-RESP-12", "a message that is too long", e.psn, ib.NAKInvalidRequest)
		}},
}

package conform

import (
	"bytes"
	"math/rand/v2"
	"slices"

	"viaduct/internal/wire/ib"
)

// A queue pair is tested as a responder in both roles. The roles only determine who dials to
// exchange queue pairs.
var (
	rocePassive = roceRole(Passive)
	roceActive  = roceRole(Active)
)

func roceRole(role Role) (cs []Case) {
	for _, c := range slices.Concat(roceNumbers, roceOpcodes, roceFields, roceLengths, roceMemoryCases, roceReads, roceAtomics, roceDatagrams) {
		c.Proto, c.Role = "roce", role
		cs = append(cs, c)
	}
	return cs
}

// roceNumbers tests packet sequence numbers and acknowledgements.
var roceNumbers = []Case{
	{Name: "roce/send", Rows: list("ROCE-RESP-14", "ROCE-RESP-13", "ROCE-OP-5", "ROCE-BTH-1", "ROCE-ICRC-1"), Text: "a Send of one packet is acknowledged by its number, with the count of messages",
		run: func(t *T) {
			e := t.startRoCE()
			for range 3 {
				e.sendNext(e.request(ib.SendOnly, pattern(100)))
				e.acked("ROCE-RESP-14", "a Send")
			}
		}},
	{Name: "roce/long-send", Rows: list("ROCE-RESP-1", "ROCE-OP-12", "ROCE-RESP-14"), Text: "a Send of three packets is acknowledged by the number of the last, and counts as one message",
		run: func(t *T) {
			e := t.startRoCE()
			e.sendNext(e.request(ib.SendFirst, pattern(e.mtu)), e.request(ib.SendMiddle, pattern(e.mtu)), e.request(ib.SendLast, pattern(99)))
			e.acked("ROCE-RESP-1", "a Send of three packets")
		}},
	{Name: "roce/number-wrap", Rows: list("ROCE-BTH-5", "ROCE-RESP-1"), Text: "number 0 follows number 0xffffff",
		run: func(t *T) {
			e := t.roce(0xfffffe)
			for range 4 {
				e.sendNext(e.request(ib.SendOnly, pattern(8)))
				e.acked("ROCE-BTH-5", "a Send around number 0")
			}
		}},
	{Name: "roce/ahead", Rows: list("ROCE-RESP-2", "ROCE-OP-13"), Text: "a packet ahead of the expected one is answered with a sequence NAK of the expected number, and executed when it comes in order",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			p.PSN = e.psn.Add(1)
			e.send(p)
			e.refused("ROCE-RESP-2", "a packet that is one ahead", e.psn, ib.NAKSequence)
			e.sendNext(e.request(ib.SendOnly, pattern(8)), e.request(ib.SendOnly, pattern(8)))
			e.acked("ROCE-RESP-2", "the packets in order")
		}},
	{Name: "roce/ahead-again", Rows: list("ROCE-RESP-2"), Text: "a second packet that is ahead gets no second NAK",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			p.PSN = e.psn.Add(1)
			e.send(p)
			e.refused("ROCE-RESP-2", "a packet that is one ahead", e.psn, ib.NAKSequence)
			p.PSN = e.psn.Add(2)
			e.send(p)
			e.silent("ROCE-RESP-2", "a second packet that is ahead")
			e.alive("ROCE-RESP-2", "a gap")
		}},
	{Name: "roce/duplicate-send", Rows: list("ROCE-RESP-3", "ROCE-RESP-13"), Text: "a Send that comes again is acknowledged again, and not executed",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			e.sendNext(p)
			e.acked("ROCE-RESP-14", "a Send")
			e.send(p)
			e.acked("ROCE-RESP-3", "a Send that comes again")
		}},
	{Name: "roce/duplicate-old", Rows: list("ROCE-RESP-3"), Text: "an old Send that comes again is acknowledged with the last number that was executed",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			e.sendNext(p, e.request(ib.SendOnly, pattern(9)), e.request(ib.SendOnly, pattern(10)))
			e.acked("ROCE-RESP-14", "three Sends")
			e.send(p)
			r := e.response("ROCE-RESP-3", "an old Send that comes again")
			last := e.psn.Add(-1)
			t.check(r.Opcode == ib.Acknowledge && r.AETH.Syndrome.Type() == ib.TypeACK && r.PSN == last, "ROCE-RESP-3",
				"%v, %v, number %d, in answer to an old Send; the last was %d", r.Opcode, r.AETH.Syndrome, r.PSN, last)
		}},
	{Name: "roce/no-receive", Rows: list("ROCE-RESP-9", "ROCE-OP-5"), Text: "a Send that finds no receive is answered with an RNR NAK of its number, and executed when it comes again and finds one",
		run: func(t *T) {
			e := t.startRoCE()
			if e.peer.receives.count == 0 || !e.peer.asks {
				t.hidden("the peer does not announce how many receives it has")
			}
			for range e.peer.receives.count {
				e.sendNext(e.request(ib.SendOnly, nil))
			}
			e.acked("ROCE-RESP-14", "Sends that take all receives")
			e.send(e.request(ib.SendOnly, nil))
			e.refused("ROCE-RESP-9", "a Send without a receive", e.psn, ib.RNR(0))
			t.write(e.ctl, []byte("receive\n"))
			answer, _ := t.roceLine(e.ctl)
			t.check(answer == "posted", t.c.Rows[0], "the peer says %q instead of posting a receive", answer)
			e.alive("ROCE-RESP-9", "an RNR NAK")
		}},
	{Name: "roce/after-error", Rows: list("ROCE-RESP-16"), Text: "after a fatal NAK nothing is executed any more",
		run: func(t *T) {
			e := t.startRoCE()
			e.send(e.request(ib.SendMiddle, pattern(e.mtu)))
			e.refused("ROCE-RESP-7", "a Middle without First", e.psn, ib.NAKInvalidRequest)
			e.send(e.request(ib.SendOnly, pattern(8)))
			if p, ok := e.next(t.g.Quiet); ok { // the NAK may be repeated
				t.check(p.Opcode == ib.Acknowledge && p.AETH.Syndrome.Type() == ib.TypeNAK, "ROCE-RESP-16", "%v, %v, in answer to a Send after a fatal NAK", p.Opcode, p.AETH.Syndrome)
			}
		}},
}

// invalidAfter returns a case that sends the packets bad after the packets good. The peer must
// answer the first of them with the NAK for an invalid request.
func invalidAfter(name, row, text string, good, bad func(e *roceEnd) []ib.Packet) Case {
	return Case{Name: "roce/" + name, Rows: list(row, "ROCE-OP-13"), Text: text, run: func(t *T) {
		e := t.startRoCE()
		if good != nil {
			for _, p := range good(e) {
				p.AckReq = false
				e.sendNext(p)
			}
		}
		for i, p := range bad(e) {
			p.PSN = e.psn.Add(i)
			e.send(p)
		}
		e.refused(row, "it: "+text, e.psn, ib.NAKInvalidRequest)
	}}
}

// ignored returns a case with a packet that change makes invalid. The peer must drop the packet
// without an answer, and then execute a valid packet with the same number.
func ignored(name, row, text string, change func(e *roceEnd, b []byte)) Case {
	return Case{Name: "roce/" + name, Rows: list(row), Text: text, run: func(t *T) {
		e := t.startRoCE()
		p := e.request(ib.SendOnly, pattern(16))
		b := p.Append(nil)
		change(e, b)
		e.raw(b)
		e.silent(row, "it: "+text)
		e.alive(row, "it: "+text)
	}}
}

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
	ignored("partition", "ROCE-BTH-4", "another partition is dropped", func(_ *roceEnd, b []byte) { b[2], b[3] = 0x80, 0x01 }),
	ignored("no-queue-pair", "ROCE-NET-5", "a packet for a queue pair that is not there is dropped", func(_ *roceEnd, b []byte) { b[5] ^= 0x40; b[6] ^= 0x5a }),
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

// roceMemoryCases tests RDMA Writes, keys, rights and bounds.
var roceMemoryCases = []Case{
	{Name: "roce/write", Rows: list("ROCE-RESP-1", "ROCE-OP-4"), Text: "an RDMA Write is placed where its RETH says",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rw", false)
			want := pattern(200)
			e.sendNext(e.write(ib.WriteOnly, m, 13, want))
			e.acked("ROCE-RESP-14", "an RDMA Write")
			t.check(bytes.Equal(e.read("ROCE-RESP-1", m, 13, len(want)), want), "ROCE-RESP-1", "the memory holds something else than was written")
		}},
	{Name: "roce/long-write", Rows: list("ROCE-RESP-1", "ROCE-OP-12"), Text: "the packets of an RDMA Write are placed one after the other",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rw", false)
			want := pattern(2*e.mtu + 77)
			p := e.write(ib.WriteFirst, m, 5, want)
			p.Payload = want[:e.mtu]
			e.sendNext(p, e.request(ib.WriteMiddle, want[e.mtu:2*e.mtu]), e.request(ib.WriteLast, want[2*e.mtu:]))
			e.acked("ROCE-RESP-14", "an RDMA Write of three packets")
			t.check(bytes.Equal(e.read("ROCE-RESP-1", m, 5, len(want)), want), "ROCE-RESP-1", "the memory holds something else than was written")
		}},
	{Name: "roce/pads", Rows: list("ROCE-BTH-3"), Text: "the bytes that fill a payload up are not placed",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rw", false)
			for n := 1; n <= 4; n++ {
				e.sendNext(e.write(ib.WriteOnly, m, 0, bytes.Repeat([]byte{0xee}, 8)), e.write(ib.WriteOnly, m, 0, pattern(n)))
				e.acked("ROCE-RESP-14", "an RDMA Write")
				want := append(pattern(n), bytes.Repeat([]byte{0xee}, 8-n)...)
				got := e.read("ROCE-BTH-3", m, 0, 8)
				t.check(bytes.Equal(got, want), "ROCE-BTH-3", "an RDMA Write of %d bytes leaves % x, expected % x", n, got, want)
			}
		}},
	{Name: "roce/write-length", Rows: list("ROCE-RESP-8"), Text: "an RDMA Write whose payload is shorter than its RETH says is refused",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.write(ib.WriteOnly, e.memory("w", false), 0, pattern(64))
			p.RETH.Length += 4
			e.send(p)
			e.refused("ROCE-RESP-8", "an RDMA Write with too little payload", e.psn, ib.NAKInvalidRequest)
		}},
	{Name: "roce/write-overrun", Rows: list("ROCE-RESP-8"), Text: "an RDMA Write whose last packet is longer than its RETH allows is refused",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.write(ib.WriteFirst, e.memory("w", false), 0, pattern(e.mtu))
			p.RETH.Length = uint32(e.mtu) + 8
			e.sendNext(p)
			e.send(e.request(ib.WriteLast, pattern(12)))
			e.refused("ROCE-RESP-8", "an RDMA Write with too much payload", e.psn, ib.NAKInvalidRequest)
		}},
	{Name: "roce/key", Rows: list("ROCE-RESP-10", "ROCE-OP-13"), Text: "an RDMA Write with a key that does not exist is refused",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.write(ib.WriteOnly, roceMemory{addr: 0x1000, key: 0xdeadbeef}, 0, pattern(8))
			e.send(p)
			if len(e.peer.memory) == 0 { // a queue pair without the right to Writes refuses earlier
				e.refused("ROCE-RESP-10", "a wrong key", e.psn, ib.NAKRemoteAccess, ib.NAKInvalidRequest)
				return
			}
			e.refused("ROCE-RESP-10", "a wrong key", e.psn, ib.NAKRemoteAccess)
		}},
	{Name: "roce/bounds", Rows: list("ROCE-RESP-10"), Text: "an RDMA Write across the end of a region is refused as a whole",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("w", false)
			e.send(e.write(ib.WriteOnly, m, uint64(m.len)-4, pattern(8)))
			e.refused("ROCE-RESP-10", "a Write across the end of a region", e.psn, ib.NAKRemoteAccess)
		}},
	{Name: "roce/wrapped-bounds", Rows: list("ROCE-RESP-10"), Text: "an RDMA Write across the end of the address space is refused",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("w", false)
			p := e.write(ib.WriteOnly, m, 0, pattern(16))
			p.RETH.VA = 1<<64 - 8
			e.send(p)
			e.refused("ROCE-RESP-10", "a Write across the end of the address space", e.psn, ib.NAKRemoteAccess)
		}},
	{Name: "roce/rights", Rows: list("ROCE-RESP-10"), Text: "an RDMA Write to a region that may only be read is refused",
		run: func(t *T) {
			e := t.startRoCE()
			e.send(e.write(ib.WriteOnly, e.memory("r", true), 0, pattern(8)))
			e.refused("ROCE-RESP-10", "a Write without the right to", e.psn, ib.NAKRemoteAccess)
		}},
	{Name: "roce/empty-write", Rows: list("ROCE-RESP-11"), Text: "an RDMA Write of no bytes needs no key",
		run: func(t *T) {
			e := t.startRoCE()
			e.memory("w", false)
			e.sendNext(e.write(ib.WriteOnly, roceMemory{addr: 1<<64 - 1, key: 0xdeadbeef}, 0, nil))
			e.acked("ROCE-RESP-11", "an RDMA Write of no bytes")
		}},
}

// roceReads tests RDMA Reads.
var roceReads = []Case{
	{Name: "roce/read", Rows: list("ROCE-RESP-15", "ROCE-OP-12", "ROCE-COMP-4"), Text: "an RDMA Read of three packets is answered by First, Middle and Last with its numbers",
		run: func(t *T) {
			e := t.startRoCE()
			e.read("ROCE-RESP-1", e.memory("r", false), 3, 2*e.mtu+10)
			e.alive("ROCE-REQ-2", "a Read, which takes three numbers")
		}},
	{Name: "roce/empty-read", Rows: list("ROCE-RESP-11"), Text: "an RDMA Read of no bytes needs no key, and is answered by one packet",
		run: func(t *T) {
			e := t.startRoCE()
			e.memory("r", false)
			e.read("ROCE-RESP-11", roceMemory{addr: 1<<64 - 1, key: 0xdeadbeef}, 0, 0)
			e.alive("ROCE-RESP-11", "a Read of no bytes")
		}},
	{Name: "roce/read-key", Rows: list("ROCE-RESP-10"), Text: "an RDMA Read with a key that does not exist is refused",
		run: func(t *T) {
			e := t.startRoCE()
			e.memory("r", false)
			e.send(e.requestRead(roceMemory{addr: 0x1000, key: 0xdeadbeef}, 0, 8))
			e.refused("ROCE-RESP-10", "a Read with a wrong key", e.psn, ib.NAKRemoteAccess)
		}},
	{Name: "roce/duplicate-read", Rows: list("ROCE-RESP-4"), Text: "an RDMA Read that comes again is answered again",
		run: func(t *T) {
			e := t.startRoCE()
			m, n := e.memory("r", false), 2*e.mtu+10
			p := e.requestRead(m, 0, n)
			want := e.read("ROCE-RESP-1", m, 0, n)
			e.send(p)
			t.check(bytes.Equal(e.readResponse("ROCE-RESP-4", p.PSN, n, true), want), "ROCE-RESP-4", "the response differs from the first")
			e.alive("ROCE-RESP-4", "a Read that came again")
		}},
	{Name: "roce/rest-of-read", Rows: list("ROCE-RESP-4"), Text: "an RDMA Read that asks for the rest from its second packet is answered with that",
		run: func(t *T) {
			e := t.startRoCE()
			m, n := e.memory("r", false), 2*e.mtu+10
			first := e.psn
			want := e.read("ROCE-RESP-1", m, 0, n)[e.mtu:]
			p := e.requestRead(m, uint64(e.mtu), n-e.mtu)
			p.PSN = first.Add(1)
			e.send(p)
			t.check(bytes.Equal(e.readResponse("ROCE-RESP-4", p.PSN, len(want), false), want), "ROCE-RESP-4", "the response differs from the first")
		}},
	{Name: "roce/other-read", Rows: list("ROCE-RESP-4"), Text: "an RDMA Read that comes again with another range is dropped",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("r", false)
			p := e.requestRead(m, 64, 2*e.mtu)
			p.PSN = e.psn
			e.read("ROCE-RESP-1", m, 0, 100)
			e.send(p)
			e.silent("ROCE-RESP-4", "a Read that comes again with another range")
			e.alive("ROCE-RESP-4", "it")
		}},
	{Name: "roce/order", Rows: list("ROCE-RESP-15", "ROCE-COMP-6"), Text: "a Send after an RDMA Read is acknowledged after its response",
		run: func(t *T) {
			e := t.startRoCE()
			m, n := e.memory("r", false), 3*e.mtu
			p := e.requestRead(m, 0, n)
			e.psn = e.psn.Add(e.packets(n))
			e.msn++
			e.send(p)
			e.sendNext(e.request(ib.SendOnly, pattern(8)))
			e.readResponse("ROCE-RESP-15", p.PSN, n, true)
			e.acked("ROCE-RESP-15", "a Send after a Read")
		}},
}

// roceAtomics tests atomic operations.
var roceAtomics = []Case{
	{Name: "roce/fetch-add", Rows: list("ROCE-OP-7", "ROCE-OP-6", "ROCE-RESP-17"), Text: "Fetch and Add returns what the word was, and adds",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rwa", false)
			before := e.fetchAdd(m, 5)
			got := e.fetchAdd(m, 1<<63)
			t.check(got == before+5, "ROCE-OP-7", "the word was %#x, 5 was added, and it is %#x", before, got)
			got = e.fetchAdd(m, 1<<63)
			t.check(got == before+5+1<<63, "ROCE-OP-7", "the word is %#x, expected %#x", got, before+5+1<<63)
		}},
	{Name: "roce/compare-swap", Rows: list("ROCE-OP-6", "ROCE-OP-7"), Text: "Compare and Swap stores if the word equals its compare operand, and only then",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rwa", false)
			before := e.fetchAdd(m, 0)
			swap := rand.Uint64()
			for _, c := range []struct{ compare, want uint64 }{{before + 1, before}, {before, before}, {before, swap}} {
				p := e.atomic(ib.CompareSwap, m, 0, swap, c.compare)
				e.sendNext(p)
				got := e.atomicResult("ROCE-OP-6", p.PSN)
				t.check(got == c.want, "ROCE-OP-6", "the word is %#x, expected %#x", got, c.want)
			}
		}},
	{Name: "roce/duplicate-atomic", Rows: list("ROCE-RESP-5"), Text: "an atomic operation that comes again is answered with the first result, and not executed",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rwa", false)
			p := e.atomic(ib.FetchAdd, m, 0, 7, 0)
			e.sendNext(p)
			first := e.atomicResult("ROCE-RESP-17", p.PSN)
			e.send(p)
			again := e.atomicResult("ROCE-RESP-5", p.PSN)
			t.check(again == first, "ROCE-RESP-5", "the result is %#x, and %#x when it comes again", first, again)
			now := e.fetchAdd(m, 0)
			t.check(now == first+7, "ROCE-RESP-5", "7 was added to %#x once and sent twice, and the word is %#x", first, now)
		}},
	{Name: "roce/atomic-alignment", Rows: list("ROCE-RESP-17"), Text: "an atomic operation on an address that is no multiple of 8 is refused",
		run: func(t *T) {
			e := t.startRoCE()
			e.send(e.atomic(ib.FetchAdd, e.memory("rwa", false), 4, 1, 0))
			e.refused("ROCE-RESP-17", "an atomic operation at an odd address", e.psn, ib.NAKInvalidRequest)
		}},
}

// fetchAdd adds n to the first word of a region, and returns the old value.
func (e *roceEnd) fetchAdd(m roceMemory, n uint64) uint64 {
	p := e.atomic(ib.FetchAdd, m, 0, n, 0)
	e.sendNext(p)
	return e.atomicResult("ROCE-RESP-17", p.PSN)
}

// roceDatagrams tests unreliable datagrams.
var roceDatagrams = []Case{
	{Name: "roce/datagram", Rows: list("ROCE-UD-1", "ROCE-OP-10", "ROCE-UD-5"), Text: "a datagram is received, and its answer goes to the queue pair and with the key that it names",
		run: func(t *T) {
			e := t.startRoCE()
			e.datagramEchoed("ROCE-UD-1", pattern(100))
			e.datagramEchoed("ROCE-UD-1", pattern(e.mtu))
		}},
	{Name: "roce/datagram-key", Rows: list("ROCE-UD-2"), Text: "a datagram with another queue key is dropped",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.datagram(pattern(50))
			p.DETH.QKey ^= 0x10
			e.send(p)
			e.silent("ROCE-UD-2", "a datagram with another key")
			e.datagramEchoed("ROCE-UD-2", pattern(51))
		}},
}

// datagram returns a datagram for the peer's UD queue pair. The case ends as not observable if the
// peer has none.
func (e *roceEnd) datagram(payload []byte) ib.Packet {
	d := e.peer.datagram
	if d == nil {
		e.t.hidden("the peer announces no queue pair that sends datagrams back")
		return ib.Packet{}
	}
	p := e.request(ib.SendOnly.On(ib.UD), payload)
	p.QPN, p.AckReq, p.PSN = d.qpn, false, ib.PSN(rand.Uint32N(1<<24))
	p.DETH = ib.DETH{QKey: d.qkey, SourceQPN: e.qpn}
	return p
}

// datagramEchoed sends a datagram, and checks that the peer returns it.
func (e *roceEnd) datagramEchoed(row string, payload []byte) {
	e.send(e.datagram(payload))
	p := e.response(row, "a datagram")
	t, d := e.t, e.peer.datagram
	t.check(p.Opcode.Operation() == ib.SendOnly && p.Opcode.Transport() == ib.UD, row, "%v in answer to a datagram", p.Opcode)
	t.check(p.DETH.SourceQPN == d.qpn && p.DETH.QKey == d.qkey, "ROCE-OP-10", "the answer to a datagram is of queue pair %#x with key %#x", p.DETH.SourceQPN, p.DETH.QKey)
	t.check(bytes.Equal(p.Payload, payload), row, "%d bytes come back, %d were sent, or others", len(p.Payload), len(payload))
}

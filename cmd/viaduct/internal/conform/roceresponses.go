package conform

import (
	"bytes"
	"math/rand/v2"

	"viaduct/internal/wire/ib"
)

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
			t.check(bytes.Equal(e.readResponse("ROCE-RESP-4", p.PSN, n, true), want), "ROCE-RESP-4",
				"the response differs from the first")
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
			t.check(bytes.Equal(e.readResponse("ROCE-RESP-4", p.PSN, len(want), false), want),
				"ROCE-RESP-4", "the response differs from the first")
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
			t.check(now == first+7, "ROCE-RESP-5",
				"7 was added to %#x once and sent twice, and the word is %#x", first, now)
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

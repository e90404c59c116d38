package conform

import (
	"bytes"

	"viaduct/internal/wire/ib"
)

// roceMemoryCases tests RDMA Writes, keys, rights and bounds.
var roceMemoryCases = []Case{
	{Name: "roce/write", Rows: list("ROCE-RESP-1", "ROCE-OP-4"), Text: "an RDMA Write is placed where its RETH says",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rw", false)
			want := pattern(200)
			e.sendNext(e.write(ib.WriteOnly, m, 13, want))
			e.acked("ROCE-RESP-14", "an RDMA Write")
			t.check(bytes.Equal(e.read("ROCE-RESP-1", m, 13, len(want)), want), "ROCE-RESP-1",
				"the memory holds something else than was written")
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
			t.check(bytes.Equal(e.read("ROCE-RESP-1", m, 5, len(want)), want), "ROCE-RESP-1",
				"the memory holds something else than was written")
		}},
	{Name: "roce/pads", Rows: list("ROCE-BTH-3"), Text: "the bytes that fill a payload up are not placed",
		run: func(t *T) {
			e := t.startRoCE()
			m := e.memory("rw", false)
			for n := 1; n <= 4; n++ {
				e.sendNext(e.write(ib.WriteOnly, m, 0, bytes.Repeat([]byte{0xee}, 8)),
					e.write(ib.WriteOnly, m, 0, pattern(n)))
				e.acked("ROCE-RESP-14", "an RDMA Write")
				want := append(pattern(n), bytes.Repeat([]byte{0xee}, 8-n)...)
				got := e.read("ROCE-BTH-3", m, 0, 8)
				t.check(bytes.Equal(got, want), "ROCE-BTH-3",
					"an RDMA Write of %d bytes leaves % x, expected % x", n, got, want)
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

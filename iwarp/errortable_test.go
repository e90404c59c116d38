package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A ground is what a bad segment meets: a stream with a receive of 16 bytes,
// regions with various rights, and those of others.
type ground struct {
	q, other   *QueuePair
	rw         *MemoryRegion // 64 bytes, all rights but atomic, virtual offsets
	wr, rd     *MemoryRegion // write only, read only
	local      *MemoryRegion
	foreign    *MemoryRegion // of another domain
	stranger   *MemoryRegion // of another stream in the same domain
	closed     uint32        // STag of a region that is gone
	pdWide     *MemoryRegion
	strangeWin *Window // of another stream
	mem        []byte
	oddAtomic  *MemoryRegion // atomics allowed, base not aligned
}

func lay(t *testing.T, q *QueuePair, other *QueuePair, foreign *ProtectionDomain) *ground {
	t.Helper()
	g := &ground{q: q, other: other, mem: bytes.Repeat([]byte{0xaa}, 64)}
	must := func(m *MemoryRegion, err error) *MemoryRegion {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	virtual := RegionOptions{Virtual: true}
	g.rw = must(q.Register(g.mem, RemoteRead|RemoteWrite, virtual))
	g.wr = must(q.Register(make([]byte, 64), RemoteWrite))
	g.rd = must(q.Register(make([]byte, 64), RemoteRead))
	g.local = must(q.Register(make([]byte, 64), LocalOnly))
	g.foreign = must(foreign.Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.stranger = must(other.Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.pdWide = must(q.PD().Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.oddAtomic = must(q.Register(make([]byte, 64)[1:], RemoteAtomic))
	gone := must(q.Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.closed = gone.STag()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	wm := must(other.Register(make([]byte, 64), LocalOnly))
	var err error
	if g.strangeWin, err = other.Bind(wm, 0, 64, RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if err := q.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(make([]byte, 16))}}); err != nil {
		t.Fatal(err)
	}
	return g
}

const (
	noHeaders = iota
	ddpHeader
	bothHeaders
)

// TestErrorTable drives the tables of RFC 5040, 5041 and 5044: each bad segment
// is answered by the Terminate whose every byte is known, with the headers that
// Figure 10 gives it, then by FIN; a good Write behind the bad segment has no
// effect; the local ULP gets the same as a typed error, and what was posted
// comes back flushed. Both as Initiator and as Responder. [DDP-1.2-1] [RDMAP-5.2.1-5]
// [RDMAP-5.3-4] [RDMAP-5.3-7] [RDMAP-7.2-1] [RDMAP-8.1.1-3] [RDMAPX-5.1.1-5] [RDMAPX-8.2-2] [I-42] [I-44] [I-69]
func TestErrorTable(t *testing.T) {
	to := func(m *MemoryRegion, off int64) uint64 { return m.TO() + uint64(off) }
	x := func(n int) []byte { return bytes.Repeat([]byte{0xee}, n) }
	read := func(stag uint32, to uint64, size uint32) []byte {
		return readReq(1, rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: size, SourceSTag: stag, SourceTO: to})
	}
	inv := func(o rdmap.Opcode, stag uint32) []byte { return o.UntaggedHeader(1, 0, true, stag).Append(nil) }
	set := func(u []byte, i int, v byte) []byte { u[i] = v; return u }
	atomicAt := func(op rdmap.AtomicOp, stag uint32, to uint64) []byte {
		return seg(rdmap.AtomicRequestOp, 1, 1, 0, true, rdmap.AtomicRequest{Op: op, STag: stag, TO: to, Data: 1}.Append(nil))
	}
	type segment func(g *ground) []byte
	cases := []struct {
		row     string
		name    string
		bad     segment
		layer   uint8
		typ     uint8
		code    uint8
		headers int
		before  segment // sent before, and fine
	}{
		// Tagged Buffer errors of DDP. [DDP-7.2-1]
		{row: "DDP-7.1-9", name: "unknown STag", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rw.STag()+1, 0, true, x(4)) }, layer: 1, typ: 1, code: 0, headers: ddpHeader},
		{row: "DDP-7.1-9", name: "STag 0", bad: func(g *ground) []byte { return tag(rdmap.Write, 0, 0, true, x(4)) }, layer: 1, typ: 1, code: 0, headers: ddpHeader},
		{row: "DDP-7.1-9", name: "stale STag", bad: func(g *ground) []byte { return tag(rdmap.Write, g.closed, 0, true, x(4)) }, layer: 1, typ: 1, code: 0, headers: ddpHeader},
		{row: "DDP-7.1-10", name: "no write right", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rd.STag(), 0, true, x(4)) }, layer: 1, typ: 1, code: 0, headers: ddpHeader},
		{row: "DDP-7.1-10", name: "local only", bad: func(g *ground) []byte { return tag(rdmap.Write, g.local.STag(), 0, true, x(4)) }, layer: 1, typ: 1, code: 0, headers: ddpHeader},
		{row: "DDP-7.1-11", name: "TO below", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rw.STag(), to(g.rw, -1), true, x(4)) }, layer: 1, typ: 1, code: 1, headers: ddpHeader},
		{row: "DDP-7.1-11", name: "TO above", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rw.STag(), to(g.rw, 65), true, x(4)) }, layer: 1, typ: 1, code: 1, headers: ddpHeader},
		{row: "DDP-7.1-12", name: "one byte beyond", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rw.STag(), to(g.rw, 60), true, x(5)) }, layer: 1, typ: 1, code: 1, headers: ddpHeader},
		{row: "DDP-8.2-1", name: "other domain", bad: func(g *ground) []byte { return tag(rdmap.Write, g.foreign.STag(), 0, true, x(4)) }, layer: 1, typ: 1, code: 2, headers: ddpHeader},
		{row: "DDP-8.2-2", name: "other stream", bad: func(g *ground) []byte { return tag(rdmap.Write, g.stranger.STag(), 0, true, x(4)) }, layer: 1, typ: 1, code: 2, headers: ddpHeader},
		{row: "DDP-7.1-13", name: "wrap", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rw.STag(), 1<<64-1, true, x(2)) }, layer: 1, typ: 1, code: 3, headers: ddpHeader},
		{row: "I-59", name: "end at 2^64", bad: func(g *ground) []byte { return tag(rdmap.Write, g.rw.STag(), 1<<64-2, true, x(2)) }, layer: 1, typ: 1, code: 3, headers: ddpHeader},
		{row: "DDP-4.1-11", name: "version, tagged", bad: func(g *ground) []byte { return set(tag(rdmap.Write, g.rw.STag(), to(g.rw, 0), true, x(4)), 0, 0xc2) }, layer: 1, typ: 1, code: 4, headers: noHeaders,
			before: func(g *ground) []byte { return tag(rdmap.Write, g.wr.STag(), 0, true, x(4)) }},

		// Untagged Buffer errors of DDP.
		{row: "DDP-7.1-1", name: "queue 4", bad: func(g *ground) []byte { return seg(rdmap.Send, 4, 1, 0, true, x(4)) }, layer: 1, typ: 2, code: 1, headers: ddpHeader},
		{row: "DDP-7.1-1", name: "queue 2^32-1", bad: func(g *ground) []byte { return seg(rdmap.Send, 0xffffffff, 1, 0, true, x(4)) }, layer: 1, typ: 2, code: 1, headers: ddpHeader},
		{row: "DDP-7.1-2", name: "no receive posted", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 2, 0, true, x(4)) }, layer: 1, typ: 2, code: 2, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, true, x(4)) }},
		{row: "DDP-7.1-8", name: "MSN 0", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 0, 0, true, x(4)) }, layer: 1, typ: 2, code: 3, headers: ddpHeader},
		{row: "DDP-7.1-8", name: "MSN gap", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 2, 0, true, x(4)) }, layer: 1, typ: 2, code: 3, headers: ddpHeader},
		{row: "DDP-7.1-8", name: "MSN again", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, true, x(4)) }, layer: 1, typ: 2, code: 3, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, true, x(4)) }},
		{row: "I-48", name: "next message inside a message", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 2, 0, true, x(4)) }, layer: 1, typ: 2, code: 3, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(4)) }},
		{row: "I-48", name: "another message inside a message", bad: func(g *ground) []byte { return seg(rdmap.SendSE, 0, 2, 0, true, x(4)) }, layer: 1, typ: 2, code: 3, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(4)) }},
		{row: "DDP-7.1-6", name: "MO beyond", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 17, true, x(4)) }, layer: 1, typ: 2, code: 4, headers: ddpHeader},
		{row: "I-48", name: "MO gap", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 5, true, x(4)) }, layer: 1, typ: 2, code: 4, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(4)) }},
		{row: "I-48", name: "MO overlap", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 3, true, x(4)) }, layer: 1, typ: 2, code: 4, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(4)) }},
		{row: "DDP-7.1-7", name: "message too long", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, true, x(17)) }, layer: 1, typ: 2, code: 5, headers: ddpHeader},
		{row: "I-49", name: "second segment too long", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 16, true, x(1)) }, layer: 1, typ: 2, code: 5, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(16)) }},
		{row: "DDP-4.1-11", name: "version, untagged", bad: func(g *ground) []byte { return set(seg(rdmap.Send, 0, 1, 0, true, x(4)), 0, 0x40) }, layer: 1, typ: 2, code: 6, headers: noHeaders},
		{row: "RDMAP-6.1-6", name: "too many reads", bad: func(g *ground) []byte { return read(g.rd.STag(), 0, 4) }, layer: 1, typ: 2, code: 3, headers: ddpHeader,
			before: func(g *ground) []byte { return readReq(1, rdmap.ReadRequest{}) }},

		// Remote protection errors of RDMAP. [RDMAP-4.8-3] [RDMAP-5.2.1-13]
		{row: "RDMAP-7.2-7", name: "read, unknown STag", bad: func(g *ground) []byte { return read(g.rw.STag()+1, 0, 4) }, layer: 0, typ: 1, code: 0, headers: bothHeaders},
		{row: "RDMAP-7.2-7", name: "read, stale STag", bad: func(g *ground) []byte { return read(g.closed, 0, 4) }, layer: 0, typ: 1, code: 0, headers: bothHeaders},
		{row: "RDMAP-7.2-9", name: "read, TO below", bad: func(g *ground) []byte { return read(g.rw.STag(), to(g.rw, -1), 4) }, layer: 0, typ: 1, code: 1, headers: bothHeaders},
		{row: "RDMAP-7.2-9", name: "read, TO above", bad: func(g *ground) []byte { return read(g.rw.STag(), to(g.rw, 65), 4) }, layer: 0, typ: 1, code: 1, headers: bothHeaders},
		{row: "RDMAP-7.2-10", name: "read, one byte beyond", bad: func(g *ground) []byte { return read(g.rw.STag(), to(g.rw, 60), 5) }, layer: 0, typ: 1, code: 1, headers: bothHeaders},
		{row: "RDMAP-7.2-10", name: "read, oversized", bad: func(g *ground) []byte { return read(g.rw.STag(), to(g.rw, 0), 0xffffffff) }, layer: 0, typ: 1, code: 1, headers: bothHeaders},
		{row: "RDMAP-7.2-12", name: "read, no right", bad: func(g *ground) []byte { return read(g.wr.STag(), 0, 4) }, layer: 0, typ: 1, code: 2, headers: bothHeaders},
		{row: "RDMAP-7.2-8", name: "read, other domain", bad: func(g *ground) []byte { return read(g.foreign.STag(), 0, 4) }, layer: 0, typ: 1, code: 3, headers: bothHeaders},
		{row: "RDMAP-8.1.1-2", name: "read, other stream", bad: func(g *ground) []byte { return read(g.stranger.STag(), 0, 4) }, layer: 0, typ: 1, code: 3, headers: bothHeaders},
		{row: "RDMAP-7.2-11", name: "read, wrap", bad: func(g *ground) []byte { return read(g.rw.STag(), 1<<64-1, 2) }, layer: 0, typ: 1, code: 4, headers: bothHeaders},
		{row: "RDMAP-7.2-4", name: "invalidate unknown", bad: func(g *ground) []byte { return inv(rdmap.SendInvalidate, g.rw.STag()+1) }, layer: 0, typ: 1, code: 9, headers: ddpHeader},
		{row: "RDMAP-7.2-5", name: "invalidate other stream's", bad: func(g *ground) []byte { return inv(rdmap.SendSEInvalidate, g.strangeWin.STag()) }, layer: 0, typ: 1, code: 9, headers: ddpHeader},
		{row: "RDMAP-8.1.1-7", name: "invalidate shared region", bad: func(g *ground) []byte { return inv(rdmap.SendInvalidate, g.pdWide.STag()) }, layer: 0, typ: 1, code: 9, headers: ddpHeader},
		{row: "SEC-6.4.5-1", name: "invalidate region of the stream", bad: func(g *ground) []byte { return inv(rdmap.SendInvalidate, g.rw.STag()) }, layer: 0, typ: 1, code: 9, headers: ddpHeader},

		// Remote operation errors of RDMAP.
		{row: "RDMAP-7.2-3", name: "version 0, send", bad: func(g *ground) []byte { return set(seg(rdmap.Send, 0, 1, 0, true, x(4)), 1, 0x03) }, layer: 0, typ: 2, code: 5, headers: ddpHeader},
		{row: "RDMAP-4.1-7", name: "version 2, write", bad: func(g *ground) []byte { return set(tag(rdmap.Write, g.rw.STag(), to(g.rw, 0), true, x(4)), 1, 0x80) }, layer: 0, typ: 2, code: 5, headers: ddpHeader},
		{row: "RDMAP-7.2-6", name: "version 3, read request", bad: func(g *ground) []byte { return set(read(g.rd.STag(), 0, 4), 1, 0xc1) }, layer: 0, typ: 2, code: 5, headers: ddpHeader},
		{row: "RDMAP-4.1-4", name: "send, tagged", bad: func(g *ground) []byte { return tag(rdmap.Send, g.rw.STag(), to(g.rw, 0), true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-4.1-4", name: "write, untagged", bad: func(g *ground) []byte { return seg(rdmap.Write, 0, 1, 0, true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-5.2.1-6", name: "read request on queue 0", bad: func(g *ground) []byte { return seg(rdmap.ReadRequestOp, 0, 1, 0, true, x(28)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-7.2-2", name: "send on queue 1", bad: func(g *ground) []byte { return seg(rdmap.Send, 1, 1, 0, true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-5.4-6", name: "terminate on queue 0", bad: func(g *ground) []byte { return seg(rdmap.TerminateOp, 0, 1, 0, true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-4.1-11", name: "opcode 12", bad: func(g *ground) []byte { return seg(12, 0, 1, 0, true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-4.1-11", name: "opcode 15", bad: func(g *ground) []byte { return seg(15, 0, 1, 0, true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAP-5.2.2-4", name: "read response without a request", bad: func(g *ground) []byte { return tag(rdmap.ReadResponse, g.rw.STag(), to(g.rw, 0), true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "I-47", name: "opcode changes inside a message", bad: func(g *ground) []byte { return seg(rdmap.SendSE, 0, 1, 4, true, x(4)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(4)) }},
		{row: "I-47", name: "opcode changes inside a message, which is too long", bad: func(g *ground) []byte { return seg(rdmap.SendSE, 0, 1, 4, true, x(17)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, false, x(4)) }},
		{row: "I-47", name: "read request too short", bad: func(g *ground) []byte { return seg(rdmap.ReadRequestOp, 1, 1, 0, true, x(27)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "I-47", name: "read request too long", bad: func(g *ground) []byte { return seg(rdmap.ReadRequestOp, 1, 1, 0, true, x(29)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "I-47", name: "read request in two segments", bad: func(g *ground) []byte { return seg(rdmap.ReadRequestOp, 1, 1, 0, false, x(28)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "RDMAP-5.4-6", name: "terminate cut short", bad: func(g *ground) []byte { return seg(rdmap.TerminateOp, 2, 1, 0, true, x(3)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "RDMAP-5.4-3", name: "terminate with MSN 2", bad: func(g *ground) []byte { return seg(rdmap.TerminateOp, 2, 2, 0, true, x(4)) }, layer: 1, typ: 2, code: 3, headers: ddpHeader},

		// RFC 7306, enabled.
		{row: "RDMAPX-6.3-7", name: "immediate of 0", bad: func(g *ground) []byte { return seg(rdmap.Immediate, 0, 1, 0, true, nil) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "RDMAPX-6.3-7", name: "immediate of 7", bad: func(g *ground) []byte { return seg(rdmap.Immediate, 0, 1, 0, true, x(7)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "RDMAPX-6.3-7", name: "immediate of 9", bad: func(g *ground) []byte { return seg(rdmap.ImmediateSE, 0, 1, 0, true, x(9)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},
		{row: "RDMAPX-6.1-2", name: "immediate without receive", bad: func(g *ground) []byte { return seg(rdmap.Immediate, 0, 2, 0, true, x(8)) }, layer: 1, typ: 2, code: 2, headers: ddpHeader,
			before: func(g *ground) []byte { return seg(rdmap.Immediate, 0, 1, 0, true, x(8)) }},
		{row: "RDMAPX-5.2.1-10", name: "atomic operation 1", bad: func(g *ground) []byte { return atomicAt(1, g.rw.STag(), to(g.rw, 0)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAPX-5.2.1-10", name: "atomic operation 15", bad: func(g *ground) []byte { return atomicAt(15, g.rw.STag(), to(g.rw, 0)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAPX-5.1.1-3", name: "atomic, misaligned", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.rw.STag(), to(g.rw, 3)) }, layer: 0, typ: 2, code: 7, headers: ddpHeader},
		{row: "RDMAPX-5.1.2-5", name: "compare and swap, misaligned", bad: func(g *ground) []byte { return atomicAt(rdmap.CmpSwap, g.rw.STag(), to(g.rw, 4)) }, layer: 0, typ: 2, code: 7, headers: ddpHeader},
		{row: "RDMAPX-5.2.1-4", name: "aligned offset, misaligned address", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.oddAtomic.STag(), 8) }, layer: 0, typ: 2, code: 7, headers: ddpHeader},
		{row: "RDMAPX-8.2-3", name: "atomic, unknown STag", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.closed, 0) }, layer: 0, typ: 1, code: 0, headers: ddpHeader},
		{row: "RDMAPX-8.2-3", name: "atomic, range", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.rw.STag(), to(g.rw, 60)) }, layer: 0, typ: 1, code: 1, headers: ddpHeader},
		{row: "RDMAPX-8.2-3", name: "atomic, rights", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.rd.STag(), 0) }, layer: 0, typ: 1, code: 2, headers: ddpHeader},
		{row: "RDMAPX-8.2-3", name: "atomic, right to write alone", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.wr.STag(), 0) }, layer: 0, typ: 1, code: 2, headers: ddpHeader},
		{row: "RDMAPX-8.2-3", name: "atomic, other stream", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.stranger.STag(), 0) }, layer: 0, typ: 1, code: 3, headers: ddpHeader},
		{row: "RDMAPX-8.2-3", name: "atomic, wrap", bad: func(g *ground) []byte { return atomicAt(rdmap.FetchAdd, g.rw.STag(), 1<<64-4) }, layer: 0, typ: 1, code: 4, headers: ddpHeader},
		{row: "RDMAPX-5.2.2-6", name: "atomic response without a request", bad: func(g *ground) []byte { return seg(rdmap.AtomicResponseOp, 3, 1, 0, true, x(12)) }, layer: 0, typ: 2, code: 6, headers: ddpHeader},
		{row: "RDMAPX-4-2", name: "atomic response of 32", bad: func(g *ground) []byte { return seg(rdmap.AtomicResponseOp, 3, 1, 0, true, x(32)) }, layer: 0, typ: 2, code: 0xff, headers: ddpHeader},

		// Errors of MPA.
		{row: "I-25", name: "ULPDU of 0", bad: func(g *ground) []byte { return nil }, layer: 2, typ: 0, code: 3, headers: noHeaders},
		{row: "I-25", name: "ULPDU below the Tagged header", bad: func(g *ground) []byte { return tag(rdmap.Write, 1, 0, true, nil)[:13] }, layer: 2, typ: 0, code: 3, headers: noHeaders},
		{row: "I-25", name: "ULPDU below the Untagged header", bad: func(g *ground) []byte { return seg(rdmap.Send, 0, 1, 0, true, nil)[:17] }, layer: 2, typ: 0, code: 3, headers: noHeaders},
	}
	dev := NewDevice(DeviceConfig{})
	pd := dev.NewPD()
	cfg := &Config{PD: pd, Immediate: true, Atomic: true}
	_, other := asInitiator(t, cfg)
	foreign := dev.NewPD()
	for _, role := range []string{"responder", "initiator"} {
		for _, c := range cases {
			t.Run(role+"/"+c.row+"/"+c.name, func(t *testing.T) {
				setUp := asInitiator
				if role == "initiator" {
					setUp = asResponder
				}
				p, q := setUp(t, cfg)
				g := lay(t, q, other, foreign)
				if c.before != nil {
					p.ulpdu(c.before(g))
				}
				if c.name == "too many reads" { // see TestReadLimits for the limit; here MSN 1 comes again
					p.next()
				}
				bad := c.bad(g)
				// The good Write behind it comes in the same TCP segment. [DDP-7.1-16] [MPA-8-8]
				p.ulpdu(bad, tag(rdmap.Write, g.wr.STag(), 0, true, []byte("later")))
				want := []byte{c.layer<<4 | c.typ, c.code, 0, 0}
				if c.headers != noHeaders {
					hl := ddp.HeaderLen(bad[0])
					want[2] = 0xc0
					want = binary.BigEndian.AppendUint16(want, uint16(len(bad))) // [RDMAP-4.8-6]
					want = append(want, bad[:hl]...)                             // [RDMAP-4.8-8]
					if c.headers == bothHeaders {
						want[2] = 0xe0
						want = append(want, bad[hl:hl+rdmap.ReadRequestLen]...) // [RDMAP-4.8-10] [RDMAP-7.1-4]
					}
				}
				p.terminate(want)
				e := wantTerminate(t, ended(t, q), false, c.layer, c.typ, c.code)
				if c.headers != noHeaders && (e.SegLen != len(bad) || !bytes.Equal(e.DDP, bad[:ddp.HeaderLen(bad[0])])) { // [DDP-7.1-15] [RDMAP-3.1-4]
					t.Errorf("error has segment length %d, header %x", e.SegLen, e.DDP)
				}
				<-q.gone.C()
				if !bytes.Equal(g.mem, bytes.Repeat([]byte{0xaa}, 64)) { // [DDP-7.1-14]
					t.Errorf("memory was changed: %x", g.mem)
				}
				if bytes.Contains(g.wr.Bytes(), []byte("later")) {
					t.Error("a segment behind the bad one took effect")
				}
				for _, m := range []*MemoryRegion{g.rw, g.wr, g.rd, g.local, g.oddAtomic} { // nothing holds it any more
					within(t, "Close of a region", func() { m.Close() })
				}
				// The receive comes back, one way or the other. [DDP-6.2.2-2] [RDMAP-6.2.1-2]
				if comp, ok := q.RecvCQ().Poll(); !ok || c.before == nil && comp.Status == StatusOK {
					t.Errorf("receive: %+v, %t", comp, ok)
				}
				if err := q.Post(SendWR{}); !errors.Is(err, ErrClosed) { // [RDMAP-7-2]
					t.Errorf("Post after the end: %v", err)
				}
			})
		}
	}
}

// TestExtensionsOff: without being enabled the messages of RFC 7306 do not
// exist. [RDMAPX-1.1-1] [RDMAPX-1.1-3] [I-63]
func TestExtensionsOff(t *testing.T) {
	for op, v := range map[rdmap.Opcode]struct{ qn, n int }{
		rdmap.Immediate: {0, 8}, rdmap.ImmediateSE: {0, 8}, rdmap.AtomicRequestOp: {1, 52},
	} {
		t.Run(op.String(), func(t *testing.T) {
			p, q := asInitiator(t, nil)
			bad := seg(op, uint32(v.qn), 1, 0, true, make([]byte, v.n))
			p.ulpdu(bad)
			want := binary.BigEndian.AppendUint16([]byte{0x02, 6, 0xc0, 0}, uint16(len(bad)))
			p.terminate(append(want, bad[:18]...))
			wantTerminate(t, ended(t, q), false, 0, 2, 6)
		})
	}
	p, q := asInitiator(t, nil) // queue 3 is not in use then
	bad := seg(rdmap.AtomicResponseOp, 3, 1, 0, true, make([]byte, 12))
	p.ulpdu(bad)
	p.terminate(append([]byte{0x12, 1, 0xc0, 0, 0, 30}, bad[:18]...))
	wantTerminate(t, ended(t, q), false, 1, 2, 1)
	if err := q.Post(SendWR{Op: OpFetchAdd}); err == nil {
		t.Error("atomic posted")
	}
	_, q = asInitiator(t, nil)
	for _, op := range []Op{OpFetchAdd, OpCmpSwap, OpImmediate, OpImmediateSE} { // [RDMAPX-1.1-2]
		if err := q.Post(SendWR{Op: op}); !errors.Is(err, ErrNotEnabled) {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// TestMPAErrors: a bad CRC anywhere in an FPDU, early or late in the stream, a
// wrong marker, and a length above the limit. [MPA-4.4-14] [MPA-4.4-15] [MPA-4.4-7]
// [MPA-6-1] [MPA-8-1] [MPA-8-2] [MPA-8-3] [MPA-8-8] [MPA-8-9] [MPA-8-10] [I-22] [I-23]
func TestMPAErrors(t *testing.T) {
	for _, at := range []int{0, 2, 10, 30, -1} {
		t.Run(fmt.Sprintf("CRC, byte %d", at), func(t *testing.T) {
			p, q := asInitiator(t, nil)
			mr, _ := q.Register(make([]byte, 64), RemoteWrite)
			u := tag(rdmap.Write, mr.STag(), 0, true, bytes.Repeat([]byte{1}, 32))
			for range 3 {
				p.ulpdu(u)
			}
			b := p.enc.Append(nil, tag(rdmap.Write, mr.STag(), 32, true, bytes.Repeat([]byte{2}, 32)))
			if at < 0 {
				at += len(b)
			}
			if at == 0 {
				at = 1 // the length still says that the FPDU is complete
			}
			b[at] ^= 1
			if at == 1 {
				b = append(b, 0, 0, 0, 0)
			}
			b = p.enc.Append(b, u)
			p.raw(b)
			p.terminate([]byte{0x20, 2, 0, 0})
			e := wantTerminate(t, ended(t, q), false, 2, 0, 2)
			if ce, ok := errors.AsType[*mpa.CRCError](e); !ok || ce.Field == ce.Computed {
				t.Errorf("cause %v", e.Cause)
			}
			<-q.gone.C()
			if bytes.ContainsRune(mr.Bytes(), 2) {
				t.Error("damaged data was placed")
			}
		})
	}
	t.Run("marker", func(t *testing.T) {
		p, q := asInitiator(t, &Config{Markers: true})
		b := p.enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, make([]byte, 1000)))
		i := bytes.Index(b, []byte{0, 0, 1, 0xe8}) // a marker 0x1e8 bytes behind the length field
		if i < 0 {
			t.Fatalf("no marker in %x", b[:520])
		}
		b[i+3] -= 4
		binary.LittleEndian.PutUint32(b[len(b)-4:], mpa.CRC(0, b[:len(b)-4]))
		p.raw(b)
		p.terminate([]byte{0x20, 3, 0, 0})
		wantTerminate(t, ended(t, q), false, 2, 0, 3)
	})
	t.Run("length limit", func(t *testing.T) {
		p, q := asInitiator(t, &Config{MaxFPDU: 1000})
		p.raw([]byte{1001 >> 8, 1001 & 0xff}) // nothing more is waited for
		p.terminate([]byte{0x20, 3, 0, 0})
		wantTerminate(t, ended(t, q), false, 2, 0, 3)
	})
}

// TestReadLimits: each Read Request beyond IRD finds no buffer on queue 1.
// [RDMAP-5.2.1-2] [RDMAP-6.1-6] [RDMAP-6.1-2] [RDMAP-5.2.2-2] [MPA2-9.1-2] [SEC-6.4.3.3-3] [I-20]
func TestReadLimits(t *testing.T) {
	p, q := asInitiator(t, &Config{IRD: 2, MaxIRD: 2})
	if q.IRD() != 2 {
		t.Fatalf("IRD %d", q.IRD())
	}
	mr, _ := q.Register(make([]byte, 16<<20), RemoteRead)
	// The answers do not fit the sockets, and are not read.
	for i := ddp.MSN(1); i <= 3; i++ {
		p.ulpdu(readReq(i, rdmap.ReadRequest{SinkSTag: 9, Size: 16 << 20, SourceSTag: mr.STag()}))
	}
	wantTerminate(t, ended(t, q), false, 1, 2, 2)
}

package iwarp

import (
	"errors"
	"testing"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// TestAccessFaults compares the outcomes of an access check with the faults that DDP names for a
// Write, and RDMAP for the source of a Read or the word of an Atomic. [DDP-7.1-9] [DDP-7.1-10]
// [DDP-7.1-11] [DDP-7.1-12] [DDP-7.1-13] [DDP-8.2-1] [DDP-8.2-2] [RDMAP-7.2-7] [RDMAP-7.2-8]
// [RDMAP-7.2-9] [RDMAP-7.2-10] [RDMAP-7.2-11] [RDMAP-7.2-12] [RDMAPX-8.2-3] [I-42] [I-43] [I-67]
func TestAccessFaults(t *testing.T) {
	for out, want := range map[regmem.Outcome]struct {
		write ddp.Fault
		read  rdmap.Fault
	}{
		regmem.OK:           {ddp.OK, rdmap.OK},
		regmem.NoRegion:     {ddp.InvalidSTag, rdmap.InvalidSTag},
		regmem.NoRights:     {ddp.InvalidSTag, rdmap.AccessRights},
		regmem.WrongDomain:  {ddp.NotAssociated, rdmap.NotAssociated},
		regmem.WrongOwner:   {ddp.NotAssociated, rdmap.NotAssociated},
		regmem.Wrap:         {ddp.Wrap, rdmap.Wrap},
		regmem.OutOfBounds:  {ddp.OutOfBounds, rdmap.OutOfBounds},
		regmem.Outcome(100): {ddp.Catastrophic, rdmap.Catastrophic},
	} {
		if got := writeFault(out); got != want.write {
			t.Errorf("%v of a Write is %v, want %v", out, got, want.write)
		}
		if got := readFault(out); got != want.read {
			t.Errorf("%v of a Read is %v, want %v", out, got, want.read)
		}
	}
}

// TestRefine checks that a range ending exactly at 2^64 wraps. For a range ending elsewhere, the
// outcome of the check must stay the same. [I-59]
func TestRefine(t *testing.T) {
	const top = 1<<64 - 1
	for _, v := range []struct {
		out   regmem.Outcome
		to, n uint64
		want  regmem.Outcome
	}{
		{regmem.OutOfBounds, top - 9, 10, regmem.Wrap},
		{regmem.OutOfBounds, top - 9, 9, regmem.OutOfBounds},
		{regmem.OutOfBounds, top - 9, 11, regmem.OutOfBounds},
		{regmem.OutOfBounds, 0, 0, regmem.OutOfBounds},
		{regmem.OutOfBounds, top, 1, regmem.Wrap},
		{regmem.NoRegion, top - 9, 10, regmem.NoRegion},
		{regmem.OK, top - 9, 10, regmem.OK},
	} {
		if got := refine(v.out, v.to, v.n); got != v.want {
			t.Errorf("%v of %d bytes at %#x: %v, want %v", v.out, v.n, v.to, got, v.want)
		}
	}
}

// TestCheckResponse offers segments of a Read Response. A segment must be the next piece of the
// answer to the oldest request; any other segment is a fault. Only the segment that completes the
// answer may have the last flag. [DDP-4.2-7] [RDMAP-5.2.2-4] [RDMAP-5.2.2-5] [RDMAP-5.2.2-7]
// [RDMAP-7.2-2] [I-45] [I-46]
func TestCheckResponse(t *testing.T) {
	const stag, to = 0x1234, 1000
	for _, v := range []struct {
		name   string
		atomic bool
		size   uint32
		got    uint32
		h      ddp.Tagged
		n      int
		ddp    ddp.Fault
		rdmap  rdmap.Fault
	}{
		{"all", false, 10, 0, ddp.Tagged{STag: stag, TO: to, Last: true}, 10, ddp.OK, rdmap.OK},
		{"the first piece", false, 10, 0, ddp.Tagged{STag: stag, TO: to}, 4, ddp.OK, rdmap.OK},
		{"the next piece", false, 10, 4, ddp.Tagged{STag: stag, TO: to + 4}, 5, ddp.OK, rdmap.OK},
		{"the last piece", false, 10, 4, ddp.Tagged{STag: stag, TO: to + 4, Last: true}, 6, ddp.OK, rdmap.OK},
		{"one byte", false, 1, 0, ddp.Tagged{STag: stag, TO: to, Last: true}, 1, ddp.OK, rdmap.OK},
		{"nothing of nothing", false, 0, 0, ddp.Tagged{STag: 7, TO: 7, Last: true}, 0, ddp.OK, rdmap.OK},
		{"nothing of nothing, not the last", false, 0, 0, ddp.Tagged{STag: 7, TO: 7}, 0, ddp.OK, rdmap.Unspecified},
		{"nothing, and more to come", false, 10, 4, ddp.Tagged{STag: 7, TO: 7}, 0, ddp.OK, rdmap.OK},
		{"nothing, as the last", false, 10, 4, ddp.Tagged{STag: 7, TO: 7, Last: true}, 0, ddp.OK, rdmap.Unspecified},
		{"an Atomic is the oldest", true, 8, 0, ddp.Tagged{STag: stag, TO: to, Last: true}, 8, ddp.OK, rdmap.UnexpectedOpcode},
		{"another sink", false, 10, 0, ddp.Tagged{STag: stag + 1, TO: to, Last: true}, 10, ddp.InvalidSTag, rdmap.OK},
		{"another sink, one byte", false, 1, 0, ddp.Tagged{STag: stag + 1, TO: to, Last: true}, 1, ddp.InvalidSTag, rdmap.OK},
		{"a gap", false, 10, 4, ddp.Tagged{STag: stag, TO: to + 5}, 4, ddp.OutOfBounds, rdmap.OK},
		{"again", false, 10, 4, ddp.Tagged{STag: stag, TO: to}, 4, ddp.OutOfBounds, rdmap.OK},
		{"too much", false, 10, 4, ddp.Tagged{STag: stag, TO: to + 4, Last: true}, 7, ddp.OutOfBounds, rdmap.OK},
		{"too early an end", false, 10, 4, ddp.Tagged{STag: stag, TO: to + 4, Last: true}, 5, ddp.OK, rdmap.Unspecified},
		{"too early an end, one byte", false, 10, 0, ddp.Tagged{STag: stag, TO: to, Last: true}, 1, ddp.OK, rdmap.Unspecified},
		{"no end", false, 10, 4, ddp.Tagged{STag: stag, TO: to + 4}, 6, ddp.OK, rdmap.Unspecified},
		{"no end, one byte", false, 1, 0, ddp.Tagged{STag: stag, TO: to}, 1, ddp.OK, rdmap.Unspecified},
	} {
		var r pendingReads
		r.Init(2)
		if p, df, rf := r.check(v.h, v.n); p != nil || df != ddp.OK || rf != rdmap.UnexpectedOpcode {
			t.Errorf("%s, without a request: %v, %v", v.name, df, rf)
		}
		r.Push(pendingRead{stag: stag, to: to, size: v.size, got: v.got, atomic: v.atomic})
		r.Push(pendingRead{stag: stag + 1, to: to, size: v.size})
		p, df, rf := r.check(v.h, v.n)
		if df != v.ddp || rf != v.rdmap {
			t.Errorf("%s: %v, %v, want %v, %v", v.name, df, rf, v.ddp, v.rdmap)
		}
		if good := df == ddp.OK && rf == rdmap.OK; good != (p != nil) || good && p != r.Front() {
			t.Errorf("%s: request %+v", v.name, p)
		}
	}
}

// TestCheckOp checks the limits of the message length, and the operations allowed to be posted.
// [DDP-5.2-2] [DDP-1.2-2] [RDMAPX-1.1-2]
func TestCheckOp(t *testing.T) {
	for _, v := range []struct {
		op     Op
		inline bool
		n      uint64
		want   error
	}{
		{OpSend, false, MaxMessage, nil}, {OpSend, false, MaxMessage + 1, ErrTooLong},
		{OpWrite, true, MaxInline, nil}, {OpWrite, true, MaxInline + 1, ErrTooLong},
		{OpWrite, false, MaxInline + 1, nil}, {OpSendSEInvalidate, false, MaxMessage, nil},
		{OpRead, false, MaxMessage + 1, ErrTooLong},
		{OpImmediate, false, 0, ErrNotEnabled}, {OpImmediateSE, false, 0, ErrNotEnabled},
		{OpFetchAdd, false, 0, ErrNotEnabled}, {OpCmpSwap, false, 0, ErrNotEnabled},
		{OpRecv, false, 0, ErrInvalid},
	} {
		q := &sendQueue{shared: new(shared)}
		q.reads.limit.Store(1)
		if err := q.checkOp(&SendWR{Op: v.op, Inline: v.inline}, v.n); !errors.Is(err, v.want) ||
			v.want == nil && err != nil {
			t.Errorf("%v of %d bytes: %v, want %v", v.op, v.n, err, v.want)
		}
		q.ext.Immediate = true
		if err := q.checkOp(&SendWR{Op: v.op, Inline: v.inline}, v.n); (err == nil) != (v.want == nil || v.op == OpImmediate || v.op == OpImmediateSE) {
			t.Errorf("%v of %d bytes, with immediate data: %v", v.op, v.n, err)
		}
	}
}

// TestTooLongForReceive sends a message longer than the receive. The receive must complete with
// StatusLength, and the stream must end with a Terminate. [RDMAP-5.3-4] [DDP-1.2-1]
func TestTooLongForReceive(t *testing.T) {
	p, q := asInitiator(t, nil)
	if err := q.PostRecv(RecvWR{ID: 7, SG: []SGE{Buf(make([]byte, 4))}}); err != nil {
		t.Fatal(err)
	}
	p.ulpdu(append(rdmap.Send.UntaggedHeader(1, 0, true, 0).Append(nil), "12345"...))
	if c, err := q.RecvCQ().Wait(ctxt(t)); err != nil || c.ID != 7 || c.Status != StatusLength || c.Len != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	wantTerminate(t, ended(t, q), false, 1, 2, 5)
}

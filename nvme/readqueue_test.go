package nvme

import (
	"bytes"
	"testing"

	"viaduct/iwarp"
)

// TestReadQueue posts more Reads than the peer serves at a time, and a Send after them. The Send
// must overtake the Reads that wait in the readQueue.
func TestReadQueue(t *testing.T) {
	const reads = 8
	ctx := t.Context()
	l, err := iwarp.Listen("127.0.0.1:0", &iwarp.Config{IRD: 1, MaxIRD: 1, Prepare: func(q *iwarp.QueuePair) error {
		return q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(make([]byte, 8))}})
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *iwarp.QueuePair, 1)
	go func() {
		q, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- q
	}()
	a, err := iwarp.Dial(ctx, l.Addr().String(), &iwarp.Config{ORD: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Abort()
	b := <-accepted
	if b == nil {
		t.FailNow()
	}
	defer b.Abort()
	mem := bytes.Repeat([]byte("0123456789abcdef"), 256)
	mr, err := b.Register(mem, iwarp.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	next := func(cq *iwarp.CompletionQueue) iwarp.Completion {
		t.Helper()
		c, err := cq.Wait(ctx)
		if err == nil {
			err = c.Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	rq := readQueue{qp: a}
	sinks := make([][]byte, reads)
	for i := range sinks {
		sinks[i] = make([]byte, len(mem))
		if err := rq.post(iwarp.SendWR{ID: uint64(i + 1), Op: iwarp.OpRead, SG: []iwarp.SGE{iwarp.Buf(sinks[i])},
			Remote: iwarp.RemoteAddr{STag: mr.STag()}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Post(iwarp.SendWR{ID: 100, SG: []iwarp.SGE{iwarp.Buf([]byte("answer"))}}); err != nil {
		t.Fatal(err)
	}
	var order []uint64
	for range reads + 1 {
		c := next(a.SendCQ())
		order = append(order, c.ID)
		if c.Op == iwarp.OpRead {
			if err := rq.done(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if order[0] != 1 || order[1] != 100 {
		t.Errorf("completions %v, want 1 and 100 first", order)
	}
	for i, s := range sinks {
		if !bytes.Equal(s, mem) {
			t.Errorf("read %d differs", i)
		}
	}
	next(b.RecvCQ())
}

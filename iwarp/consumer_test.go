package iwarp

import (
	"errors"
	"io"
	"testing"

	"viaduct/internal/testkit"
)

// TestEndWithPeer closes the direction of one end. With Config.EndWithPeer the other end must end
// too, with its posted receives flushed. Without it the other end can still send.
func TestEndWithPeer(t *testing.T) {
	for _, with := range []bool{true, false} {
		a, b := connect(t, &Config{}, &Config{EndWithPeer: with})
		if err := b.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(make([]byte, 8))}}); err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		c, err := b.RecvCQ().Wait(ctxt(t))
		if err != nil || c.ID != 1 || c.Status != StatusFlushed {
			t.Fatalf("receive: %+v, %v", c, err)
		}
		<-b.PeerClosed()
		if !with {
			if err := b.Post(SendWR{Op: OpWrite}); err != nil {
				t.Errorf("without EndWithPeer, a Write after the peer's close: %v", err)
			}
			continue
		}
		if err := ended(t, b); !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v, want EOF", err)
		}
	}
}

// TestConfigure sets the queue depths by the private data of the Request.
func TestConfigure(t *testing.T) {
	dev := NewDevice(DeviceConfig{})
	nca, ncb := testkit.TCPPair(t)
	requests := make(chan *Request, 1)
	go func() {
		r, err := ReadRequest(ctxt(t), ncb, nil, &Config{Device: dev, SendDepth: 1, RecvDepth: 1})
		if err != nil {
			t.Error(err)
		}
		requests <- r
	}()
	peers := make(chan *QueuePair, 1)
	go func() {
		q, err := Client(ctxt(t), nca, &Config{Private: []byte{3}})
		if err != nil {
			t.Error(err)
		}
		peers <- q
	}()
	r := <-requests
	if r == nil {
		t.FailNow()
	}
	first := r.QueuePair()
	if err := first.PostRecv(RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Configure(func(c *Config) { c.RecvDepth = 1 << 20 }); !errors.Is(err, ErrLimit) ||
		r.QueuePair() != first {
		t.Fatalf("beyond the limits of the device: %v", err)
	}
	if err := r.Configure(func(c *Config) { c.RecvDepth = int(r.Private()[0]) }); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := r.QueuePair().PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}}); err != nil {
			t.Fatalf("receive %d: %v", i, err)
		}
	}
	if err := r.QueuePair().PostRecv(RecvWR{}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("receive beyond the depth: %v", err)
	}
	b, err := r.Accept(nil)
	if err != nil {
		t.Fatal(err)
	}
	a := <-peers
	for range 3 {
		if err := a.Post(SendWR{SG: []SGE{Buf([]byte("hello"))}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if c := wantOK(t, b.RecvCQ()); c.Len != 5 {
			t.Errorf("received %d bytes", c.Len)
		}
	}
	closeBoth(a, b)
	if n := len(dev.Streams()); n != 0 {
		t.Errorf("%d streams are left at the device", n)
	}
}

// TestReadQueue posts more Reads than the peer serves at a time, and a Send after them. The Send
// must overtake the Reads that wait in the ReadQueue.
func TestReadQueue(t *testing.T) {
	const reads = 8
	a, b := connect(t, &Config{ORD: 1}, &Config{IRD: 1, MaxIRD: 1})
	mem := pattern(4096, 7)
	mr, err := b.Register(mem, RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}}); err != nil {
		t.Fatal(err)
	}
	rq := ReadQueue{QP: a}
	sinks := make([][]byte, reads)
	for i := range sinks {
		sinks[i] = make([]byte, len(mem))
		wr := SendWR{ID: uint64(i + 1), Op: OpRead, SG: []SGE{Buf(sinks[i])}, Remote: RemoteAddr{STag: mr.STag()}}
		if err := rq.Post(wr); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Post(SendWR{ID: 100, SG: []SGE{Buf([]byte("answer"))}}); err != nil {
		t.Fatal(err)
	}
	var order []uint64
	for range reads + 1 {
		c := wantOK(t, a.SendCQ())
		order = append(order, c.ID)
		if c.Op == OpRead {
			if err := rq.Done(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, id := range order[:2] {
		if want := []uint64{1, 100}[i]; id != want {
			t.Errorf("completions %v: number %d is not %d", order, i, want)
		}
	}
	for i, s := range sinks {
		if string(s) != string(mem) {
			t.Errorf("read %d differs", i)
		}
	}
	wantOK(t, b.RecvCQ())
}

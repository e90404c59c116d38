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

package iwarp

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

func ctxt(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// connect starts a stream and returns the Initiator with configuration ci and the Responder with
// cr.
func connect(t testing.TB, ci, cr *Config) (qi, qr *QueuePair) {
	t.Helper()
	a, b := sock.Shared(testkit.TCPPair(t))
	type result struct {
		q   *QueuePair
		err error
	}
	ch := make(chan result, 1)
	go func() {
		q, err := Server(ctxt(t), b, cr)
		ch <- result{q, err}
	}()
	qi, err := Client(ctxt(t), a, ci)
	r := <-ch
	if err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	t.Cleanup(func() { closeBoth(qi, r.q) })
	return qi, r.q
}

func closeBoth(a, b *QueuePair) {
	done := make(chan struct{})
	go func() { a.Close(); close(done) }()
	b.Close()
	<-done
}

func wantOK(t testing.TB, q *CompletionQueue) Completion {
	t.Helper()
	c, err := q.Wait(ctxt(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.Status != StatusOK {
		t.Fatalf("%v of request %d: %v (stream: %v)", c.Op, c.ID, c.Status, c.QP.Err())
	}
	return c
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

// variants are configurations that transfer bytes in different ways.
var variants = []struct {
	name   string
	ci, cr Config
	noCRC  bool
}{
	{name: "default"},
	{name: "no CRC", noCRC: true},
	{name: "markers", ci: Config{Interop: Interop{Markers: true}}, cr: Config{Interop: Interop{Markers: true}}},
	{name: "markers one way, no CRC", ci: Config{Interop: Interop{Markers: true}}, noCRC: true},
	{name: "small FPDUs", ci: Config{Interop: Interop{FPDUSize: 1442}}, cr: Config{Interop: Interop{FPDUSize: 128}}},
	{name: "portable", ci: Config{portable: true}, cr: Config{portable: true}},
	{name: "plain", ci: Config{Interop: Interop{Plain: true}}},
	{name: "client-server", ci: Config{Interop: Interop{ClientServer: true}}},
	{name: "read RTR", ci: Config{rtr: 4}},
	{name: "send RTR", ci: Config{rtr: 1}},
}

// TestTransfer checks that sent bytes arrive, in every variant and at many sizes. [DDP-1.2-1]
// [DDP-5.2-4] [RDMAP-5.1-4] [RDMAP-5.3-3] [DDP-4.1-1] [DDP-4.1-2]
func TestTransfer(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			if v.noCRC {
				v.ci.Device = NewDevice(DeviceConfig{NoCRC: true})
				v.cr.Device = NewDevice(DeviceConfig{NoCRC: true})
			}
			a, b := connect(t, &v.ci, &v.cr)
			for _, n := range []int{0, 1, 2, 3, 100, 1424, 1425, 5000, 65536, 200000, 1 << 20} {
				t.Run(fmt.Sprint(n), func(t *testing.T) { transfer(t, a, b, n) })
			}
			if !v.ci.Interop.Plain && !v.ci.Interop.ClientServer {
				transfer(t, b, a, 100000)
			}
		})
	}
}

// transfer moves n bytes by Send, Write and Read, and compares the bytes. The Send is shorter than
// the buffer, and the Write goes into the middle of a region.
func transfer(t *testing.T, a, b *QueuePair, n int) {
	data := pattern(n, 1)
	sink := make([]byte, n+2)
	if err := b.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(sink[:n/2]), Buf(sink[n/2:])}}); err != nil {
		t.Fatal(err)
	}
	if err := a.Post(SendWR{ID: 2, SG: []SGE{Buf(data[:n/3]), Buf(data[n/3:])}}); err != nil {
		t.Fatal(err)
	}
	c := wantOK(t, b.RecvCQ())
	if c.ID != 1 || c.Len != uint32(n) || !bytes.Equal(sink[:n], data) {
		t.Fatalf("Send: %+v", c)
	}
	wantOK(t, a.SendCQ())

	mr, err := b.Register(make([]byte, n+16), RemoteWrite|RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	data = pattern(n, 2)
	at := RemoteAddr{mr.STag(), mr.TO() + 8}
	if err := a.Post(SendWR{ID: 3, Op: OpWrite, SG: []SGE{Buf(data)}, Remote: at}); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, n)
	if err := a.Post(SendWR{ID: 4, Op: OpRead, SG: []SGE{Buf(back)}, Remote: at}); err != nil {
		t.Fatal(err)
	}
	wantOK(t, a.SendCQ())
	if c := wantOK(t, a.SendCQ()); c.ID != 4 || c.Len != uint32(n) {
		t.Fatalf("Read: %+v", c)
	}
	// A Write is visible once a later Send was received. [RDMAP-5.1-6]
	if err := b.PostRecv(RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Post(SendWR{}); err != nil {
		t.Fatal(err)
	}
	wantOK(t, a.SendCQ())
	wantOK(t, b.RecvCQ())
	if !bytes.Equal(back, data) || !bytes.Equal(mr.Bytes()[8:8+n], data) {
		t.Fatal("Write or Read: wrong data")
	}
	for _, x := range append(bytes.Clone(mr.Bytes()[:8]), mr.Bytes()[8+n:]...) {
		if x != 0 {
			t.Fatal("memory outside the target was written")
		}
	}
}

package vi_test

import (
	"errors"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

// These tests cover functions the C library needs beyond the calls of VIPL.

// TestDoneN: DoneN returns completed descriptors in order, as many as fit. An empty queue and a
// queue without completions return different errors.
func TestDoneN(t *testing.T) {
	x, y := connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
	buf := make([]*vi.Descriptor, 3)
	for _, done := range []func([]*vi.Descriptor) (int, error){x.SendDoneN, y.RecvDoneN} {
		if n, err := done(buf); n != 0 || !errors.Is(err, vi.ErrQueueEmpty) {
			t.Fatalf("an empty queue: %d, %v", n, err)
		}
	}
	var sends, recvs []*vi.Descriptor
	for range 5 {
		sends, recvs = append(sends, vi.NewSend()), append(recvs, vi.NewRecv())
	}
	if _, err := y.PostRecvs(recvs); err != nil {
		t.Fatal(err)
	}
	if n, err := y.RecvDoneN(buf); n != 0 || !errors.Is(err, vi.ErrNotDone) {
		t.Fatalf("nothing has come: %d, %v", n, err)
	}
	if _, err := x.PostSends(sends); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]struct {
		done   func([]*vi.Descriptor) (int, error)
		posted []*vi.Descriptor
	}{"sends": {x.SendDoneN, sends}, "receives": {y.RecvDoneN, recvs}} {
		left := q.posted
		testkit.Eventually(t, name, func() bool {
			n, err := q.done(buf)
			for _, d := range buf[:n] {
				if d != left[0] || d.Status().Failed() {
					t.Errorf("%s: another descriptor, or in error: %v", name, d.Status())
				}
				left = left[1:]
			}
			return err == nil && len(left) == 0
		})
	}
}

// TestMayUse checks the range, the handle and the protection tag, before and while a VI is
// connected. [VIA-1.5-4]
func TestMayUse(t *testing.T) {
	network := memvi.New()
	n := open(t, network, "mem0", nil)
	tag, err := n.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	other, err := n.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.RegisterMem(make([]byte, 64), vi.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	good := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery, Ptag: tag})
	peer := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery, Ptag: other})
	check := func() {
		t.Helper()
		for _, tc := range []struct {
			what string
			v    *vi.VI
			h    vi.MemHandle
			off  uint64
			n    uint64
			want bool
		}{
			{"all of it", good, r.Handle(), 0, 64, true},
			{"one byte more", good, r.Handle(), 0, 65, false},
			{"behind it", good, r.Handle(), 64, 1, false},
			{"another handle", good, r.Handle() ^ 1, 0, 64, false},
			{"another tag", peer, r.Handle(), 0, 64, false},
		} {
			if got := tc.v.MayUse(tc.h, r.Address()+tc.off, tc.n); got != tc.want {
				t.Errorf("%s: %v", tc.what, got)
			}
		}
	}
	check()
	connect(t, good, peer)
	check()
	if err := n.DeregisterMem(r); err != nil {
		t.Fatal(err)
	}
	if good.MayUse(r.Handle(), r.Address(), 1) {
		t.Error("a region that is gone may be used")
	}
}

// TestReportCompletionError: the handler gets the error with the descriptor and the operation, and
// the VI moves to state Error. [VIA 5.2] [VIA-5.2-9]
func TestReportCompletionError(t *testing.T) {
	n := open(t, memvi.New(), "", nil)
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	told := make(chan vi.ErrorDescriptor, 1)
	n.ErrorCallback(func(e vi.ErrorDescriptor) { told <- e })
	d := vi.NewRDMAWrite(vi.RemoteSegment{})
	v.ReportCompletionError(d)
	e := <-told
	if e.Code != vi.ErrorCompProt || e.Resource != vi.ResourceDescriptor || e.Descriptor != d ||
		e.VI != v || e.OpCode != vi.OpRDMAWrite {
		t.Errorf("%+v", e)
	}
	if s := v.State(); s != vi.Error {
		t.Errorf("state %v", s)
	}
}

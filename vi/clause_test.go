package vi_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

// The tests below cover single requirements of the VI Architecture, out of reach of the suite for
// providers. They call the engine as a provider does, or use an unusual provider.

func region(t testing.TB, n *vi.NIC, size int, a vi.MemAttributes) *vi.Region {
	t.Helper()
	r, err := n.RegisterMem(make([]byte, size), a)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The result of checking a descriptor reaches the provider when the descriptor is started.
func TestVIA_3(t *testing.T) {
	const maxSegments = 3
	for _, limit := range []int{maxSegments, 0} {
		p := &puppet{limits: func(a *vi.NICAttributes) { a.MaxSegmentsPerDesc, a.RDMAReadSupport = limit, vi.ReliableReception }}
		v, l := p.connected(t, vi.Attributes{Reliability: vi.UnreliableDelivery, MaxTransferSize: 100})
		mem := region(t, v.NIC(), 200, vi.MemAttributes{})
		segments := func(n int) (s []vi.Segment) {
			for range n {
				s = append(s, mem.Segment(0, 1))
			}
			return s
		}
		longer := vi.NewSend(mem.Segment(0, 10))
		longer.Length++
		reserved := func(d *vi.Descriptor) *vi.Descriptor { d.Control |= 0x10; return d }
		illegal := vi.NewSend()
		illegal.Control = vi.OpMask
		foreign := vi.Segment{Address: mem.Address(), Handle: mem.Handle() ^ 1, Length: 1}
		beyond := vi.StatusFormatError
		if limit == 0 {
			beyond = 0
		}
		remote := vi.RemoteSegment{}
		for _, c := range []struct {
			row  string
			what string
			recv bool
			d    *vi.Descriptor
			want vi.Status
		}{
			{"VIA-3.2-1", "", false, illegal, vi.StatusFormatError},
			{"VIA-3.2-2", "reserved bit", true, reserved(vi.NewRecv()), vi.StatusFormatError},
			{"VIA-3.2-2", "operation", true, vi.NewRDMAWrite(remote), vi.StatusFormatError},
			{"VIA-3.2-2", "immediate and fence", true, vi.NewRecv(mem.Segment(0, 1)).WithImmediate(1).WithFence(), 0},
			{"VIA-3.2-3", "", false, reserved(vi.NewSend()), vi.StatusFormatError},
			{"VIA-3.6-1", "", false, vi.NewRDMAWrite(remote).WithImmediate(1), 0},
			{"VIA-4.3-2", "", false, vi.NewRDMARead(remote), vi.StatusFormatError},
			{"VIA-3.4-1", "none", false, vi.NewSend(), 0},
			{"VIA-3.4-1", "all", false, vi.NewSend(segments(maxSegments)...), 0},
			{"VIA-3.4-1", "one more", false, vi.NewSend(segments(maxSegments + 1)...), beyond},
			{"VIA-3.4-1", "receive, all", true, vi.NewRecv(segments(maxSegments)...), 0},
			{"VIA-3.4-1", "receive, one more", true, vi.NewRecv(segments(maxSegments + 1)...), beyond},
			{"VIA-3.4-2", "all", false, vi.NewRDMAWrite(remote, segments(maxSegments-1)...), 0},
			{"VIA-3.4-2", "one more", false, vi.NewRDMAWrite(remote, segments(maxSegments)...), beyond},
			{"VIA-3.4-3", "", false, vi.NewSend(vi.Segment{Handle: foreign.Handle}), 0},
			{"VIA-3.5-1", "", false, longer, vi.StatusLengthError},
			{"VIA-3.5-2", "all", false, vi.NewSend(mem.Segment(0, 100)), 0},
			{"VIA-3.5-2", "one more", false, vi.NewSend(mem.Segment(0, 101)), vi.StatusLengthError},
			{"VIA-1.5-4", "", false, vi.NewSend(foreign), vi.StatusProtectionError},
			{"VIA-1.5-5", "", true, vi.NewRecv(foreign), vi.StatusProtectionError},
		} {
			t.Run(c.row+"/"+c.what, func(t *testing.T) {
				var bad vi.Status
				if c.recv {
					if err := v.PostRecv(c.d); err != nil {
						t.Fatal(err)
					}
					d, seq, b, ok := l.ep.StartRecv()
					if !ok || d != c.d {
						t.Fatal("another descriptor, or none")
					}
					bad = b
					l.ep.FinishRecv(d, seq, vi.Delivery{Status: bad})
				} else {
					send(t, v, c.d)
					if l.ep.NextSend() != c.d {
						t.Fatal("another descriptor, or none")
					}
					s := l.start()
					bad = s.bad
					l.finish(s, bad)
				}
				if bad != c.want || c.d.Status()&vi.StatusErrorMask != c.want || c.d.Status()&vi.StatusDone == 0 {
					t.Errorf("found %#x, status %v, want %#x", uint32(bad), c.d.Status(), uint32(c.want))
				}
			})
		}
	}
}

// If two goroutines post the same descriptor at the same time, one post fails.
func TestVIA_3_3(t *testing.T) {
	t.Run("VIA-3.3-5", func(t *testing.T) {
		// Posting clears the status of an earlier use.
		v, l := (&puppet{}).connected(t, vi.Attributes{Reliability: vi.UnreliableDelivery})
		d := vi.NewSend()
		for range 2 {
			if send(t, v, d); d.Status() != 0 {
				t.Errorf("status %v of a descriptor that is posted", d.Status())
			}
			l.ep.NextSend()
			l.finish(l.start(), vi.StatusTransportError)
			if v.SendDone(); d.Status() != vi.StatusDone|vi.StatusTransportError {
				t.Errorf("status %v", d.Status())
			}
		}
		v = create(t, (&puppet{}).open(t), vi.Attributes{Reliability: vi.ReliableDelivery})
		for round := range 3000 {
			d := vi.NewSend()
			var ready, posted atomic.Int32
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					ready.Add(1)
					for spins := 0; ready.Load() < 2; spins++ {
						if spins > 1000 {
							runtime.Gosched()
						}
					}
					if v.PostSend(d) == nil {
						posted.Add(1)
					}
				})
			}
			wg.Wait()
			if n := posted.Load(); n != 1 {
				t.Fatalf("round %d: posted %d times", round, n)
			}
			if got, _ := v.SendDone(); got != d {
				t.Fatalf("round %d: not there", round)
			}
		}
	})
}

// A fence waits for the earlier reads. No other operation waits for reads.
func TestVIA_3_7(t *testing.T) {
	t.Run("VIA-3.7-1", func(t *testing.T) {
		v, l := (&puppet{}).connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
		for range 2 { // [VIA-8.3-13]
			send(t, v, vi.NewRDMARead(vi.RemoteSegment{}))
		}
		plain, fenced := send(t, v, vi.NewSend()), send(t, v, vi.NewSend().WithFence())
		var reads [2]started
		for i := range reads {
			l.ep.NextSend()
			reads[i] = l.start()
		}
		if l.ep.NextSend() != plain {
			t.Fatal("a send without a fence waits")
		}
		s := l.start()
		for _, r := range reads {
			if l.ep.NextSend() != nil {
				t.Fatal("a fenced send may start")
			}
			l.finish(r, 0)
		}
		if l.ep.NextSend() != fenced {
			t.Fatal("a fenced send waits for a send")
		}
		l.finish(s, 0)
		l.finish(l.start(), 0)
		send(t, v, vi.NewSend().WithFence())
		if l.ep.NextSend() == nil {
			t.Error("a fenced send waits for nothing")
		}
	})
}

// Sends complete in order. At a reliable level no further send starts after the first error.
func TestVIA_4_4(t *testing.T) {
	post := func(t *testing.T, level vi.Reliability) (v *vi.VI, l *puppetLink, s [3]started, last *vi.Descriptor) {
		v, l = (&puppet{}).connected(t, vi.Attributes{Reliability: level})
		for range s {
			send(t, v, vi.NewSend())
		}
		last = send(t, v, vi.NewSend())
		for i := range s {
			if l.ep.NextSend() == nil {
				t.Fatal("nothing to start")
			}
			s[i] = l.start()
		}
		return v, l, s, last
	}
	// done reaps the completed descriptors and returns their statuses.
	done := func(v *vi.VI) (out []vi.Status) {
		for {
			d, _ := v.SendDone()
			if d == nil {
				return out
			}
			out = append(out, d.Status()&vi.StatusErrorMask)
		}
	}
	expect := func(t *testing.T, what string, got []vi.Status, want ...vi.Status) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %d done, want %d", what, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: number %d: %#x, want %#x", what, i, uint32(got[i]), uint32(want[i]))
			}
		}
	}
	const bad = vi.StatusRDMAProtection
	t.Run("VIA-4.4-4", func(t *testing.T) {
		v, l, s, _ := post(t, vi.ReliableDelivery)
		if l.finish(s[2], 0) || l.finish(s[0], 0) {
			t.Error("broken by a success")
		}
		expect(t, "0 and 2 finished", done(v), 0)
		if !l.finish(s[1], bad) {
			t.Error("not broken by an error")
		}
		if d := l.ep.NextSend(); d != nil {
			t.Error("another send may start behind an error")
		}
		expect(t, "then 1 with an error", done(v), bad, vi.StatusFlushed)
	})
	t.Run("VIA-1.2-2", func(t *testing.T) { // the error of the first descriptor in the queue is found last
		v, l, s, _ := post(t, vi.ReliableDelivery)
		if l.finish(s[2], bad) || l.finish(s[1], bad) {
			t.Error("broken by what is not done")
		}
		if l.ep.NextSend() != nil {
			t.Error("another send may start behind an error")
		}
		expect(t, "1 and 2 finished", done(v))
		if !l.finish(s[0], 0) {
			t.Error("not broken by the errors behind it")
		}
		expect(t, "all", done(v), 0, bad, vi.StatusFlushed)
		if !l.ep.FailSend(s[2].seq, bad) {
			t.Error("forgotten that it is broken")
		}
	})
	t.Run("VIA-4.3-3", func(t *testing.T) { // an error without an effect on the connection does not end other operations
		v, l, s, last := post(t, vi.UnreliableDelivery)
		if l.finish(s[1], bad) || l.finish(s[0], bad) || l.finish(s[2], 0) {
			t.Error("broken at an unreliable level")
		}
		expect(t, "all", done(v), bad, bad, 0)
		if l.ep.NextSend() != last {
			t.Error("the next send may not start")
		}
		l.finish(l.start(), 0)
		expect(t, "the next", done(v), 0)
	})
}

// Done polls for arrivals itself before it returns ErrNotDone.
func TestVIA_6_4_Done(t *testing.T) {
	t.Run("VIA-6.4-8", func(t *testing.T) {
		v, l := (&puppet{}).connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
		polled := 0
		l.poll = func() bool {
			polled++
			if l.ep.NextSend() == nil {
				return false
			}
			l.finish(l.start(), 0)
			return true
		}
		for round := range 2 {
			d := send(t, v, vi.NewSend())
			if got, err := v.SendDone(); got != d || err != nil {
				t.Errorf("%v, %v", got, err)
			}
			if polled != round+1 {
				t.Errorf("polled %d times", polled)
			}
		}
		if _, err := v.SendDone(); err != vi.ErrQueueEmpty || polled != 2 {
			t.Errorf("an empty queue: %v, polled %d times", err, polled)
		}
		if err := v.PostRecv(vi.NewRecv()); err != nil {
			t.Fatal(err)
		}
		if _, err := v.RecvDone(); err != vi.ErrNotDone || polled != 3 {
			t.Errorf("nothing has come: %v, polled %d times", err, polled)
		}
	})
}

// Disconnect flushes the descriptors, and ends a connection or an attempt, in every state of a VI.
// Destroy needs empty queues.
func TestVIA_2_2(t *testing.T) {
	a := vi.Attributes{Reliability: vi.ReliableDelivery}
	t.Run("VIA-2.2-8", func(t *testing.T) {
		v, l := (&puppet{}).connected(t, a)
		started, waiting := send(t, v, vi.NewSend()), send(t, v, vi.NewSend())
		l.ep.NextSend()
		l.start()
		if err := v.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []*vi.Descriptor{started, waiting} {
			if d, _ := v.SendDone(); d != want || d.Status() != vi.StatusDone|vi.StatusFlushed {
				t.Errorf("status %v", want.Status())
			}
		}
		if r := <-l.stopped; r != vi.StopDisconnect || v.State() != vi.Idle {
			t.Errorf("stopped for %v, state %v", r, v.State())
		}
	})
	t.Run("VIA-2.3-5", func(t *testing.T) { // Disconnect in state Connect Pending
		made := make(chan *puppetLink, 1)
		p := &puppet{connect: func(ctx context.Context, l *puppetLink) error { <-ctx.Done(); made <- l; return nil }}
		v := create(t, p.open(t), a)
		here := vi.Address{Host: v.NIC().Query().LocalAddress}
		if err := v.ConnectPeerRequest(here, here, 0); err != nil {
			t.Fatal(err)
		}
		if err := v.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if r := <-(<-made).stopped; r != vi.StopDisconnect {
			t.Errorf("stopped for %v", r)
		}
		if _, err := v.ConnectPeerWait(t.Context()); !errors.Is(err, vi.ErrInvalidState) {
			t.Errorf("the attempt ends with %v", err)
		}
		if v.State() != vi.Idle || v.Link() != nil {
			t.Errorf("state %v", v.State())
		}
	})
	t.Run("VIA-2.2-13", func(t *testing.T) { // Disconnect in state Idle, without a change of state
		var log bytes.Buffer
		n := open(t, memvi.New(), "", &vi.Config{Logger: slog.New(slog.NewTextHandler(&log,
			&slog.HandlerOptions{Level: slog.LevelDebug}))})
		v := create(t, n, a)
		d := vi.NewRecv()
		if err := v.PostRecv(d); err != nil {
			t.Fatal(err)
		}
		if err := v.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if got, _ := v.RecvDone(); got != d || d.Status() != vi.StatusDone|vi.StatusOpReceive|vi.StatusFlushed {
			t.Errorf("%v", d.Status())
		}
		if strings.Contains(log.String(), "vi state") {
			t.Error(log.String())
		}
	})
	t.Run("VIA-2.2-17", func(t *testing.T) { // Destroy of a VI whose queues are not empty
		v := create(t, (&puppet{}).open(t), a)
		send(t, v, vi.NewSend())
		if err := v.Destroy(); !errors.Is(err, vi.ErrResource) {
			t.Errorf("with a send that was not dequeued: %v", err)
		}
		if d, _ := v.SendDone(); d == nil {
			t.Fatal("no send")
		}
		if err := v.Destroy(); err != nil {
			t.Error(err)
		}
	})
}

// A post in a race with the end of the VI completes, but calls no handler.
func TestVIA_2_3(t *testing.T) {
	for row, post := range map[string]func(*vi.VI, *vi.Descriptor, func()){"VIA-2.3-1": vi.PostRecvAcross, "VIA-2.3-2": vi.PostSendAcross} {
		t.Run(row, func(t *testing.T) {
			n := (&puppet{}).open(t)
			v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
			called := false
			handler := func(*vi.Descriptor) { called = true }
			if err := v.SendNotify(handler); err != nil {
				t.Fatal(err)
			}
			if err := v.RecvNotify(handler); err != nil {
				t.Fatal(err)
			}
			d := vi.NewRecv()
			post(v, d, func() {
				if err := v.Destroy(); err != nil {
					t.Error(err)
				}
			})
			if d.Status()&(vi.StatusErrorMask|vi.StatusDone) != vi.StatusFlushed|vi.StatusDone {
				t.Errorf("status %v", d.Status())
			}
			n.Close() // waits for handlers
			if called {
				t.Error("a handler of a VI that was destroyed is called") // [VIA-8.3-18]
			}
		})
	}
}

// CreateVI refuses attributes the NIC does not support, and accepts the largest supported values.
func TestVIA_6_4_Create(t *testing.T) {
	t.Run("VIA-6.4-5", func(t *testing.T) {
		p := &puppet{limits: func(a *vi.NICAttributes) {
			a.ReliabilityLevels, a.RDMAReadSupport = vi.UnreliableDelivery|vi.ReliableDelivery, vi.ReliableDelivery
			a.MaxTransferSize = 1000
		}}
		n := p.open(t)
		for _, c := range []struct {
			a    vi.Attributes
			want error
		}{
			{vi.Attributes{Reliability: vi.ReliableReception}, vi.ErrInvalidReliability},
			{vi.Attributes{Reliability: vi.UnreliableDelivery | vi.ReliableDelivery}, vi.ErrInvalidReliability},
			{vi.Attributes{}, vi.ErrInvalidReliability},
			{vi.Attributes{Reliability: vi.UnreliableDelivery}, nil},
			{vi.Attributes{Reliability: vi.ReliableDelivery, MaxTransferSize: 1000}, nil},
			{vi.Attributes{Reliability: vi.ReliableDelivery, MaxTransferSize: 1001}, vi.ErrInvalidMTU},
			{vi.Attributes{Reliability: vi.ReliableDelivery, EnableRDMARead: true}, nil},
			{vi.Attributes{Reliability: vi.UnreliableDelivery, EnableRDMARead: true}, vi.ErrInvalidRDMARead},
			{vi.Attributes{Reliability: vi.ReliableDelivery, ReadWindow: 1}, nil},
			{vi.Attributes{Reliability: vi.ReliableDelivery, ReadWindow: -1}, vi.ErrInvalidParameter},
		} {
			if _, err := n.CreateVI(c.a, nil, nil); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v, want %v", c.a, err, c.want)
			}
		}
		v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
		if _, a, _, _ := v.Query(); a.MaxTransferSize != 1000 {
			t.Errorf("transfers of %d bytes by default", a.MaxTransferSize)
		}
	})
	t.Run("VIA-4.5-1", func(t *testing.T) {
		p := &puppet{limits: func(a *vi.NICAttributes) { a.ReliabilityLevels = vi.ReliableReception }}
		if _, err := p.open(t).CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil); !errors.Is(err, vi.ErrInvalidReliability) {
			t.Error(err)
		}
	})
}

// Deregistering a region releases its protection tag.
func TestVIA_6_4_Deregister(t *testing.T) {
	t.Run("VIA-6.4-3", func(t *testing.T) {
		n, other := (&puppet{}).open(t), (&puppet{}).open(t)
		tag, err := n.CreatePtag()
		if err != nil {
			t.Fatal(err)
		}
		r := region(t, n, 10, vi.MemAttributes{Ptag: tag})
		theirs := region(t, other, 10, vi.MemAttributes{})
		for _, bad := range []*vi.Region{nil, theirs} {
			if err := n.DeregisterMem(bad); !errors.Is(err, vi.ErrInvalidParameter) {
				t.Errorf("a region that is not the NIC's: %v", err)
			}
		}
		if err := n.DestroyPtag(tag); !errors.Is(err, vi.ErrResource) {
			t.Errorf("a tag in use: %v", err)
		}
		if err := n.DeregisterMem(r); err != nil {
			t.Fatal(err)
		}
		if err := n.DeregisterMem(r); !errors.Is(err, vi.ErrInvalidParameter) {
			t.Errorf("twice: %v", err)
		}
		if err := n.DestroyPtag(tag); err != nil {
			t.Errorf("a tag that is free again: %v", err)
		}
		if err := other.DeregisterMem(theirs); err != nil {
			t.Error(err)
		}
	})
}

// The name service asks the provider for names missing in Config.Hosts.
func TestVIA_6_4_Names(t *testing.T) {
	t.Run("VIA-6.4-28", func(t *testing.T) {
		broken := errors.New("no server")
		p := &puppet{lookup: func(name string) ([][]byte, error) {
			if name != "known" {
				return nil, broken
			}
			return [][]byte{{1}, {2}}, nil
		}}
		n := p.openWith(t, &vi.Config{Hosts: []byte("mem3 three\n")})
		for _, opened := range []bool{false, true, false} {
			if opened {
				if err := n.NSInit(); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range []struct {
				name  string
				index int
				want  []byte
			}{
				{"mem7", 0, []byte("mem\x07")}, {"three", 0, []byte("mem\x03")}, {"THREE", 0, []byte("mem\x03")}, {"known", 0, []byte{1}}, {"known", 1, []byte{2}},
				{"known", 2, nil}, {"known", -1, nil}, {"mem7", 1, nil}, {"three", 1, nil}, {"unknown", 0, nil},
			} {
				got, err := n.NSGetHostByName(t.Context(), c.name, c.index)
				if !opened {
					c.want = nil
				}
				if !bytes.Equal(got, c.want) || (err == nil) != (c.want != nil) ||
					err != nil && !errors.Is(err, vi.ErrNameService) {
					t.Errorf("number %d of %s, opened %v: %x, %v", c.index, c.name, opened, got, err)
				}
				if opened && errors.Is(err, broken) != (c.name == "unknown") {
					t.Errorf("%s: the cause is missing, or another's: %v", c.name, err)
				}
			}
			if err := n.NSShutdown(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Reject returns an error if the refusal can't be sent.
func TestVIA_6_4_Reject(t *testing.T) {
	t.Run("VIA-6.4-17", func(t *testing.T) {
		for _, want := range []error{nil, vi.ErrNotReachable} {
			p := &puppet{wait: func() (vi.Request, error) { return &puppetRequest{reject: want}, nil }}
			r, err := p.open(t).ConnectWait(t.Context(), vi.Address{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Reject(); err != want {
				t.Errorf("%v, want %v", err, want)
			}
			if err := r.Reject(); !errors.Is(err, vi.ErrInvalidParameter) {
				t.Errorf("twice: %v", err)
			}
		}
	})
}

type puppetRequest struct {
	vi.Request
	reject error
}

func (r *puppetRequest) Reject() error { return r.reject }

// Close closes the device once, and drops the unreported errors.
func TestVIA_6_4_Close(t *testing.T) {
	t.Run("VIA-6.4-1", func(t *testing.T) {
		p := &puppet{closeErr: errors.New("device in flames")}
		n := p.open(t)
		entered, release := make(chan struct{}), make(chan struct{})
		told := 0
		n.ErrorCallback(func(vi.ErrorDescriptor) {
			if told++; told == 1 {
				close(entered)
				<-release
			}
		})
		v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
		vi.Raise(v, vi.ErrorConnLost)
		<-entered
		vi.Raise(v, vi.ErrorConnLost)
		if err := n.Close(); err != p.closeErr {
			t.Errorf("closed: %v", err)
		}
		vi.Raise(v, vi.ErrorConnLost)
		if err := n.Close(); err != nil || p.closed != 1 {
			t.Errorf("closed again: %v; the device %d times", err, p.closed)
		}
		close(release)
		vi.WaitForErrors(n)
		if told != 1 {
			t.Errorf("%d errors told", told)
		}
	})
}

package vitcp

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/samehost"
	"viaduct/vi"
)

// A send whose memory was unmapped ends with a protection error. This holds whether the process or
// the kernel copies the bytes; the error of the kernel does not name the descriptor. Earlier sends
// were sent, and later sends are flushed. [VIA-4.6-2] [V-30]
func TestUnmappedSend(t *testing.T) {
	guarded, breaks := vi.MemAttributes{Guarded: true}, vi.MemAttributes{Guarded: true, FaultBreaks: true}
	for _, c := range []struct {
		size  int
		attrs vi.MemAttributes
	}{
		{100, guarded}, {1 << 20, guarded}, {100, breaks}, {1 << 20, breaks},
		{4 * 65511, vi.MemAttributes{}}, // whole segments, which only the kernel reads
	} {
		size := c.size
		cfg := Config{}
		if !c.attrs.Guarded {
			cfg.SameHost = samehost.Off // otherwise the process itself would copy into shared memory
		}
		p := connectPair(t, cfg, withLevel(reliableAll, vi.ReliableReception))
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(t, err)
		v := p.a
		r, err := v.NIC().RegisterMem(mem, c.attrs)
		must(t, err)
		sink, err := p.b.NIC().RegisterMem(make([]byte, size), vi.MemAttributes{})
		must(t, err)
		must(t, p.b.PostRecv(vi.NewRecv(sink.Segment(0, size))))
		for range 2 {
			must(t, p.b.PostRecv(vi.NewRecv()))
		}
		good, bad, late := vi.NewSend(r.Segment(0, size)), vi.NewSend(r.Segment(0, size)), vi.NewSend()
		must(t, v.PostSend(good))
		if _, err := waitSend(t, v); err != nil {
			t.Fatalf("%d bytes, %+v, while it is mapped: %v", size, c.attrs, err)
		}
		// This has the effect of unmapping, but no other mapping of the process can get the
		// address.
		must(t, unix.Mprotect(mem, unix.PROT_NONE))
		defer unix.Munmap(mem)
		_, err = v.PostSends([]*vi.Descriptor{bad, late})
		must(t, err)
		for _, d := range []*vi.Descriptor{bad, late} {
			want := vi.StatusDone | vi.StatusProtectionError
			if d == late {
				want = vi.StatusDone | vi.StatusFlushed
			}
			if got, _ := waitSend(t, v); got != d || d.Status() != want {
				t.Errorf("%d bytes, %+v: status %v, expected %v", size, c.attrs, d.Status(), want)
			}
		}
		freed := make(chan error, 1)
		go func() { freed <- v.NIC().DeregisterMem(r) }()
		select {
		case err := <-freed:
			must(t, err)
		case <-time.After(patience):
			t.Fatalf("%d bytes, %+v: a pin is kept", size, c.attrs)
		}
	}
}

// If memory is unmapped after the kernel has taken a part, the send ends with a protection error
// too. With FaultBreaks the stream may end within a segment. [VIA-4.6-2]
func TestUnmappedWhileSending(t *testing.T) {
	const size = 64 << 20 // more than the sockets hold
	for _, breaks := range []bool{false, true} {
		s := serveProbe(t, sessionOpts{cfg: drainLong, attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(t, err)
		r, err := s.n.RegisterMem(mem, vi.MemAttributes{Guarded: true, FaultBreaks: breaks})
		must(t, err)
		must(t, s.v.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{}, segment(r, 0, size))))
		first := s.recv()
		must(t, unix.Mprotect(mem, unix.PROT_NONE))
		defer unix.Munmap(mem)
		torn := false
		for {
			x, err := s.tryRecv()
			if err != nil {
				if torn = err != io.EOF; errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the stream does not end")
				}
				break
			}
			if x.h.Type != first.h.Type && x.h.Type != vitcpwire.NOP {
				t.Fatalf("%v", x.h)
			}
		}
		if torn && !breaks {
			t.Error("the stream ends within a segment")
		}
		if d, err := waitSend(t, s.v); err == nil || d.Status()&vi.StatusProtectionError == 0 {
			t.Errorf("%v, %v", d.Status(), err)
		}
		waitState(t, s.v, vi.Error)
	}
}

// Memory is unmapped while a part of it waits for room in the socket, and is then deregistered. The
// send ends with a protection error, because the rest can't be copied. [VIA-4.6-2]
func TestUnmappedWhileDeregistering(t *testing.T) {
	const size = 64 << 20 // more than the sockets hold
	s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(mem)
	r, err := s.n.RegisterMem(mem, vi.MemAttributes{Guarded: true, FaultBreaks: true})
	must(t, err)
	d := vi.NewRDMAWrite(vi.RemoteSegment{}, segment(r, 0, size))
	must(t, s.v.PostSend(d))
	l := s.v.Link().(*link)
	sent := uint64(0)
	testkit.Eventually(t, "the socket is full", func() bool {
		before := sent
		sent = l.count.sentBytes.Load()
		return sent > 0 && sent == before
	})
	must(t, unix.Mprotect(mem, unix.PROT_NONE))
	freed := make(chan error, 1)
	go func() { freed <- s.n.DeregisterMem(r) }()
	must(t, testkit.Await(t, "the end of all pins", freed))
	s.wantEndAny()
	if got, err := waitSend(t, s.v); got != d || err == nil ||
		d.Status()&vi.StatusErrorMask != vi.StatusProtectionError {
		t.Errorf("%v, %v", d.Status(), err)
	}
	waitState(t, s.v, vi.Error)
}

// A peer's long RDMA Write to unmapped memory fails on each path, however many bytes could be
// placed. The process survives, and no pin remains. [VIA-4.6-2]
func TestUnmappedTarget(t *testing.T) {
	const size = 1 << 20
	for _, policy := range []samehost.Policy{samehost.Auto, samehost.Off} {
		for _, attrs := range []vi.MemAttributes{{Guarded: true, EnableRDMAWrite: true}, {Guarded: true, FaultBreaks: true, EnableRDMAWrite: true}} {
			for _, room := range []int{0, 4096, 100 << 10, 700 << 10} {
				p := connectPair(t, Config{SameHost: policy}, withLevel(reliableAll, vi.ReliableReception))
				mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
				must(t, err)
				defer unix.Munmap(mem)
				v := p.b
				r, err := v.NIC().RegisterMem(mem, attrs)
				must(t, err)
				source, err := p.a.NIC().RegisterMem(make([]byte, size), vi.MemAttributes{})
				must(t, err)
				write := func() *vi.Descriptor {
					d := vi.NewRDMAWrite(r.Remote(0), source.Segment(0, size))
					must(t, p.a.PostSend(d))
					return d
				}
				for range 3 { // the following frames are read ahead
					write()
					if _, err := waitSend(t, p.a); err != nil {
						t.Fatalf("%v, %+v, while it is mapped: %v", policy, attrs, err)
					}
				}
				must(t, unix.Mprotect(mem[room:], unix.PROT_NONE))
				d := write()
				if got, err := waitSend(t, p.a); got != d || err == nil {
					t.Errorf("%v, %+v, %d bytes there: status %v", policy, attrs, room, d.Status())
				}
				waitState(t, v, vi.Error)
				freed := make(chan error, 1)
				go func() { freed <- v.NIC().DeregisterMem(r) }()
				select {
				case err := <-freed:
					must(t, err)
				case <-time.After(patience):
					t.Fatalf("%v, %+v, %d bytes there: a pin is kept", policy, attrs, room)
				}
			}
		}
	}
}

// Memory is unmapped while a part of it waits for room in shared memory. The send ends with a
// protection error, and the process survives. [VIA-4.6-2]
func TestUnmappedWhileSharing(t *testing.T) {
	const size = 1 << 20 // more than the ring holds at first
	for _, level := range []vi.Reliability{vi.ReliableDelivery, vi.ReliableReception} {
		p := connectPair(t, Config{}, withLevel(reliableAll, level))
		if !p.a.Path().SharedMemory {
			t.Skipf("SKIPPED: the bytes go by TCP: %s", p.a.Path().Why)
		}
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(t, err)
		defer unix.Munmap(mem)
		r, err := p.a.NIC().RegisterMem(mem, vi.MemAttributes{Guarded: true, FaultBreaks: true})
		must(t, err)
		sink, err := p.b.NIC().RegisterMem(make([]byte, size), vi.MemAttributes{EnableRDMAWrite: true})
		must(t, err)
		d := vi.NewRDMAWrite(sink.Remote(0), r.Segment(0, size))
		p.b.Link().(*link).c.WithReceiver(func() {
			must(t, p.a.PostSend(d))
			must(t, unix.Mprotect(mem, unix.PROT_NONE))
		})
		if got, err := waitSend(t, p.a); got != d || err == nil || d.Status()&vi.StatusProtectionError == 0 {
			t.Errorf("%v: status %v, %v", level, d.Status(), err)
		}
		waitState(t, p.a, vi.Error)
		waitState(t, p.b, vi.Error)
		must(t, p.a.NIC().DeregisterMem(r))
	}
}

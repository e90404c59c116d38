package bench

import (
	"context"
	"errors"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/samehost"
	"viaduct/vi"
)

// receivesFor returns the number and the length of the posted receives.
func receivesFor(s spec) (count, size int) {
	switch s.Op {
	case OpSend:
		return 2 * s.window(), max(64, s.Size)
	case OpPoll, OpWait:
		return 16, max(64, s.Size)
	case OpIdle:
		return 1, 64
	}
	return 4, 64
}

// benchOptions returns the options of a measurement, without a log and without a recording.
func benchOptions(s spec) *transport.Options {
	return &transport.Options{Env: shell.NewEnv(), Congestion: s.Congestion}
}

// A viLane is a VI with descriptors made in advance.
type viLane struct {
	s    spec
	nic  *vi.NIC
	v    *vi.VI
	ptag *vi.Ptag
	mem  *vi.Region
	window[*vi.Descriptor]
	small *vi.Descriptor // descriptor for send
	recvs *vi.Region
}

func newVILane(s spec, nic *vi.NIC, u *addr.URL) (*viLane, error) {
	a := transport.VIAttributes(u, uint32(max(s.Size, 64<<10)))
	var err error
	l := &viLane{s: s, nic: nic}
	if l.ptag, err = nic.CreatePtag(); err != nil {
		return nil, err
	}
	a.Ptag = l.ptag
	if a.ReadWindow == 0 {
		a.ReadWindow = 64
	}
	if l.v, err = nic.CreateVI(a, nil, nil); err != nil {
		return nil, err
	}
	work := footprint
	if s.bare() {
		work = 64
	}
	if l.mem, err = nic.RegisterMem(make([]byte, max(work, s.Size)), vi.MemAttributes{Ptag: l.ptag, EnableRDMAWrite: true, EnableRDMARead: true}); err != nil {
		return nil, err
	}
	count, size := receivesFor(s)
	if s.Op == OpIdle {
		l.recvs = l.mem // the least a connection needs, without memory for a measurement
	} else if l.recvs, err = nic.RegisterMem(make([]byte, count*size), vi.MemAttributes{Ptag: l.ptag}); err != nil {
		return nil, err
	}
	for i := range count {
		if err := l.v.PostRecv(vi.NewRecv(l.recvs.Segment(i*size, size))); err != nil {
			return nil, err
		}
	}
	if s.Op != OpIdle {
		l.small = vi.NewSend(l.mem.Segment(0, s.Size))
	}
	return l, nil
}

func (l *viLane) path() samehost.Path { return l.v.Path() }

// use makes the descriptors of the window for the target.
func (l *viLane) use(t target) {
	if l.s.bare() {
		return
	}
	slots := max(1, l.mem.Len()/max(1, l.s.Size))
	for i := range l.s.window() {
		off := i % slots * l.s.Size
		seg := l.mem.Segment(off, l.s.Size)
		there := vi.RemoteSegment{Address: t.Address + uint64(off), Handle: vi.MemHandle(t.Handle)}
		var d *vi.Descriptor
		switch l.s.Op {
		case OpWrite, OpRate:
			d = vi.NewRDMAWrite(there, seg)
		case OpRead:
			d = vi.NewRDMARead(there, seg)
		default:
			d = vi.NewSend(seg)
		}
		l.ring = append(l.ring, d)
	}
}

func (l *viLane) target() target {
	r := l.mem.Remote(0)
	return target{r.Address, uint32(r.Handle)}
}

func (l *viLane) post(n int) error { return l.postRing(n, l.v.PostSends) }

func (l *viLane) reap(ctx context.Context, poll bool) (int, error) {
	n := 0
	for l.left > 0 {
		_, err := l.v.SendDone()
		if errors.Is(err, vi.ErrNotDone) {
			if n > 0 {
				break
			}
			if poll {
				if ctx.Err() != nil {
					return 0, ctx.Err()
				}
				continue
			}
			_, err = l.v.SendWait(ctx)
		}
		if err != nil {
			return n, err
		}
		n++
		l.left--
	}
	return n, nil
}

func (l *viLane) send(ctx context.Context, n int, poll bool) error {
	l.small.Segments[0] = l.mem.Segment(0, n)
	l.small.Length = uint32(n)
	if err := l.v.PostSend(l.small); err != nil {
		return err
	}
	l.left++
	_, err := l.reap(ctx, poll)
	return err
}

func (l *viLane) recv(ctx context.Context, poll bool) (int, error) {
	var d *vi.Descriptor
	var err error
	if poll {
		for i := 0; ; i++ {
			if d, err = l.v.RecvDone(); !errors.Is(err, vi.ErrNotDone) {
				break
			}
			if i&0xfff == 0 && ctx.Err() != nil {
				return 0, ctx.Err()
			}
		}
	} else {
		d, err = l.v.RecvWait(ctx)
	}
	if err != nil {
		return 0, err
	}
	n := int(d.Length)
	d.Length = uint32(d.Capacity())
	return n, l.v.PostRecv(d)
}

func (l *viLane) close() {
	l.v.Disconnect()
	transport.EmptyVI(l.v)
	l.nic.DeregisterMem(l.mem)
	if l.recvs != l.mem {
		l.nic.DeregisterMem(l.recvs)
	}
	l.v.Destroy()
	l.nic.DestroyPtag(l.ptag)
}

// A viHost is a NIC for accepting the VIs of the lanes.
type viHost struct {
	s    spec
	u    *addr.URL
	nic  *vi.NIC
	here vi.Address
}

func openVI(s spec) (host, error) {
	u, err := addr.Parse(s.scheme() + "://" + s.Host + ":0/bench" + s.query())
	if err != nil {
		return nil, err
	}
	nic, at, err := transport.OpenVINIC(u, benchOptions(s), true)
	if err != nil {
		return nil, err
	}
	h := &viHost{s: s, nic: nic, u: u.WithPort(at)}
	h.here = vi.Address{Host: nic.Query().LocalAddress, Discriminator: u.Disc}
	return h, nil
}

func (h *viHost) url() string { return h.u.String() }

func (h *viHost) accept(ctx context.Context) (lane, target, error) {
	r, err := h.nic.ConnectWait(ctx, h.here)
	if err != nil {
		return nil, target{}, err
	}
	l, err := newVILane(h.s, h.nic, h.u)
	if err == nil {
		err = r.Accept(ctx, l.v)
	}
	if err != nil {
		return nil, target{}, err
	}
	l.use(target{})
	return l, l.target(), nil
}

func (h *viHost) close() { h.nic.Close() }

// A viDialer shares one NIC between the lanes of a client.
type viDialer struct {
	s   spec
	u   *addr.URL
	nic *vi.NIC
}

func newVIDialer(s spec, u *addr.URL) (dialer, error) {
	nic, _, err := transport.OpenVINIC(u, benchOptions(s), false)
	if err != nil {
		return nil, err
	}
	return &viDialer{s, u, nic}, nil
}

func (d *viDialer) dial(ctx context.Context) (dialed, error) {
	l, err := newVILane(d.s, d.nic, d.u)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, transport.SetupTimeout)
	defer cancel()
	remote, err := transport.VIAddress(ctx, d.u, &transport.Options{})
	if err == nil {
		_, err = l.v.ConnectRequest(ctx,
			vi.Address{Host: d.nic.Query().LocalAddress, Discriminator: []byte("bench-client")}, remote)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (d *viDialer) close() { d.nic.Close() }

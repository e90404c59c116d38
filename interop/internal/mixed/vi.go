package mixed

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"viaduct/samehost"
	"viaduct/vi"
)

// service is the discriminator at which nodes listen.
const service = "mixed"

// A viNode has a NIC for listening and a NIC for dialling, each opened on demand.
type viNode struct {
	s       Settings
	open    func(listen string) (*vi.NIC, error)
	mu      sync.Mutex
	dials   *vi.NIC
	all     []*vi.NIC
	regions atomic.Int64
}

func (n *viNode) nic(listen string) (*vi.NIC, error) {
	nic, err := n.open(listen)
	if err != nil {
		return nil, err
	}
	nic.ErrorCallback(func(vi.ErrorDescriptor) {}) // errors are taken from the descriptors
	n.mu.Lock()
	n.all = append(n.all, nic)
	n.mu.Unlock()
	return nic, nil
}

func (n *viNode) Regions() int { return int(n.regions.Load()) }

func (n *viNode) Close() (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, nic := range n.all {
		err = errors.Join(err, nic.Close())
	}
	n.all, n.dials = nil, nil
	return err
}

// A vis implements verbs on a VI.
type vis struct {
	node *viNode
	nic  *vi.NIC
	v    *vi.VI
	ptag *vi.Ptag
	r    *vi.Region
}

// newVI creates a VI with the memory and the receives of a message connection.
func (n *viNode) newVI(nic *vi.NIC, m *message) (*vis, error) {
	v := &vis{node: n, nic: nic}
	var err error
	if v.ptag, err = nic.CreatePtag(); err != nil {
		return nil, err
	}
	if v.r, err = nic.RegisterMem(m.mem, vi.MemAttributes{Ptag: v.ptag, EnableRDMAWrite: true, EnableRDMARead: true}); err != nil {
		return nil, errors.Join(err, nic.DestroyPtag(v.ptag))
	}
	n.regions.Add(1)
	a := vi.Attributes{Reliability: vi.ReliableReception, EnableRDMAWrite: true, EnableRDMARead: true, FlowControl: true, Ptag: v.ptag, MaxTransferSize: 1 << 20}
	if v.v, err = nic.CreateVI(a, nil, nil); err != nil {
		return nil, errors.Join(err, v.free())
	}
	if err = m.prepare(v); err != nil {
		return nil, errors.Join(err, v.free())
	}
	return v, nil
}

func (n *viNode) Dial(ctx context.Context, address string, p Plan) (Conn, error) {
	ap, err := addrPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	nic := n.dials
	n.mu.Unlock()
	if nic == nil {
		if nic, err = n.nic(""); err != nil {
			return nil, err
		}
		n.mu.Lock()
		n.dials = nic
		n.mu.Unlock()
	}
	m := newMessage(p, true)
	v, err := n.newVI(nic, m)
	if err != nil {
		return nil, err
	}
	here := vi.Address{Discriminator: []byte("c-" + rand.Text()[:12])}
	if _, err := v.v.ConnectRequest(ctx, here, vi.IPAddress(ap, service)); err != nil {
		v.v.Disconnect()
		return nil, errors.Join(err, v.free())
	}
	return m, nil
}

// accepts is the number of concurrent waits for connection requests.
const accepts = 16

func (n *viNode) Listen(ctx context.Context, hostPort string, p Plan, serve func(Conn)) (string, func(), error) {
	nic, err := n.nic(hostPort)
	if err != nil {
		return "", nil, err
	}
	local := vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte(service)}
	ap, _ := local.AddrPort()
	var all sync.WaitGroup
	for range accepts {
		all.Go(func() {
			for {
				r, err := nic.ConnectWait(ctx, local)
				if err != nil {
					return
				}
				m := newMessage(p, false)
				v, err := n.newVI(nic, m)
				if err != nil {
					r.Reject()
					continue
				}
				if err := r.Accept(ctx, v.v); err != nil {
					r.Reject()
					v.v.Disconnect()
					v.free()
					continue
				}
				all.Go(func() { serve(m) })
			}
		})
	}
	return net.JoinHostPort(ap.Addr().String(), strconv.Itoa(int(ap.Port()))), all.Wait, nil
}

func (v *vis) region() place { return place{v.r.Address(), uint32(v.r.Handle())} }

func (v *vis) send(id uint64, d *vi.Descriptor) error {
	d.Context = id
	return v.v.PostSend(d)
}

func remoteSegment(p place) vi.RemoteSegment {
	return vi.RemoteSegment{Address: p.address, Handle: vi.MemHandle(p.handle)}
}

func (v *vis) postSend(id uint64, off, n int) error {
	return v.send(id, vi.NewSend(v.r.Segment(off, n)))
}

func (v *vis) postWrite(id uint64, off, n int, to place) error {
	return v.send(id, vi.NewRDMAWrite(remoteSegment(to), v.r.Segment(off, n)))
}

func (v *vis) postRead(id uint64, off, n int, from place) error {
	return v.send(id, vi.NewRDMARead(remoteSegment(from), v.r.Segment(off, n)))
}

func (v *vis) postRecv(id uint64, off, n int) error {
	d := vi.NewRecv(v.r.Segment(off, n))
	d.Context = id
	return v.v.PostRecv(d)
}

// result converts the result of SendWait or RecvWait to a completion. It returns false without a
// descriptor.
func result(d *vi.Descriptor, err error) (completion, bool) {
	if d == nil {
		return completion{}, false
	}
	return completion{d.Context.(uint64), int(d.Length), err}, true
}

func (v *vis) waitSend(ctx context.Context) (completion, bool) { return result(v.v.SendWait(ctx)) }
func (v *vis) waitRecv(ctx context.Context) (completion, bool) { return result(v.v.RecvWait(ctx)) }
func (v *vis) path() samehost.Path                             { return v.v.Path() }
func (v *vis) close() error                                    { return v.v.Disconnect() }
func (v *vis) abort()                                          { v.v.Disconnect() }

// free releases all resources. It first takes the remaining completions.
func (v *vis) free() (err error) {
	if v.v != nil {
		v.v.Disconnect()
		for _, done := range []func() (*vi.Descriptor, error){v.v.SendDone, v.v.RecvDone} {
			for d, _ := done(); d != nil; d, _ = done() {
			}
		}
	}
	err = v.nic.DeregisterMem(v.r)
	v.node.regions.Add(-1)
	if v.v != nil {
		err = errors.Join(err, v.v.Destroy())
	}
	return errors.Join(err, v.nic.DestroyPtag(v.ptag))
}

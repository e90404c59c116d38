package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"viaduct/fcvi"
	"viaduct/vi"
	"viaduct/vitcp"
)

// viEndpoint measures package vi.
type viEndpoint struct {
	// open opens a NIC that listens at the address listen, or only dials if listen is "".
	open func(m measure, listen string) (*vi.NIC, error)
}

// viHello is the peer's announcement.
type viHello struct {
	Port   uint16           `json:"port"`
	Remote vi.RemoteSegment `json:"remote"`
}

const discriminator = "bench"

// spareRecvs is how many receives the peer of a Send stream keeps posted on each connection,
// besides the receives for outstanding messages.
const spareRecvs = 256

// pingRecvs is how many receives both sides of a ping-pong keep posted. With a single receive, flow
// control would need a separate message to announce each new receive.
const pingRecvs = 16

// grace is how long a connection request waits for the matching request of the peer.
const grace = time.Minute

// openVITCP opens a NIC of VI/TCP.
func openVITCP(m measure, listen string) (*vi.NIC, error) {
	p, err := vitcp.New(vitcp.Config{Listen: listen, Congestion: m.Congestion, SameHost: m.sameHost(), Grace: grace})
	if err != nil {
		return nil, err
	}
	return vi.Open(p, "", nil)
}

// openFCVI opens a NIC of FC-VI over FCIP links.
func openFCVI(m measure, listen string) (*vi.NIC, error) {
	p, err := fcvi.New(fcvi.Config{Listen: listen, Congestion: m.Congestion, SameHost: m.sameHost(), Linger: grace})
	if err != nil {
		return nil, err
	}
	return vi.Open(p, "", nil)
}

func viAttributes(m measure) vi.Attributes {
	a := vi.Attributes{
		Reliability:     vi.ReliableReception,
		MaxTransferSize: uint32(max(m.Size, 64<<10)),
		EnableRDMAWrite: true, EnableRDMARead: true, FlowControl: true,
		ReadWindow: 64,
	}
	if m.Level == "delivery" {
		a.Reliability = vi.ReliableDelivery
	}
	return a
}

// viPort returns the TCP port of a listening NIC.
func viPort(nic *vi.NIC) (uint16, error) {
	ap, ok := (vi.Address{Host: nic.Query().LocalAddress}).AddrPort()
	if !ok {
		return 0, errors.New("the NIC's address is no IP address")
	}
	if ap.Port() == 0 {
		return 0, errors.New("the NIC does not tell its port")
	}
	return ap.Port(), nil
}

func (e viEndpoint) serve(m measure, announce func(any) error, mark func()) error {
	nic, err := e.open(m, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer nic.Close()
	mem, err := m.buffer()
	if err != nil {
		return err
	}
	region, err := nic.RegisterMem(mem, vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true})
	if err != nil {
		return err
	}
	port, err := viPort(nic)
	if err != nil {
		return err
	}
	if m.Op == opIdle {
		mark() // before the first connection begins
	}
	if err := announce(viHello{port, region.Remote(0)}); err != nil {
		return err
	}
	if m.Op == opSetup {
		return viServeSetup(nic, m)
	}
	var wg sync.WaitGroup
	for i := range m.Conns {
		v, err := nic.CreateVI(viAttributes(m), nil, nil)
		if err != nil {
			return err
		}
		ds, err := viPostRecvs(v, region, m)
		if err != nil {
			return err
		}
		req, err := nic.ConnectWait(context.Background(), vi.Address{Discriminator: []byte(discriminator)})
		if err != nil {
			return err
		}
		if i == m.Conns-1 && m.Op != opIdle {
			mark()
		}
		if err := req.Accept(context.Background(), v); err != nil {
			return err
		}
		if m.Op == opIdle {
			continue
		}
		wg.Go(func() { viServeConn(v, region, m, ds) })
	}
	m.outlast(&wg, mark)
	return nil
}

func viPostRecvs(v *vi.VI, region *vi.Region, m measure) ([]*vi.Descriptor, error) {
	n := 4
	if m.Op == opPing {
		n = pingRecvs
	} else if m.Op == opSend {
		n = m.Depth + spareRecvs
	} else if m.Op == opIdle {
		n = 0
	}
	ds := make([]*vi.Descriptor, n)
	for i := range ds {
		ds[i] = vi.NewRecv(region.Segment(i%m.slots()*m.Size, m.Size))
	}
	_, err := v.PostRecvs(ds)
	return ds, err
}

// viServeConn serves a connection until the initiator disconnects. It answers the last message of a
// stream, or every message of a ping-pong. ds are the posted receives.
func viServeConn(v *vi.VI, region *vi.Region, m measure, ds []*vi.Descriptor) {
	reply := vi.NewSend(region.Segment(0, min(m.Size, region.Len())))
	again := make([]*vi.Descriptor, 0, len(ds))
	for {
		d, err := viRecv(v, m.Wait || m.Op != opPing)
		if err != nil {
			return // disconnected
		}
		last := d.Status()&vi.StatusImmediate != 0
		answer := last || m.Op == opPing
		if answer && v.PostSend(reply) != nil { // answer first, because the peer waits for it
			return
		}
		if m.Op == opPing {
			if v.PostRecv(d) != nil {
				return
			}
		} else if again = append(again, d); len(again) >= spareRecvs/4 || last {
			if _, err := v.PostRecvs(again); err != nil {
				return
			}
			again = again[:0]
		}
		if answer && viSent(v, m.Wait) != nil {
			return
		}
	}
}

// viRecv reaps a receive, by polling or by waiting.
func viRecv(v *vi.VI, wait bool) (*vi.Descriptor, error) {
	if wait {
		return v.RecvWait(context.Background())
	}
	for {
		d, err := v.RecvDone()
		if err != vi.ErrNotDone {
			return d, err
		}
	}
}

// viSent reaps a send, by polling or by waiting. It returns an error if the send failed.
func viSent(v *vi.VI, wait bool) error {
	if wait {
		_, err := v.SendWait(context.Background())
		return err
	}
	for {
		if _, err := v.SendDone(); err != vi.ErrNotDone {
			return err
		}
	}
}

func (e viEndpoint) dial(m measure, hello json.RawMessage) (result, error) {
	var h viHello
	if err := json.Unmarshal(hello, &h); err != nil {
		return result{}, err
	}
	nic, err := e.open(m, "")
	if err != nil {
		return result{}, err
	}
	defer nic.Close()
	mem, err := m.buffer()
	if err != nil {
		return result{}, err
	}
	region, err := nic.RegisterMem(mem, vi.MemAttributes{})
	if err != nil {
		return result{}, err
	}
	target := vi.IPAddress(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), h.Port), discriminator)
	if m.Op == opSetup {
		return viSetups(nic, m, target)
	}
	var cq *vi.CompletionQueue
	if m.Conns > 1 && m.Op != opIdle {
		if cq, err = nic.CreateCQ(m.Conns * m.Depth); err != nil {
			return result{}, err
		}
	}
	before := now()
	cs := make([]*viConn, m.Conns)
	lanes := make([]lane, m.Conns)
	for i := range cs {
		v, err := nic.CreateVI(viAttributes(m), cq, nil)
		if err != nil {
			return result{}, err
		}
		if _, err := v.ConnectRequest(context.Background(), vi.Address{}, target); err != nil {
			return result{}, fmt.Errorf("connection %d: %w", i, err)
		}
		cs[i] = &viConn{v: v, m: &m, region: region, remote: h.Remote, cq: cq, index: i}
		lanes[i] = cs[i]
		v.SetUserData(cs[i])
		if m.Op != opIdle {
			cs[i].prepare()
		}
	}
	defer func() {
		for _, c := range cs {
			c.v.Disconnect()
		}
	}()
	switch m.Op {
	case opIdle:
		return m.idle(before), nil
	case opPing:
		c := cs[0]
		recvs := make([]*vi.Descriptor, pingRecvs)
		for i := range recvs {
			recvs[i] = vi.NewRecv(region.Segment(0, m.Size))
		}
		if _, err := c.v.PostRecvs(recvs); err != nil {
			return result{}, err
		}
		return c.pings()
	}
	return measured(m, lanes, func() (int, error) {
		e, err := cq.Wait(context.Background())
		if err != nil {
			return 0, err
		}
		_, err = e.VI.SendDone()
		return e.VI.UserData().(*viConn).index, err
	})
}

// viConn is a connection of a stream.
type viConn struct {
	v      *vi.VI
	m      *measure
	region *vi.Region
	remote vi.RemoteSegment
	cq     *vi.CompletionQueue // the queue of its send completions; nil if there is a single connection
	ds     []*vi.Descriptor    // one descriptor for each message that can be outstanding
	next   int
	index  int
}

func (c *viConn) prepare() {
	c.ds = make([]*vi.Descriptor, c.m.Depth)
	for i := range c.ds {
		off := i % c.m.slots() * c.m.Size
		seg := c.region.Segment(off, c.m.Size)
		remote := c.remote
		remote.Address += uint64(off)
		switch c.m.Op {
		case opWrite:
			c.ds[i] = vi.NewRDMAWrite(remote, seg)
		case opRead:
			c.ds[i] = vi.NewRDMARead(remote, seg)
		default:
			c.ds[i] = vi.NewSend(seg)
		}
	}
}

// pings measures round trips. Two things are done while the message is in flight, because the peer
// does not wait for them: reposting the receive of the last answer, and reaping the Send.
func (c *viConn) pings() (result, error) {
	var used *vi.Descriptor // the receive of the last answer, or nil
	return roundTrips(c.m.Time, func() error {
		if err := c.v.PostSend(c.ds[0]); err != nil {
			return err
		}
		if used != nil {
			if err := c.v.PostRecv(used); err != nil {
				return err
			}
		}
		if err := viSent(c.v, false); err != nil {
			return err
		}
		var err error
		used, err = viRecv(c.v, c.m.Wait)
		return err
	})
}

// post posts the messages of a doorbell.
func (c *viConn) post() error {
	n, err := c.v.PostSends(c.ds[c.next : c.next+c.m.Bell])
	c.next = (c.next + n) % len(c.ds)
	return err
}

// finish sends a last message and waits for the answer. The answer arrives after all earlier
// messages were placed.
func (c *viConn) finish() error {
	recv := vi.NewRecv(c.region.Segment(0, c.m.Size))
	if err := c.v.PostRecv(recv); err != nil {
		return err
	}
	if err := c.v.PostSend(vi.NewSend().WithImmediate(1)); err != nil {
		return err
	}
	_, err := c.v.RecvWait(context.Background())
	return err
}

// reap takes the ready completions and returns their number. If wait is set, reap first waits for a
// completion.
func (c *viConn) reap(wait bool) (n int, err error) {
	if wait {
		if _, err := c.v.SendWait(context.Background()); err != nil {
			return 0, err
		}
		n++
	}
	for {
		_, err := c.v.SendDone()
		if err == vi.ErrNotDone || errors.Is(err, vi.ErrQueueEmpty) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n++
	}
}

func (c *viConn) settle() error {
	if c.cq == nil {
		_, err := c.v.SendWait(context.Background())
		return err
	}
	if _, err := c.cq.Wait(context.Background()); err != nil {
		return err
	}
	_, err := c.v.SendDone()
	return err
}

func viSetups(nic *vi.NIC, m measure, target vi.Address) (result, error) {
	return setups(m.Time, func() error {
		v, err := nic.CreateVI(viAttributes(m), nil, nil)
		if err != nil {
			return err
		}
		if _, err := v.ConnectRequest(context.Background(), vi.Address{}, target); err != nil {
			return err
		}
		if err := v.Disconnect(); err != nil {
			return err
		}
		return v.Destroy()
	})
}

func viServeSetup(nic *vi.NIC, m measure) error {
	for {
		req, err := nic.ConnectWait(m.over, vi.Address{Discriminator: []byte(discriminator)})
		if m.over.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		v, err := nic.CreateVI(viAttributes(m), nil, nil)
		if err != nil {
			return err
		}
		if err := req.Accept(context.Background(), v); err != nil {
			return err
		}
		go func() {
			for v.State() == vi.Connected {
				time.Sleep(time.Millisecond)
			}
			v.Disconnect()
			v.Destroy()
		}()
	}
}

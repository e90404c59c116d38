package roce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/queue"
	"viaduct/internal/rocecore"
	"viaduct/internal/roceudp"
	"viaduct/internal/wire/ib"
)

// A Transport is the transport service of a queue pair.
type Transport uint8

// The transports.
const (
	RC Transport = iota // reliable connection: all operations
	UC                  // unreliable connection: Sends and Writes, lost with any packet
	UD                  // unreliable datagram: Sends of one packet, to any queue pair
)

// String returns the short name of the transport.
func (t Transport) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("Transport(%d)", uint8(t))
}

// A Config holds the parameters of a queue pair. The zero value is a reliable connection with
// defaults that suit most programs.
type Config struct {
	Transport Transport
	PD        *ProtectionDomain // nil makes a new domain; nil queues below are made likewise
	SendCQ    *CompletionQueue
	RecvCQ    *CompletionQueue // may equal SendCQ

	// SendDepth is the greatest number of incomplete requests, RecvDepth the greatest number of posted
	// receives; 0 means DefaultDepth.
	SendDepth, RecvDepth int

	// MTU is the payload of a packet in bytes: 256, 512, 1024, 2048 or 4096, equal at both ends; 0
	// means 1024. The network must carry packets of this payload and up to 128 bytes of headers, so
	// 4096 needs jumbo frames, for example of 9000 bytes.
	MTU int

	// Access limits what the peer may do, in addition to the rights of each region; 0 means
	// everything.
	Access Access
	// Reads is the greatest number of outstanding Reads and atomic operations in each direction, at
	// most 255; 0 means 16.
	Reads int

	// Timeout is the time without an acknowledgement after which packets are retransmitted; 0 means
	// 67 ms, a negative value never. Retries is the number of retransmissions without progress
	// after which the peer is given up; 0 means 31, a negative value none. With both defaults a peer
	// may be silent for two seconds, which a process on a busy machine can be.
	Timeout time.Duration
	Retries int
	// RNRRetries is how often a message is retransmitted to a peer that has no receive for the
	// message: 1 to 6 times. 0 or more than 6 means without limit, a negative value never.
	RNRRetries int
	// RNRTimer is the code, 1 to 31, of the time the peer has to wait if there is no receive for
	// its message; 0 means 12, which is 0.64 ms.
	RNRTimer uint8

	QKey uint32 // key that received datagrams must carry
}

// DefaultDepth is the default depth of a send or receive queue.
const DefaultDepth = 128

func (c *Config) setDefaults(d *Device) {
	def := func(v *int, n int) {
		if *v == 0 {
			*v = n
		}
	}
	def(&c.SendDepth, DefaultDepth)
	def(&c.RecvDepth, DefaultDepth)
	def(&c.MTU, 1024)
	def(&c.Reads, 16)
	def(&c.Retries, 31)
	def(&c.RNRRetries, rocecore.RNRForever)
	c.Retries = max(c.Retries, 0)
	c.RNRRetries = min(max(c.RNRRetries, 0), rocecore.RNRForever)
	if c.Timeout == 0 {
		const code = 14
		c.Timeout = rocecore.AckTimeout(code)
	}
	c.Timeout = max(c.Timeout, 0)
	if c.Access == 0 {
		c.Access = RemoteRead | RemoteWrite | RemoteAtomic
	}
	if c.RNRTimer == 0 {
		c.RNRTimer = 12
	}
	if c.PD == nil {
		c.PD = d.NewPD()
	}
	if c.SendCQ == nil {
		c.SendCQ = d.NewCQ()
	}
	if c.RecvCQ == nil {
		c.RecvCQ = d.NewCQ()
	}
}

// An Endpoint names a queue pair to its peer.
type Endpoint struct {
	Addr netip.Addr
	QPN  uint32
	PSN  uint32 // first packet sequence number that the queue pair sends; unused for datagrams
}

// GID returns the address in the form that verbs programs use: an IPv4 address is mapped to IPv6.
func (e Endpoint) GID() [16]byte { // [ROCE-NET-7]
	return e.Addr.As16()
}

// A QueuePair is a send queue and a receive queue. All methods are safe for concurrent use.
type QueuePair struct {
	host host
	dev  *Device
	pd   *ProtectionDomain
	cfg  Config
	pair *roceudp.Pair
	psn  ib.PSN

	state  atomic.Uint32
	posted atomic.Int64 // requests that are not complete

	mu       perturb.Mutex
	receives queue.FIFO[rocecore.Receive]
	flushing bool // guarded by mu: new receives are flushed at once
}

// A queue pair passes its states in this order. [ROCE-RESP-16]
const (
	unconnected uint32 = iota
	connecting
	ready
	inError
	closed
)

// NewQueuePair returns a queue pair. A queue pair for datagrams can send at once; any other must be
// connected first. Receives may be posted before Connect.
//
// Errors: ErrInvalid if a value of cfg is out of range or belongs to another device; ErrLimit if no
// queue pair number is free; ErrClosed.
func (d *Device) NewQueuePair(cfg Config) (*QueuePair, error) {
	cfg.setDefaults(d)
	if cfg.Transport > UD || !rocecore.ValidMTU(cfg.MTU) || cfg.Reads < 0 || cfg.Reads > 255 || cfg.RNRTimer > 31 {
		return nil, fmt.Errorf("%w: %v, MTU %d, %d Reads, RNR timer %d", ErrInvalid, cfg.Transport,
			cfg.MTU, cfg.Reads, cfg.RNRTimer)
	}
	if cfg.PD.dev != d {
		return nil, fmt.Errorf("%w: domain of another device", ErrInvalid)
	}
	pair, err := d.port.NewPair()
	if err == roceudp.ErrLimit {
		return nil, ErrLimit
	} else if err != nil {
		return nil, ErrClosed
	}
	q := &QueuePair{dev: d, pd: cfg.PD, cfg: cfg, pair: pair, psn: ib.PSN(rand.Uint32N(1 << 24))}
	q.host = host{memory{d.regions, cfg.PD.dom}, q}
	if cfg.Transport == UD {
		q.state.Store(ready)
		pair.Datagrams(&q.host, rocecore.DatagramConfig{MTU: cfg.MTU, QKey: cfg.QKey, PSN: q.psn})
	}
	return q, nil
}

// Local returns the endpoint that the peer passes to Connect.
func (q *QueuePair) Local() Endpoint {
	return Endpoint{Addr: q.dev.Addr(), QPN: q.pair.QPN(), PSN: uint32(q.psn)}
}

// Connect connects the queue pair with the queue pair of a peer, whose owner calls Connect with the
// Endpoint of Local. The two sides exchange their Endpoints first, for example over TCP. Packets
// that arrive before Connect are dropped; on a reliable connection the peer retransmits them.
//
// Errors: ErrInvalid if the queue pair is connected already or is for datagrams, or if peer has an
// address of another family than the device; ErrClosed.
func (q *QueuePair) Connect(peer Endpoint) error {
	if q.cfg.Transport == UD || !peer.Addr.IsValid() || peer.Addr.Unmap().Is4() != q.dev.Addr().Is4() {
		return fmt.Errorf("%w: connecting %v with %v", ErrInvalid, q.cfg.Transport, peer.Addr)
	}
	transport := ib.RC
	if q.cfg.Transport == UC {
		transport = ib.UC
	}
	if !q.state.CompareAndSwap(unconnected, connecting) {
		if q.state.Load() == closed {
			return ErrClosed
		}
		return fmt.Errorf("%w: queue pair is connected", ErrInvalid)
	}
	q.pair.Receive(&q.host, peer.Addr, rocecore.Config{
		Transport: transport, MTU: q.cfg.MTU, PeerQPN: peer.QPN, PSN: ib.PSN(peer.PSN & (1<<24 - 1)),
		Access: rocecore.Access(q.cfg.Access), MaxServed: q.cfg.Reads, RNRTimer: q.cfg.RNRTimer,
	})
	q.pair.Send(rocecore.SendConfig{PSN: q.psn, MaxReads: q.cfg.Reads, Timeout: q.cfg.Timeout,
		Retries: q.cfg.Retries, RNRRetry: q.cfg.RNRRetries})
	if !q.state.CompareAndSwap(connecting, ready) {
		return ErrClosed // Close was called meanwhile
	}
	return nil
}

// MulticastQPN is the queue pair number in datagrams to a group, which all members receive.
const MulticastQPN = ib.MulticastQPN

// Join makes a queue pair for datagrams receive datagrams to a multicast group, until Leave or
// Close. The group is an address of the same family as the device. To send to the group, send to
// MulticastQPN at the address of the group; the sender receives its own datagrams if it has joined.
// Datagrams to a group do not leave the network of the device.
//
// Errors: ErrInvalid if the queue pair is not for datagrams, or if the group cannot be joined;
// ErrClosed.
func (q *QueuePair) Join(group netip.Addr) error { // [ROCE-UD-6]
	if q.cfg.Transport != UD {
		return fmt.Errorf("%w: %v in a multicast group", ErrInvalid, q.cfg.Transport)
	}
	err := q.pair.Join(group, nil)
	switch {
	case errors.Is(err, net.ErrClosed):
		return ErrClosed
	case err != nil:
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// Leave ends the membership in a group. It does nothing if the queue pair is not a member.
func (q *QueuePair) Leave(group netip.Addr) { q.pair.Leave(group) }

// PD returns the protection domain of the queue pair.
func (q *QueuePair) PD() *ProtectionDomain { return q.pd }

// SendCQ returns the completion queue of the send queue.
func (q *QueuePair) SendCQ() *CompletionQueue { return q.cfg.SendCQ }

// RecvCQ returns the completion queue of the receive queue.
func (q *QueuePair) RecvCQ() *CompletionQueue { return q.cfg.RecvCQ }

// Post adds requests to the send queue, either all of them or none. It waits neither for the peer
// nor, on Linux, for the network interface. After an error of the connection the requests complete
// with StatusFlushed.
//
// Errors: ErrQueueFull, ErrInvalid, ErrRegistered, ErrTooLong, ErrNotConnected, ErrClosed.
func (q *QueuePair) Post(wrs ...SendWR) error {
	switch q.state.Load() {
	case unconnected, connecting:
		return ErrNotConnected
	case closed:
		return ErrClosed
	}
	rs := make([]*rocecore.Request, len(wrs))
	for i := range wrs {
		r, err := q.request(&wrs[i])
		if err != nil {
			return err
		}
		rs[i] = r
	}
	if n := int64(len(rs)); q.posted.Add(n) > int64(q.cfg.SendDepth) {
		q.posted.Add(-n)
		return ErrQueueFull
	}
	if !q.pair.Post(rs...) {
		q.posted.Add(-int64(len(rs)))
		return ErrClosed
	}
	return nil
}

// PostRecv adds a buffer to the receive queue. Messages use the buffers in the order of posting. In
// the error state the receive completes at once with StatusFlushed, and PostRecv returns nil.
//
// Errors: ErrQueueFull, ErrInvalid, ErrRegistered, ErrTooLong, ErrClosed.
func (q *QueuePair) PostRecv(wr RecvWR) error {
	buf, err := q.newPieces(wr.SG)
	if err != nil {
		return err
	}
	q.mu.Lock()
	switch {
	case q.state.Load() == closed:
		q.mu.Unlock()
		return ErrClosed
	case q.flushing:
		q.mu.Unlock()
		q.cfg.RecvCQ.q.Push(Completion{ID: wr.ID, QP: q, Op: OpRecv, Status: StatusFlushed})
		return nil
	case q.receives.Len() >= q.cfg.RecvDepth:
		q.mu.Unlock()
		return ErrQueueFull
	}
	q.receives.Push(rocecore.Receive{ID: wr.ID, Buf: buf})
	q.mu.Unlock()
	return nil
}

// Close closes the queue pair at once, without a message to the peer. Messages that have completed
// here are acknowledged first. Posted requests and receives complete with StatusFlushed before Close
// returns, and nothing completes after that. A second call does nothing; the error is always nil.
func (q *QueuePair) Close() error {
	q.state.Store(closed)
	q.pair.Close()
	q.flushReceives()
	return nil
}

// Stats holds the counters of a queue pair. They never decrease.
type Stats struct {
	SentPackets, ReceivedPackets uint64
	Resent                       uint64 // retransmitted packets
	Probes                       uint64 // part of Resent: packets sent early to detect a loss
	Timeouts                     uint64
	SentNAKs, ReceivedNAKs       uint64 // NAKs for missing packets
	SentRNR, ReceivedRNR         uint64 // NAKs for messages without a receive
	Duplicates                   uint64 // requests received again after they were executed
	Refused                      uint64 // packets of the wrong partition or transport, datagrams not received
}

// Stats returns the current counters.
func (q *QueuePair) Stats() Stats { return Stats(q.pair.Counters()) }

package roceudp

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/perturb"
	"viaduct/internal/rocecore"
)

// ErrLimit reports that the port has as many queue pairs as it can have.
var ErrLimit = errors.New("roceudp: too many queue pairs")

// maxPairs is the greatest number of queue pairs of a port.
const maxPairs = 1 << 16

// Counters holds the numbers of packets that were dropped. They never decrease.
type Counters struct {
	Malformed uint64 // not a RoCEv2 packet
	WrongCRC  uint64
	NoPair    uint64 // no such queue pair, or the queue pair does not receive
	Stranger  uint64 // the queue pair is connected, and the sender is not its peer
	Unsent    uint64 // packets that the operating system refused to send
	Passed    uint64 // packets for another port of the address, see lane
}

// A Port is UDP port 4791 of an address, alone or together with ports of other shares. All methods
// are safe for concurrent use.
type Port struct {
	addr  netip.Addr
	share *Share
	slot  uint8 // of share if other shares may have ports of the address, otherwise 0
	sock  socket
	begin time.Time

	mu     perturb.RWMutex
	pairs  map[uint32]*Pair      // guarded by mu
	groups map[netip.Addr]*group // guarded by mu
	lanes  map[uint8]*lane       // guarded by mu; by the slot of the other port
	kept   map[io.Closer]bool    // guarded by mu; sockets of lanes
	closed bool                  // guarded by mu

	rx      perturb.Mutex // held by the goroutine that receives
	batch   *batch        // guarded by rx
	touched []*Pair       // guarded by rx: pairs with something to send after a batch
	reading []*lane       // guarded by rx

	deferred []*Pair       // guarded by rx: pairs whose acknowledgements Poll has left to Post
	replies  budget.Budget // whether Poll defers acknowledgements

	polls  atomic.Uint32 // changes with every Poll
	aside  atomic.Bool   // the goroutine of the port is in stepAside
	resume chan struct{} // one slot; a signal ends stepAside
	seen   uint32        // owned by the goroutine of the port: value of polls when it last looked
	quiet  *time.Timer   // owned by the goroutine of the port

	lateMu  perturb.Mutex // the mutex of all backlogs
	backlog *backlog      // of sock

	tap atomic.Pointer[Tap] // nil if SetTap was not called

	malformed, wrongCRC, noPair, stranger, unsent, passed atomic.Uint64

	done  chan struct{} // closed by Close
	ended sync.WaitGroup
}

// open opens a port. It connects the port with the other ports of the address first, because the
// kernel may give packets for these to the socket at once.
func (s *Share) open(addr netip.Addr, port uint16) (*Port, error) {
	p := newPort(addr.Unmap(), s)
	shared := s.slot != 0 && p.meet(s.slot) == nil
	sock, err := newSocket(netip.AddrPortFrom(p.addr, port), shared)
	if err != nil {
		p.end()
		return nil, fmt.Errorf("roceudp: port %d of %v: %w", port, p.addr, err)
	}
	p.start(sock)
	return p, nil
}

func newPort(addr netip.Addr, s *Share) *Port {
	p := &Port{addr: addr, share: s, begin: time.Now(), pairs: make(map[uint32]*Pair), batch: newBatch(),
		resume: make(chan struct{}, 1), quiet: time.NewTimer(0), done: make(chan struct{})}
	p.backlog = newBacklog(&p.lateMu)
	return p
}

func (p *Port) start(sock socket) {
	p.sock = sock
	p.ended.Go(func() { p.receive(nil) })
	p.ended.Go(func() { p.sendBacklog(p.backlog, &p.sock, p.done) })
}

// Addr returns the address of the port.
func (p *Port) Addr() netip.Addr { return p.addr }

// Counters returns the current counters.
func (p *Port) Counters() Counters {
	return Counters{p.malformed.Load(), p.wrongCRC.Load(), p.noPair.Load(), p.stranger.Load(), p.unsent.Load(), p.passed.Load()}
}

func (p *Port) now() rocecore.Time { return time.Since(p.begin) }

// NewPair returns a queue pair with a random number of the share, which is hard to guess. It receives nothing
// until Receive or Datagrams. The error is ErrLimit or net.ErrClosed.
func (p *Port) NewPair() (*Pair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	first, last := p.share.Numbers()
	if len(p.pairs) >= min(maxPairs, int(last-first)) {
		return nil, ErrLimit
	}
	for {
		n := first + rand.Uint32N(last-first+1)
		if p.pairs[n] == nil {
			return p.addLocked(n), nil
		}
	}
}

// NewPairNumbered returns a queue pair with the number qpn. It receives nothing until Receive or
// Datagrams. It fails if another queue pair of the port has the number; other errors are ErrLimit
// and net.ErrClosed.
func (p *Port) NewPairNumbered(qpn uint32) (*Pair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, net.ErrClosed
	case p.pairs[qpn] != nil:
		return nil, fmt.Errorf("roceudp: there is a queue pair %d at %v already", qpn, p.addr)
	case len(p.pairs) >= maxPairs:
		return nil, ErrLimit
	}
	return p.addLocked(qpn), nil
}

func (p *Port) addLocked(qpn uint32) *Pair {
	q := &Pair{port: p, qpn: qpn}
	p.pairs[qpn] = q
	return q
}

func (p *Port) pair(qpn uint32) *Pair {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.pairs[qpn]
}

func (p *Port) remove(q *Pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pairs[q.qpn] == q { // otherwise another queue pair has the number now
		delete(p.pairs, q.qpn)
	}
	for at, g := range p.groups {
		if _, in := g.members[q]; in {
			p.leaveLocked(q, at)
		}
	}
}

// Close closes all queue pairs and the socket, and waits for the goroutines of the port. A second
// call returns net.ErrClosed.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return net.ErrClosed
	}
	p.closed = true
	all := make([]*Pair, 0, len(p.pairs))
	for _, q := range p.pairs {
		all = append(all, q)
	}
	p.mu.Unlock()
	for _, q := range all {
		q.Close()
	}
	err := p.sock.close()
	p.end()
	return err
}

// end closes the lanes and waits for the goroutines of the port.
func (p *Port) end() {
	close(p.done)
	p.mu.Lock()
	p.closed = true
	kept := slices.Collect(maps.Keys(p.kept))
	p.mu.Unlock()
	for _, c := range kept { // without mu, which a goroutine that uses c may need
		c.Close()
	}
	p.ended.Wait()
}

// Package badwire is a network between two ends of RoCEv2 that loses, duplicates, delays and reorders
// packets as a seed says. It needs no privileges: a [Wire] is an address of this host that each end
// takes for its peer. Only tests import this package.
package badwire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/wire/ib"
)

// Faults say what a wire does to packets. Each is a share of all packets, from 0 to 1.
type Faults struct {
	Seed      uint64
	Loss      float64
	Duplicate float64
	// Late packets arrive after others that were sent after them.
	Late float64
}

// Late packets are delayed by up to maxDelay.
const maxDelay = 3 * time.Millisecond

// A Wire passes packets between two ends. Safe for concurrent use.
type Wire struct {
	faults Faults
	c      *net.UDPConn
	addr   netip.AddrPort
	ends   [2]netip.Addr
	r      *rand.Rand // of the goroutine that passes packets

	blocked        atomic.Bool
	passed, spoilt atomic.Uint64

	late  sync.WaitGroup // packets that are delayed
	ended sync.WaitGroup
}

// New opens a wire at addr, an address of this host whose port 4791 is free, between the ends at a and b.
func New(addr, a, b netip.Addr, f Faults) (*Wire, error) {
	at := netip.AddrPortFrom(addr, ib.Port)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("badwire: %w", err)
	}
	c.SetReadBuffer(8 << 20) // the system gives what it gives to anybody
	c.SetWriteBuffer(8 << 20)
	w := &Wire{faults: f, c: c, addr: at, ends: [2]netip.Addr{a, b}, r: rand.New(rand.NewPCG(f.Seed, 4791))}
	w.ended.Go(w.run)
	return w, nil
}

// Addr returns the address each end takes for its peer.
func (w *Wire) Addr() netip.Addr { return w.addr.Addr() }

// Block makes the wire lose all packets, or pass them again.
func (w *Wire) Block(all bool) { w.blocked.Store(all) }

// Packets returns how many packets the wire has passed, and to how many it has done something.
func (w *Wire) Packets() (passed, spoilt uint64) { return w.passed.Load(), w.spoilt.Load() }

// Close ends the wire.
func (w *Wire) Close() error {
	err := w.c.Close()
	w.ended.Wait()
	w.late.Wait()
	return err
}

// run passes packets until the socket is closed.
func (w *Wire) run() {
	b := make([]byte, 64<<10)
	for {
		n, from, err := w.c.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n > ib.BTHLen+ib.ICRCLen {
			w.pass(from.Addr().Unmap(), b[:n-ib.ICRCLen])
		}
	}
}

// pass does to a packet, which has lost its invariant CRC, what the faults say.
func (w *Wire) pass(from netip.Addr, packet []byte) {
	to := w.ends[0]
	if from == to {
		to = w.ends[1]
	}
	if from != w.ends[0] && from != w.ends[1] {
		return
	}
	// The numbers are drawn for each packet, so that a seed gives the same faults whatever happened before.
	lost, twice, late, delay := w.r.Float64(), w.r.Float64(), w.r.Float64(), w.r.Int64N(int64(maxDelay))
	if w.blocked.Load() || lost < w.faults.Loss {
		w.spoilt.Add(1)
		return
	}
	at := netip.AddrPortFrom(to, ib.Port)
	flow := ib.Flow{Source: w.addr, Destination: at}
	sealed := flow.Seal(packet) // in place of the one it had
	w.passed.Add(1)
	if twice < w.faults.Duplicate {
		w.spoilt.Add(1)
		w.c.WriteToUDPAddrPort(sealed, at)
	}
	if late >= w.faults.Late {
		w.c.WriteToUDPAddrPort(sealed, at)
		return
	}
	w.spoilt.Add(1)
	kept := append([]byte(nil), sealed...)
	w.late.Add(1)
	time.AfterFunc(time.Duration(delay), func() {
		defer w.late.Done()
		w.c.WriteToUDPAddrPort(kept, at)
	})
}

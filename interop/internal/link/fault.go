package link

import (
	"math/rand/v2"
	"time"
)

// A Fault describes the faults of the packets sent by a port. The zero value is a perfect wire.
// Probabilities are from 0 to 1, and independent for each packet.
type Fault struct {
	Delay  time.Duration // in this direction
	Jitter time.Duration // added to Delay: uniform from -Jitter to Jitter, without reordering

	Loss      float64
	LossEvery int // of each flow every n-th packet of 500 bytes or more is lost, so that all flows lose equally; 0 means none
	Duplicate float64
	Corrupt   float64 // one bit after the addresses of the IP header is wrong
	Reorder   float64 // the packet overtakes delayed packets

	Rate  int64 // bits per second; 0 means no limit
	Queue int   // bytes that may wait because of Rate; further packets are lost; 0 means DefaultQueue

	Blackhole bool // every packet is lost
}

// DefaultQueue is the default of Fault.Queue in bytes: about 50 ms at 10 Mbit/s.
const DefaultQueue = 64 << 10

// bulk is the least length in bytes of a packet counted for LossEvery.
const bulk = 500

// A shaper applies a fault to the packets of a direction, in virtual time.
type shaper struct {
	f        Fault
	r        *rand.Rand
	busy     time.Time      // when the wire has sent all packets so far, because of Rate
	last     time.Time      // when the last packet that keeps its order arrives
	flows    map[uint32]int // packets of each flow that count for LossEvery
	counters Counters
}

// Counters count packets and their faults.
type Counters struct {
	Packets, Bytes                                  uint64
	Lost, Overflowed, Doubled, Corrupted, Overtaken uint64
	Resets                                          uint64
}

// An arrival is a packet at the destination.
type arrival struct {
	at   time.Time
	flip int // index of the wrong bit of the packet, or -1
}

// headerEnd is the offset after the addresses of the IP header. A wrong bit from there on does not
// change the destination.
const headerEnd = 20

// packet applies the fault to a packet of n bytes of a flow, sent at now. The result has no arrival
// for a lost packet, and two arrivals for a duplicated packet.
func (s *shaper) packet(now time.Time, flow uint32, n int) (arrivals []arrival) {
	f := &s.f
	s.counters.Packets++
	s.counters.Bytes += uint64(n)
	if f.Blackhole || s.hit(f.Loss) || s.due(flow, n) {
		s.counters.Lost++
		return nil
	}
	sent := now
	if f.Rate > 0 {
		queue := f.Queue
		if queue == 0 {
			queue = DefaultQueue
		}
		if s.busy.Before(now) {
			s.busy = now
		}
		if waiting := int64(s.busy.Sub(now)) * f.Rate / 8 / int64(time.Second); waiting+int64(n) > int64(queue) {
			s.counters.Overflowed++
			return nil
		}
		s.busy = s.busy.Add(time.Duration(int64(n) * 8 * int64(time.Second) / f.Rate))
		sent = s.busy
	}
	copies := 1
	if s.hit(f.Duplicate) {
		s.counters.Doubled++
		copies = 2
	}
	for range copies {
		a := arrival{flip: -1}
		if s.hit(f.Reorder) {
			s.counters.Overtaken++
			a.at = sent
		} else {
			a.at = sent.Add(f.Delay)
			if f.Jitter > 0 {
				a.at = a.at.Add(time.Duration(s.r.Int64N(int64(2*f.Jitter))) - f.Jitter)
			}
			if a.at.Before(s.last) {
				a.at = s.last
			}
			s.last = a.at
		}
		if n > headerEnd && s.hit(f.Corrupt) {
			s.counters.Corrupted++
			a.flip = headerEnd*8 + s.r.IntN((n-headerEnd)*8)
		}
		arrivals = append(arrivals, a)
	}
	return arrivals
}

// due counts a packet for LossEvery and reports whether the packet is lost.
func (s *shaper) due(flow uint32, n int) bool {
	if s.f.LossEvery == 0 || n < bulk {
		return false
	}
	if s.flows == nil {
		s.flows = map[uint32]int{}
	}
	s.flows[flow]++
	return s.flows[flow]%s.f.LossEvery == 0
}

func (s *shaper) hit(p float64) bool { return p > 0 && s.r.Float64() < p }

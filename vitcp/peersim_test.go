package vitcp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A peerSim simulates two peer-to-peer requests and a network between them. At each step choose
// selects one of the possible events. So a run is a sequence of choices and can be repeated.
type peerSim struct {
	choose  func(n int) int
	ends    [2]*simEnd
	conns   []*simConn
	now     time.Time
	timers  int // remaining timers that may fire while messages are in flight
	refuses int // remaining connection attempts that may be refused
	places  int // remaining attempts that go to an address where another process answers
	log     strings.Builder
}

type simEnd struct {
	m        *peer
	ip       netip.Addr
	started  bool
	out      int          // index of this end's outgoing connection, or -1
	chosen   int          // index of the connection on which this end was connected, or -1
	outcome  setupOutcome // valid if done
	done     bool
	nextPort uint16
}

// A simConn is a TCP connection. End from has dialled it.
type simConn struct {
	from    int
	port    uint16
	dialing bool
	beside  bool        // leads to an address where another process answers, not the peer
	sent    [2][]string // messages in flight to end 0 and to end 1
	closed  [2]bool     // closed by that end
}

// note writes an action of an end into the end's column of the ladder. A failing run prints the
// ladder.
func (s *peerSim) note(end int, what string) {
	if end == 0 {
		fmt.Fprintf(&s.log, "%8v  %-44s|\n", s.now.Sub(t0), what)
	} else {
		fmt.Fprintf(&s.log, "%8v  %-44s|  %s\n", s.now.Sub(t0), "", what)
	}
}

// arrow writes a message of a connection, arriving at an end.
func (s *peerSim) arrow(n, to int, msg string) {
	label := fmt.Sprintf(" %s of %d ", msg, n)
	line := strings.Repeat("-", max(0, 42-len(label))/2) + label + strings.Repeat("-", max(0, 43-len(label))/2)
	if to == 0 {
		line = "<" + line
	} else {
		line += ">"
	}
	fmt.Fprintf(&s.log, "%8v  %-44s|\n", s.now.Sub(t0), line)
}

// A simEvent is an event possible now.
type simEvent struct {
	end  int // the end at which it happens
	name string
	run  func()
}

func (s *peerSim) enabled() []simEvent {
	var evs []simEvent
	for i, e := range s.ends {
		if !e.started {
			evs = append(evs, simEvent{i, "requests", func() {
				e.started = true
				s.do(i, e.m.request())
			}})
		}
	}
	for n, c := range s.conns {
		if c.dialing && !c.closed[c.from] {
			e := s.ends[c.from]
			evs = append(evs, simEvent{c.from, fmt.Sprintf("%d established", n), func() {
				c.dialing = false
				s.do(c.from, e.m.tcpEstablished(netip.AddrPortFrom(e.ip, c.port)))
			}})
			if s.refuses > 0 {
				evs = append(evs, simEvent{c.from, fmt.Sprintf("%d refused", n), func() {
					s.refuses--
					c.dialing, c.closed = false, [2]bool{true, true}
					e.out = -1
					s.do(c.from, e.m.tcpFailed(s.now, errTCP))
				}})
			}
		}
		for to := range 2 {
			if len(c.sent[to]) > 0 {
				evs = append(evs, simEvent{to, "", func() {
					s.arrow(n, to, c.sent[to][0])
					s.deliver(n, to)
				}})
			}
		}
	}
	return evs
}

// deliver delivers the next message of connection n to end to.
func (s *peerSim) deliver(n, to int) {
	c, e := s.conns[n], s.ends[to]
	msg := c.sent[to][0]
	c.sent[to] = c.sent[to][1:]
	if c.closed[to] {
		return
	}
	switch msg {
	case "request":
		if c.beside || !e.started || e.m.state == peerOver || e.m.state == peerConnected {
			s.send(n, to, "no match")
			s.close(n, to)
			return
		}
		from := netip.AddrPortFrom(s.ends[1-to].ip, c.port)
		if e.m.isOwn(from) != (c.port == s.conns[max(e.out, 0)].port && e.out >= 0 && e.ip == from.Addr() && e.m.state == peerRequested) {
			panic("isOwn")
		}
		s.do(to, e.m.incoming(incomingRequest{conn: n, local: netip.AddrPortFrom(e.ip, 3936), remote: from}))
	case "accept":
		e.chosen = n
		s.do(to, e.m.accepted())
	case "crossed":
		s.do(to, e.m.rejected(s.now, rejectCrossed))
	case "no match":
		s.do(to, e.m.noMatch(s.now))
	case "close":
		if e.chosen == n {
			c.closed[to] = true // this end has chosen another connection
		} else if e.out == n {
			s.do(to, e.m.tcpClosed(s.now, errTCP))
		} else {
			c.closed[to] = true
		}
	}
}

func (s *peerSim) send(n, from int, msg string) {
	s.conns[n].sent[1-from] = append(s.conns[n].sent[1-from], msg)
}

func (s *peerSim) close(n, end int) {
	c := s.conns[n]
	if !c.closed[end] {
		c.closed[end] = true
		if !c.dialing {
			s.send(n, end, "close")
		}
	}
}

// do performs the steps of end i.
func (s *peerSim) do(i int, steps []setupStep) {
	e := s.ends[i]
	for _, st := range steps {
		s.note(i, fmt.Sprint("  ", st))
		switch st.do {
		case stepDial:
			if e.out >= 0 {
				panic("two outgoing connections")
			}
			e.nextPort++
			e.out = len(s.conns)
			e.m.more = s.places > 0
			s.conns = append(s.conns, &simConn{from: i, port: e.nextPort, dialing: true, beside: e.m.more})
			if e.m.more {
				s.places--
			}
		case stepSendRequest:
			s.send(e.out, i, "request")
		case stepClose:
			s.close(e.out, i)
			e.out = -1
		case stepSendAccept:
			s.send(st.conn, i, "accept")
		case stepSendReject:
			s.send(st.conn, i, "crossed")
			s.close(st.conn, i)
		case stepSendNoMatch:
			s.send(st.conn, i, "no match")
			s.close(st.conn, i)
		case stepDone:
			if e.done {
				panic("two ends")
			}
			e.done, e.outcome = true, st.out
			if st.out == outcomeConnected && e.chosen < 0 {
				e.chosen = st.conn
			}
		}
	}
}

// run executes events until none is possible. It returns the verdict.
func (s *peerSim) run() error {
	for range 2000 {
		evs := s.enabled()
		// The next timer fires if no other event is possible. While the budget lasts, the timer is
		// also a choice.
		next := -1
		for i, e := range s.ends {
			if w := e.m.wakeAt(); e.started && !w.IsZero() && (next < 0 || w.Before(s.ends[next].m.wakeAt())) {
				next = i
			}
		}
		if next >= 0 && (len(evs) == 0 || s.timers > 0 && s.ends[next].m.wakeAt() != s.ends[next].m.deadline) {
			budget := len(evs) > 0
			evs = append(evs, simEvent{next, "timer", func() {
				if budget {
					s.timers--
				}
				if w := s.ends[next].m.wakeAt(); w.After(s.now) {
					s.now = w
				}
				s.do(next, s.ends[next].m.timer(s.now))
			}})
		}
		if len(evs) == 0 {
			return s.verdict()
		}
		ev := evs[s.choose(len(evs))]
		if ev.name != "" {
			s.note(ev.end, ev.name)
		}
		ev.run()
	}
	return fmt.Errorf("no end")
}

// verdict returns an error unless both ends have the same connection, or neither has a connection.
// There is an exception no protocol can avoid: the time of a side ends while the other side's
// acceptance is in flight. The accepting side then finds the connection closed.
func (s *peerSim) verdict() error {
	a, b := s.ends[0], s.ends[1]
	switch {
	case !a.done || !b.done:
		return fmt.Errorf("not done: %v, %v", a.m.state, b.m.state)
	case a.chosen >= 0 && b.chosen >= 0:
		if a.chosen != b.chosen {
			return fmt.Errorf("connected by %d and by %d", a.chosen, b.chosen)
		}
		for n, c := range s.conns {
			if n == a.chosen && (c.closed[0] || c.closed[1]) {
				return fmt.Errorf("the chosen connection was closed")
			}
			if n != a.chosen && !c.dialing && (!c.closed[0] || !c.closed[1]) {
				return fmt.Errorf("connection %d was left open", n)
			}
		}
	case a.chosen >= 0 || b.chosen >= 0:
		e := a
		if b.chosen >= 0 {
			e = b
		}
		if c := s.conns[e.chosen]; !c.closed[0] || !c.closed[1] {
			return fmt.Errorf("half a connection: %d", e.chosen)
		}
	}
	return nil
}

func newPeerSim(choose func(int) int, seed uint64, equality int, deadline time.Duration) *peerSim {
	s := &peerSim{choose: choose, now: t0}
	ips := [2]string{"10.0.0.9", "10.0.0.10"}
	discs := [2]string{"left", "right"}
	if equality > 0 {
		ips[1] = ips[0]
	}
	if equality > 1 {
		discs[1] = discs[0]
	}
	for i := range s.ends {
		s.ends[i] = &simEnd{
			ip: netip.MustParseAddr(ips[i]), out: -1, chosen: -1, nextPort: uint16(1000 + 7*i),
			m: &peer{local: disc(discs[i]), remote: disc(discs[1-i]), deadline: t0.Add(deadline),
				random: rand.New(rand.NewPCG(seed, uint64(i)))},
		}
		if equality > 2 {
			s.ends[i].nextPort = 1000 // both ends use equal port numbers, so that ties occur
		}
	}
	return s
}

var equalities = []string{"addresses differ", "discriminators differ", "ports differ", "nothing differs"}

// Every interleaving of two crossing requests ends with exactly one connection. The test tries all
// interleavings, up to a number of early timers. With equal port numbers it tries only random
// interleavings, because a tie can repeat. [VIT-4-1] [V-32] [V-33]
func TestVIT_4_EveryInterleaving(t *testing.T) {
	for equality, name := range equalities[:3] {
		t.Run(name, func(t *testing.T) {
			runs := 0
			for path, more := []int(nil), true; more; runs++ {
				var widths []int
				choose := func(n int) int {
					k := len(widths)
					widths = append(widths, n)
					if k == len(path) {
						path = append(path, 0)
					}
					return path[k]
				}
				s := newPeerSim(choose, 1, equality, time.Minute)
				if err := s.run(); err != nil {
					t.Fatalf("%v\n%s", err, s.log.String())
				} else if s.ends[0].chosen < 0 {
					t.Fatalf("not connected\n%s", s.log.String())
				}
				// This computes the next path in lexical order.
				more = false
				for k := len(path) - 1; k >= 0; k-- {
					if path[k]+1 < widths[k] {
						path, more = append(path[:k:k], path[k]+1), true
						break
					}
				}
			}
			t.Logf("%d interleavings", runs)
			if runs < 100 {
				t.Errorf("only %d interleavings", runs)
			}
		})
	}
}

// The test runs random interleavings with early timers and refused connections. With a long
// deadline the ends always connect. With a short deadline both may time out, but never end with two
// connections, or with a connection at only one end. [VIT-4-2] [V-33]
func TestVIT_4_RandomInterleavings(t *testing.T) {
	for equality, name := range equalities {
		for _, short := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/short=%v", name, short), func(t *testing.T) {
				connected := 0
				const runs = 800
				for seed := range uint64(runs) {
					r := rand.New(rand.NewPCG(seed, uint64(equality)))
					deadline := time.Minute
					if short {
						deadline = time.Duration(r.IntN(400)) * time.Millisecond
					}
					s := newPeerSim(r.IntN, seed, equality, deadline)
					s.timers, s.refuses, s.places = r.IntN(6), r.IntN(4), r.IntN(4)
					if err := s.run(); err != nil {
						t.Fatalf("seed %d: %v\n%s", seed, err, s.log.String())
					}
					if s.ends[0].chosen >= 0 && s.ends[1].chosen >= 0 {
						connected++
					} else if !short {
						t.Fatalf("seed %d: %v and %v\n%s", seed, s.ends[0].outcome, s.ends[1].outcome, s.log.String())
					}
				}
				if connected == 0 || short && connected == runs {
					t.Errorf("%d of %d connected", connected, runs)
				}
			})
		}
	}
}

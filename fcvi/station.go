package fcvi

import (
	"sync"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabricd"
	"viaduct/internal/perturb"
)

// A station runs an FC-VI port in real time: it has the state machines of the port and of its
// N_Port, with the lock, clock and link of the machines. Only one goroutine at a time runs the
// machines: a poster, the receiver, or the timer. The link queues the sent frames, and flush writes
// the frames after the lock was released.
type station struct {
	mu     perturb.Mutex
	start  time.Time // guarded by mu: time 0 of the clock, moved by the time that the clock did not count
	at     fc.Time   // guarded by mu: time of the clock when mu was locked
	np     *fc.NPort
	p      *port
	armed  fc.Time // guarded by mu: time at which the timer fires; fc.Never if it is not set
	waited bool    // guarded by mu: the timer was late and was set again
	timer  *time.Timer
	dead   bool // guarded by mu: the station is closed
	out    outlet
	open   []*viConsumer // guarded by mu: consumers whose settle must run

	breaks sync.WaitGroup
}

// An outlet is the link of a station.
type outlet interface {
	fc.Sender
	room(dst fc.Addr) int // lower bound of the number of frames that the link can take
	flush()
	poller(dst fc.Addr) poller // nil if there is no link to poll
	close()
}

type poller interface {
	Poll() bool
	Unpoll()
}

func newStation(pc fc.PortConfig, mc machineConfig, out func(s *station) (outlet, error)) (*station, error) {
	s := &station{start: time.Now(), armed: fc.Never}
	s.mu.Lock()
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.np = fc.NewNPort(pc, (*frameSender)(s))
	s.p = newPort(s.np, mc, s.room)
	s.mu.Unlock()
	o, err := out(s)
	if err != nil {
		s.timer.Stop()
		return nil, err
	}
	return s, o.(starter).begin(s)
}

// room returns a lower bound of the number of frames the link to dst can take, 1 without a link.
// The port calls it as port.room.
func (s *station) room(dst fc.Addr) int {
	if s.out == nil {
		return 1
	}
	return s.out.room(dst)
}

// A starter is an outlet that delivers frames only after begin. Before begin the station does not
// yet own the outlet.
type starter interface{ begin(s *station) error }

// A frameSender passes frames to the station's outlet, if any.
type frameSender station

func (s *frameSender) Send(f *fc.Frame) {
	if s.out != nil {
		s.out.Send(f)
	}
}

func (s *frameSender) SendRun(f *fc.Frame, size int, data []byte) {
	if s.out != nil {
		fc.SendRun(s.out, f, size, data)
	}
}

// lock takes mu and reads the clock. The clock never passes the next timer, because the timer's
// work must be done first.
//
// If the next timer is late by more than a quarter of E_D_TOV, the whole host was stopped, or too
// busy to read its peers' frames. The silence of the peers proves nothing then. So the time since
// the port last ran is not counted. The timer is set again, once, and the peers' frames are handled
// before it fires. [FCVI-8.3-6]
func (s *station) lock() {
	s.mu.Lock()
	now := time.Since(s.start)
	if now-s.armed > s.np.EDTOV()/4 && !s.waited && !s.dead {
		s.waited = true
		s.start = s.start.Add(now - s.at)
		s.timer.Reset(s.armed - s.at)
		return
	}
	s.at = min(now, s.armed)
}

// now returns the time when mu was locked.
func (s *station) now() fc.Time { return s.at }

// enter locks the machines. leave unlocks them, sets the timer and writes queued frames.
func (s *station) enter() fc.Time {
	s.lock()
	return s.at
}

func (s *station) leave() {
	for i, v := range s.open {
		v.settle()
		s.open[i] = nil
	}
	s.open = s.open[:0]
	if at := s.np.Deadline(); at < s.armed && !s.dead {
		s.armed = at
		s.timer.Reset(max(0, at-s.at))
	}
	out := s.out
	s.mu.Unlock()
	if out != nil {
		out.flush()
	}
}

// tick runs the due timers.
func (s *station) tick() {
	s.lock()
	switch {
	case s.dead:
	case s.at < s.armed && s.armed != fc.Never: // the timer fired too early, or lock has postponed it
		s.timer.Reset(s.armed - s.at)
	default:
		s.armed, s.waited = fc.Never, false
		s.np.Tick(s.at)
	}
	s.leave()
}

// do runs fn with the machines locked, unless the station is closed.
func (s *station) do(fn func(now fc.Time)) {
	now := s.enter()
	if !s.dead {
		fn(now)
	}
	s.leave()
}

// drainTime is the time a closed station waits for peers to answer the disconnects.
const drainTime = 5 * time.Second

// close ends the station. It abandons set-ups, and waits up to drainTime for the answers to
// disconnects. No machine runs afterwards.
func (s *station) close() {
	done := make(chan struct{}, 1)
	left := 0
	now := s.enter()
	if s.dead {
		s.leave()
		return
	}
	for _, c := range s.p.handles.all() {
		c.abandon(now)
		if c.state == stConnected { // the engine has not stopped this link, because the link has no owner
			c.up = nil
			c.disconnect(now)
		}
		if !c.gone {
			left++
			c.ended = append(c.ended, func() {
				if left--; left == 0 {
					done <- struct{}{}
				}
			})
		}
	}
	wait := left > 0
	s.leave()
	if wait {
		select {
		case <-done:
		case <-time.After(drainTime):
		}
	}
	now = s.enter()
	s.dead = true
	for _, c := range s.p.handles.all() {
		c.release(now, 0)
	}
	s.leave()
	s.timer.Stop()
	s.out.close()
	s.breaks.Wait()
}

// --- the station as a device of a fabric in this process

func (s *station) Enter() { s.lock() }
func (s *station) Leave() { s.leave() }

// The switch calls LinkUp, LinkDown, Receive and LinkRoom between Enter and Leave.
func (s *station) LinkUp(now fc.Time, info fc.LinkInfo) { s.np.LinkUp(now, info) }
func (s *station) LinkDown(now fc.Time)                 { s.np.LinkDown(now) }
func (s *station) Receive(now fc.Time, f *fc.Frame)     { s.np.Receive(now, f) }
func (s *station) LinkRoom(now fc.Time)                 { s.p.linkRoom(now) }

// A localOutlet attaches a station to the switch of a daemon inside the process.
type localOutlet struct {
	d *fabricd.Daemon
	l *fabricd.Local
}

func (o *localOutlet) begin(s *station) error {
	_, err := o.d.Attach(s.now, func(out fc.Sender) fabricd.LocalDevice {
		o.l = out.(*fabricd.Local)
		s.mu.Lock()
		s.out = o
		s.mu.Unlock()
		return s
	})
	return err
}

func (o *localOutlet) Send(f *fc.Frame) { o.l.Send(f) }
func (o *localOutlet) SendRun(f *fc.Frame, size int, data []byte) {
	o.l.SendRun(f, size, data)
}
func (o *localOutlet) room(dst fc.Addr) int { return o.l.Room(dst) }
func (o *localOutlet) flush()               { o.l.Flush() }
func (o *localOutlet) close()               { o.l.Close() }
func (o *localOutlet) poller(dst fc.Addr) poller {
	if l := o.l.Link(dst); l != nil {
		return l
	}
	return nil
}

package fcvi

import (
	"context"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
)

// A linkOutlet attaches a station to an FCIP link: the station's N_Port logs in to the fabric at
// the other end. It serves a single link. A station that stays in its fabric after the link is lost
// gets a new outlet for the next link.
type linkOutlet struct {
	l    *fcip.Link
	keep *keeper // makes the next link; nil if a lost link is not replaced
	s    *station

	now   fc.Time         // time of the current batch; guarded by the station
	yield func(*fc.Frame) // the method frame, allocated once
}

// A keeper brings a station back to the fabric when the link is lost.
type keeper struct {
	ctx    context.Context // ends with the device
	redial fcip.Redialer
}

func (o *linkOutlet) begin(s *station) error {
	o.attach(s)
	return nil
}

// attach makes o the outlet of s and starts the login of the N_Port. It returns false if s is
// closed.
func (o *linkOutlet) attach(s *station) bool {
	o.s, o.yield = s, o.frame
	now := s.enter()
	defer s.leave()
	if s.dead {
		return false
	}
	s.out = o
	s.np.LinkUp(now, fc.LinkInfo{})
	o.l.Start(o)
	return true
}

func (o *linkOutlet) Send(f *fc.Frame) { o.l.Send(f) }
func (o *linkOutlet) SendRun(f *fc.Frame, size int, data []byte) {
	o.l.SendRun(f, size, data)
}
func (o *linkOutlet) room(fc.Addr) int      { return o.l.Room() }
func (o *linkOutlet) flush()                { o.l.Flush() }
func (o *linkOutlet) close()                { o.l.Close() }
func (o *linkOutlet) poller(fc.Addr) poller { return o.l }

// current reports whether o is the outlet of an open station. The caller holds the station's lock.
func (o *linkOutlet) current() bool { return !o.s.dead && o.s.out == outlet(o) }

// Frames handles a batch of frames while it holds the station's lock. It drops the frames if o is
// no longer the station's outlet.
func (o *linkOutlet) Frames(recv func(yield func(f *fc.Frame))) {
	s := o.s
	o.now = s.enter()
	if o.current() {
		recv(o.yield)
	}
	s.leave()
}

func (o *linkOutlet) frame(f *fc.Frame) { o.s.np.Receive(o.now, f) }

// Room resumes the connections that wait for the link.
func (o *linkOutlet) Room() { o.s.do(o.s.p.linkRoom) }

// Down ends every login, because the ports beyond the link can't be reached. The other end of the
// link waits until this end closes the link. [FCFS-3.2-5]
func (o *linkOutlet) Down(err error) {
	o.s.do(func(now fc.Time) {
		if !o.current() {
			return
		}
		o.s.np.LinkLost(now)
		o.s.breaks.Go(func() {
			o.l.Close()
			if o.keep != nil {
				o.restore(err)
			}
		})
	})
}

// restore dials the fabric until the station has joined it again, or the device is closed.
// Listeners belong to the port and survive the loss of the link.
func (o *linkOutlet) restore(why error) {
	log := o.keep.redial.Config.Logger
	if log != nil {
		log.Warn("link to fabric lost", "remote", o.keep.redial.Address, "err", why)
	}
	l, err := o.keep.redial.Dial(o.keep.ctx)
	if err != nil {
		return // the device is closed, which ended the dialling
	}
	if !(&linkOutlet{l: l, keep: o.keep}).attach(o.s) {
		l.Close()
		return
	}
	if log != nil {
		log.Info("link to fabric restored", "remote", o.keep.redial.Address)
	}
}

package sock

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/budget"
	"viaduct/internal/shm"
)

// Two processes that have memory of a connection that has ended agree on the next one in
// that memory: the dialer asks there before the listener has accepted the connection, most of the
// time, and the goroutine that accepts it looks there. What is asked for is the name of the TCP
// connection, and both sides check it as they do otherwise. The bells are those of the
// connection before: nothing but looking for the owner of the other end takes a system call.
//
// A listener that does not look in time, since the dialer has asked later than it accepted,
// is asked at the rendezvous.

// lookAgain is how long an accepting goroutine looks for a request, and againTimeout how
// long a dialer sleeps for the answer after it has polled. Tests change them.
var (
	lookAgain    = 30 * time.Microsecond
	againTimeout = 200 * time.Microsecond
)

var (
	againAnswers budget.Budget // of dialers that poll for the answer
	patience     = budget.Rule{Grace: 2, Max: 7}
)

// askAgain asks for shared memory by what is kept of a connection before. answered is
// false if there is none, or the listener does not look there.
func (o *conn) askAgain(m meeting, names []string) (answered bool, err error) {
	for _, name := range names {
		for mem := shm.Reuse(name); mem != nil; mem = shm.Reuse(name) {
			r := againRings(mem, true)
			r.keeper.Place = name
			if answered, err = o.askBy(m, r); answered && err == nil {
				err = o.s.adopt(r)
			}
			if answered && err == nil {
				return true, nil
			}
			r.drop()
			if !r.gone.Load() {
				return answered, err
			}
		}
	}
	return false, nil
}

// againRings makes rings of memory of a connection before.
func againRings(mem *shm.Memory, first bool) *rings {
	bells := mem.Files()
	return newRings(mem, first, bells[0], bells[1])
}

// drop gives rings back that no Socket has.
func (r *rings) drop() {
	r.mem.Close()
	closeAll([]int{r.bell, r.room})
}

// askBy asks by the memory of r. All that takes a while is done while the listener is at it.
func (o *conn) askBy(m meeting, r *rings) (answered bool, err error) {
	var what [namesLen]byte
	r.mem.Ask(m.appendNames(what[:0]))
	if !r.empties() {
		return false, nil
	}
	uid, err := sameUser(r.bell)
	if err != nil {
		r.mem.Leave()
		return true, err
	}
	owned := checkOwner(o.s.fd, m.to, m.from, uid) // see ask
	yes := false
	look := func() (done bool) {
		yes, done = r.mem.Answered()
		return done
	}
	if !look() && !within(soon, &againAnswers, &seldom, look) {
		if r.mem.Await() {
			r.awaitBell(againTimeout)
		}
		if r.mem.Withdraw() {
			return false, nil
		}
		look()
	}
	switch {
	case !yes:
		return false, nil // the reason is told at the rendezvous
	case owned != nil:
		if err := checkOwner(o.s.fd, m.to, m.from, uid); err != nil {
			r.mem.Leave()
			return true, err
		}
	}
	r.mem.Commit()
	return true, nil
}

// awaitBell sleeps until something rings, for d at most.
func (r *rings) awaitBell(d time.Duration) {
	left := unix.NsecToTimespec(int64(d))
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(r.bell), Events: unix.POLLIN}}, &left, nil)
}

// empties takes what is left in the bells of a connection before. It is false if the
// peer's process has hung up.
func (r *rings) empties() bool {
	r.hush(r.room)
	r.hush(r.bell)
	return !r.gone.Load()
}

// awaitAgain looks whether o, which was just accepted, is asked for by memory of a
// connection before. That may be going to be the case, so it looks for a moment.
func (v *rendezvous) awaitAgain(o *conn) (asked bool) {
	if !shm.Asks() || !isHere(addrPort(o.local), addrPort(o.remote)) {
		return false
	}
	try := func() bool { return v.grantAgain(o) }
	return try() || worth(&v.requests) && poll(lookAgain, &v.requests, &patience, try)
}

// grantAgain serves a request for o that is there by memory of a connection before. It is
// false if there is none.
func (v *rendezvous) grantAgain(o *conn) (asked bool) {
	m := meeting{from: addrPort(o.remote), to: addrPort(o.local)}
	var what [namesLen]byte
	mem := shm.Asked(v, m.appendNames(what[:0]))
	if mem == nil {
		return false
	}
	r := againRings(mem, false)
	r.keeper.By = v
	decided, err := o.s.decide(false)
	if err == nil {
		err = r.mayGrant(o, m)
	}
	ok, wake := mem.Grant(err == nil)
	if wake {
		r.ring(r.bell)
	}
	if err != nil || !ok {
		if decided != nil {
			decided()
		}
		r.drop()
		return false
	}
	end := func() {
		if yes, _ := mem.Committed(); !yes {
			o.s.setWhy("the peer has left the rendezvous")
			r.drop()
		} else if o.s.adopt(r) != nil {
			r.drop()     // the dialer has committed: what it finds is the end of the connection
			go o.Close() // which waits for a reader, as this may be
		}
		decided()
		v.remove(o)
	}
	decision := func() bool {
		_, decided := mem.Committed()
		return decided
	}
	if decision() || worth(&v.decisions) && poll(soon, &v.decisions, &patience, decision) {
		end()
		return true
	}
	go func() { // the dialer does not get on
		for start := time.Now(); !decision() && !r.gone.Load() && time.Since(start) < commitTimeout; r.look() {
			time.Sleep(min(max(time.Since(start), 50*time.Microsecond), time.Millisecond))
		}
		end()
	}()
	return true
}

// mayGrant checks a request for o, which waits for the verdict.
func (r *rings) mayGrant(o *conn, m meeting) error {
	if !r.empties() {
		return errors.New("the peer's process has hung up")
	}
	if err := o.s.checkPeer(r.bell, m); err != nil {
		return err
	}
	if o.s.sleeps() {
		r.in.Ask() // see adopt
	}
	return nil
}

// sleeps reports whether a reader may sleep at the TCP socket.
func (s *Socket) sleeps() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.in.f != nil
}

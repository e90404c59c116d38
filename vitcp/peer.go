package vitcp

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"viaduct/internal/wire/vitcpwire"
)

// A peerState is a state of a peer-to-peer request. [VIT 4] [V-33]
//
//	                 request - dial
//	                      |
//	                      v
//	+---------+ retry  +---------+  TCP established    +-----------+
//	|         |------->| Dialing |-------------------->| Requested |
//	|         |        +---------+  - Connect Request  +-----------+
//	|         |  TCP fails  |                             |  |  |
//	| Waiting |<------------+     No Match, crossed,      |  |  |
//	|         |<------------------closed------------------+  |  |
//	|         |                                              |  |
//	|         |  their request - accept it                   |  |
//	|         |----------------------+                       |  |
//	+---------+                      v                       |  |
//	               (Dialing too) +-----------+ Accept, or    |  |
//	                             | Connected |<--------------+  |
//	                             +-----------+ their request,   |
//	                                           we are lower     |
//	     timeout, cancelled, refused, violation  +------+       |
//	         (from every state but Connected) -->| Over |<------+
//	                                             +------+
//
// The peer may wait at several addresses if processes share the peer's port; see sharing.go. A
// failed TCP set-up or a No Match then leads to Dialing at once, until each address was tried.
type peerState uint8

const (
	peerIdle      peerState = iota // the request was not made yet
	peerDialing                    // TCP set-up is in progress; nothing was sent
	peerRequested                  // this side's Connect Request was sent
	peerWaiting                    // this side has no connection; the machine waits before the next attempt
	peerConnected                  // one connection is chosen; its Connect Accept was sent or received
	peerOver                       // the attempt failed, and stepDone has reported why
)

var peerStateNames = [...]string{"Idle", "Dialing", "Requested", "Waiting", "Connected", "Over"}

func (s peerState) String() string { return peerStateNames[s] }

// These are the limits of the random pause after two crossing requests of equal rank; see order.
// [V-32]
const (
	minTiePause = 10 * time.Millisecond
	maxTiePause = 100 * time.Millisecond
)

// An incomingRequest is a Connect Request of the peer matching the local request.
type incomingRequest struct {
	conn          int            // the driver's number for the connection
	local, remote netip.AddrPort // the addresses of the connection's ends
	mismatch      bool           // the attributes do not match
}

// A peer is the machine of a peer-to-peer connection request, without sockets and clocks. The
// methods are the events, and each returns the steps to perform. An event panics if impossible in
// the current state. The machine ends with at most one connection: the local request's, if accepted
// by the peer, or the peer's, if accepted here.
type peer struct {
	local, remote vitcpwire.Discriminator
	deadline      time.Time    // deadline of the caller; zero means none
	random        *rand.Rand   // for the pause of [V-32]
	state         peerState    // current state
	from          netip.Addr   // in peerRequested: address of this end of the outgoing connection
	fromPort      uint16       // in peerRequested: port of this end
	retryAt       time.Time    // in peerWaiting: time of the next attempt
	backoff       backoff      // pauses between attempts, except after a tie
	tied          bool         // in peerRequested: order ranks this side's request and the peer's as equal
	more          bool         // the peer may wait at another address, which is dialled next
	last          setupOutcome // the outcome to report after a timeout
	lastErr       error        // cause of last, or nil
}

func (p *peer) to(s peerState) { p.state = s }

func (p *peer) end(out setupOutcome, err error, first ...setupStep) []setupStep {
	p.to(peerOver)
	return append(first, setupStep{do: stepDone, out: out, err: err})
}

// next dials the next possible address of the peer, without a pause. If all were tried, or after a
// tie, next pauses as wait does.
func (p *peer) next(now time.Time, steps ...setupStep) []setupStep {
	if !p.more || p.tied {
		return p.wait(now, steps...)
	}
	p.to(peerDialing)
	return append(steps, setupStep{do: stepDial})
}

// wait starts the pause before the next attempt: a growing pause, or a random pause after a tie.
func (p *peer) wait(now time.Time, steps ...setupStep) []setupStep {
	pause := minTiePause
	if p.tied {
		pause += time.Duration(p.random.Int64N(int64(maxTiePause - minTiePause)))
	} else {
		pause = p.backoff.next()
	}
	p.tied = false
	p.retryAt = now.Add(pause)
	p.to(peerWaiting)
	return steps
}

// wakeAt returns the time when the driver must call timer, or the zero time for never.
func (p *peer) wakeAt() time.Time {
	switch p.state {
	case peerDialing, peerRequested:
		return p.deadline
	case peerWaiting:
		return earlier(p.retryAt, p.deadline)
	case peerIdle, peerConnected, peerOver:
	}
	return time.Time{}
}

// request handles the VI consumer's request.
func (p *peer) request() []setupStep {
	switch p.state {
	case peerIdle:
		p.last = outcomeTimeout
		p.to(peerDialing)
		return []setupStep{{do: stepDial}}
	case peerDialing, peerRequested, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: peer request in state " + p.state.String())
}

// tcpEstablished handles the end of the TCP set-up of the outgoing connection. from is the local
// address.
func (p *peer) tcpEstablished(from netip.AddrPort) []setupStep {
	switch p.state {
	case peerDialing:
		p.from, p.fromPort = plainAddr(from.Addr()), from.Port()
		p.to(peerRequested)
		return []setupStep{{do: stepSendRequest}}
	case peerIdle, peerRequested, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: TCP established in state " + p.state.String())
}

// tcpFailed handles a failure of the outgoing TCP set-up. The machine tries again, because the peer
// may not be up yet. [VIT-4-2]
func (p *peer) tcpFailed(now time.Time, err error) []setupStep {
	switch p.state {
	case peerDialing:
		p.last, p.lastErr = outcomeNotReachable, err
		return p.next(now)
	case peerIdle, peerRequested, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: TCP failed in state " + p.state.String())
}

// tcpClosed handles a close of the outgoing connection by the peer, without an answer. The machine
// tries again after a pause. [V-34]
func (p *peer) tcpClosed(now time.Time, err error) []setupStep {
	switch p.state {
	case peerRequested:
		p.last, p.lastErr = outcomeTimeout, err
		return p.wait(now, setupStep{do: stepClose})
	case peerIdle, peerDialing, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: TCP closed in state " + p.state.String())
}

// accepted handles a valid Connect Accept on the outgoing connection.
func (p *peer) accepted() []setupStep {
	switch p.state {
	case peerRequested:
		p.to(peerConnected)
		return []setupStep{{do: stepDone, out: outcomeConnected}}
	case peerIdle, peerDialing, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: accepted in state " + p.state.String())
}

// rejected handles a Connect Reject on the outgoing connection. The peer may prefer the other
// connection, whose request must then be in flight. If no request arrives, the machine tries again.
// [V-33]
func (p *peer) rejected(now time.Time, code uint8) []setupStep {
	switch p.state {
	case peerRequested:
		switch code {
		case 0: // the peer gives no reasons
			p.last, p.lastErr = outcomeRejected, nil
		case rejectCrossed:
			p.last, p.lastErr = outcomeTimeout, nil
		default:
			return p.end(rejectOutcome(code), nil, setupStep{do: stepClose})
		}
		return p.wait(now, setupStep{do: stepClose})
	case peerIdle, peerDialing, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: rejected in state " + p.state.String())
}

// noMatch handles a Connect No Match: the peer has made no request yet. The machine tries again.
// [VIT-4-2]
func (p *peer) noMatch(now time.Time) []setupStep {
	switch p.state {
	case peerRequested:
		p.last, p.lastErr = outcomeTimeout, nil
		return p.next(now, setupStep{do: stepClose})
	case peerIdle, peerDialing, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: no match in state " + p.state.String())
}

// violated handles an invalid answer on the outgoing connection.
func (p *peer) violated(err error) []setupStep {
	switch p.state {
	case peerRequested:
		return p.end(outcomeViolation, err, setupStep{do: stepClose})
	case peerIdle, peerDialing, peerWaiting, peerConnected, peerOver:
	}
	panic("vitcp: violation in state " + p.state.String())
}

// incoming handles a request of the peer matching the local request. If the local request has not
// been sent, incoming accepts the peer's. Otherwise the lower side yields, closes its own
// connection and accepts the peer's. [VIT-4-1] [V-32] [V-33]
func (p *peer) incoming(in incomingRequest) []setupStep {
	accept := []setupStep{{do: stepSendAccept, conn: in.conn}, {do: stepDone, out: outcomeConnected, conn: in.conn}}
	switch p.state {
	case peerDialing, peerRequested, peerWaiting:
		if in.mismatch {
			steps := []setupStep{{do: stepSendReject, conn: in.conn, code: rejectAttributes}}
			if p.state != peerWaiting {
				steps = append(steps, setupStep{do: stepClose})
			}
			return p.end(outcomeAttributes, nil, steps...)
		}
		if p.state == peerWaiting {
			p.to(peerConnected)
			return accept
		}
		order := -1
		if p.state == peerRequested {
			order = p.order(in)
		}
		switch {
		case order < 0:
			p.to(peerConnected)
			return append([]setupStep{{do: stepClose}}, accept...)
		case order > 0:
			return []setupStep{{do: stepSendReject, conn: in.conn, code: rejectCrossed}}
		}
		// The peer still answers the local request, in the same way. The request is not withdrawn,
		// because its arrival at the peer may resolve the tie.
		p.tied = true
		return []setupStep{{do: stepSendNoMatch, conn: in.conn}}
	case peerConnected, peerOver, peerIdle:
	}
	// It is too late: the driver found the call before the call was removed from the table.
	return []setupStep{{do: stepSendNoMatch, conn: in.conn}}
}

// order compares the local end with the peer's. The result is negative if the local end is lower,
// and 0 if both are equal. It uses the IP addresses of the incoming connection, because both sides
// see the same addresses. [V-32]
func (p *peer) order(in incomingRequest) int {
	if c := plainAddr(in.local.Addr()).Compare(plainAddr(in.remote.Addr())); c != 0 {
		return c
	}
	if c := p.local.Compare(p.remote); c != 0 {
		return c
	}
	return int(p.fromPort) - int(in.remote.Port())
}

// isOwn reports whether a request from the given address was sent by the machine itself. A VI
// calling its own address and discriminator must not be connected to itself.
func (p *peer) isOwn(from netip.AddrPort) bool {
	return p.state == peerRequested && from.Port() == p.fromPort && plainAddr(from.Addr()) == p.from
}

// plainAddr returns a without zone, and an IPv4-mapped address as IPv4, because the order compares
// IPv4 as 4 bytes, and the shorter family is lower.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// timer handles the time returned by wakeAt. An early call, or a call in a state without a time,
// returns nil.
func (p *peer) timer(now time.Time) []setupStep {
	late := !p.deadline.IsZero() && !now.Before(p.deadline)
	switch p.state {
	case peerDialing, peerRequested:
		if late {
			return p.end(p.last, p.lastErr, setupStep{do: stepClose})
		}
	case peerWaiting:
		if late {
			return p.end(p.last, p.lastErr)
		}
		if !now.Before(p.retryAt) {
			p.to(peerDialing)
			return []setupStep{{do: stepDial}}
		}
	case peerIdle, peerConnected, peerOver:
	}
	return nil
}

// cancel handles the VI consumer's request to cancel the attempt.
func (p *peer) cancel() []setupStep {
	switch p.state {
	case peerDialing, peerRequested:
		return p.end(outcomeCancelled, nil, setupStep{do: stepClose})
	case peerWaiting, peerIdle:
		return p.end(outcomeCancelled, nil)
	case peerConnected, peerOver:
	}
	return nil
}

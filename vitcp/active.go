package vitcp

import (
	"fmt"
	"time"
)

// An activeState is a state of the calling side while it sets a connection
// up. [VIT 4.2]
//
//	             +----------------+
//	             |  Disconnected  |<--------------------------------+
//	             +----------------+                                 |
//	                     | connect                                  |
//	                     v                                          |
//	             +----------------+  TCP set-up fails, cancelled    |
//	   +-------->|   Connecting   |-------------------------------->+
//	   |         +----------------+                                 |
//	   | back-off        | TCP established - Connect Request        |
//	   | over            v                                          |
//	+------------+ closed +----------------+  Reject, No Match,     |
//	| BackingOff |<-------| Pending Accept |  timeout, violation    |
//	+------------+        +----------------+ ---------------------->+
//	                     | Connect Accept                           |
//	                     v                                          |
//	             +----------------+  VI or TCP disconnect           |
//	             |   Connected    |-------------------------------->+
//	             +----------------+  - close TCP
//
// BackingOff is not in the draft's figure: it is the wait before its arrow
// from Pending Accept back to Connecting. [V-34]
type activeState uint8

const (
	activeDisconnected activeState = iota // nothing exists
	activeConnecting                      // TCP is being set up
	activePending                         // the Connect Request was sent, the answer is awaited
	activeBackingOff                      // TCP closed; the next attempt waits for its time
	activeConnected                       // the Connect Accept was received; the VI connection exists
)

var activeStateNames = [...]string{"Disconnected", "Connecting", "Pending Accept", "Backing Off", "Connected"}

func (s activeState) String() string { return activeStateNames[s] }

// A setupStep is one action that a set-up machine asks its driver for. The driver performs a list
// of steps in order.
type setupStep struct {
	do   setupAction
	conn int          // peer-to-peer: the incoming connection of the step; else 0
	code uint8        // stepReject: the reason [V-46]
	out  setupOutcome // stepDone
	err  error        // stepDone: the cause, may be nil
}

type setupAction uint8

const (
	stepDial        setupAction = iota + 1 // start to set TCP up; the result is a later event
	stepSendRequest                        // send the Connect Request on the outgoing connection
	stepClose                              // close the outgoing connection, or stop setting it up
	stepSendAccept                         // answer the incoming connection
	stepSendReject                         // answer it and close it
	stepSendNoMatch                        // answer it and close it
	stepOffer                              // offer the request to the call that waits for its discriminator
	stepMatch                              // look for a call that waits
	stepCloseIn                            // close the incoming connection
	stepDone                               // tell the VI consumer how it ended
)

var setupActionNames = [...]string{"", "dial", "send Connect Request", "close TCP", "send Connect Accept",
	"send Connect Reject", "send Connect No Match", "offer", "match", "close TCP", "report"}

func (s setupStep) String() string {
	switch s.do {
	case stepSendReject:
		return fmt.Sprintf("%s(%d)", setupActionNames[s.do], s.code)
	case stepDone:
		return fmt.Sprintf("%s %v", setupActionNames[s.do], s.out)
	}
	return setupActionNames[s.do]
}

// A setupOutcome says how an attempt to connect ended.
type setupOutcome uint8

const (
	outcomeConnected    setupOutcome = iota // the VI connection exists
	outcomeTimeout                          // the caller's time ran out
	outcomeRejected                         // the peer refused
	outcomeAttributes                       // the peer refused because of attributes, or we did
	outcomeResources                        // the peer is out of resources
	outcomeVersion                          // the peer knows no such version
	outcomeNoMatch                          // no call waits for the discriminator
	outcomeNotReachable                     // TCP could not be set up
	outcomeLost                             // TCP closed instead of an answer
	outcomeViolation                        // the answer was against the protocol
	outcomeCancelled                        // the VI consumer gave up
	outcomeDisconnected                     // a connection that had been made has ended
)

var setupOutcomeNames = [...]string{"connected", "timeout", "rejected", "attributes", "resources", "version",
	"no match", "not reachable", "lost", "violation", "cancelled", "disconnected"}

func (o setupOutcome) String() string { return setupOutcomeNames[o] }

// rejectOutcome translates the reason of a Connect Reject. [V-46]
func rejectOutcome(code uint8) setupOutcome {
	switch code {
	case rejectAttributes:
		return outcomeAttributes
	case rejectResources:
		return outcomeResources
	case rejectVersion:
		return outcomeVersion
	}
	return outcomeRejected
}

// The pauses before a new attempt: the first, doubled each time up to the
// last. [V-33] [V-34]
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = time.Second

	// maxReestablish bounds the attempts of a caller without a deadline. A deadline, if there is
	// one, is the bound instead. [V-34]
	maxReestablish = 8
)

// A backoff yields growing pauses.
type backoff struct {
	pause time.Duration
	tries int
}

func (b *backoff) next() time.Duration {
	b.tries++
	b.pause = min(max(firstBackoff, 2*b.pause), lastBackoff)
	return b.pause
}

// An active is the calling side of the client-server model: the machine of [VIT 4.2] without
// sockets or clocks. Its methods are the events, and each returns the steps to perform. After each
// event the driver asks wakeAt when the timer is due. The zero value is ready for use; a deadline
// is optional.
type active struct {
	deadline time.Time // of the caller; zero: none

	state   activeState
	retryAt time.Time // in activeBackingOff
	backoff backoff
}

// to moves to state s.
func (a *active) to(s activeState) { a.state = s }

// end moves to Disconnected and reports why, after the given steps.
func (a *active) end(out setupOutcome, err error, first ...setupStep) []setupStep {
	a.to(activeDisconnected)
	return append(first, setupStep{do: stepDone, out: out, err: err})
}

// wakeAt returns when timer is to be called, zero for never.
func (a *active) wakeAt() time.Time {
	switch a.state {
	case activeConnecting, activePending:
		return a.deadline
	case activeBackingOff:
		return earlier(a.retryAt, a.deadline)
	case activeDisconnected, activeConnected:
	}
	return time.Time{}
}

// earlier returns the earlier of two times, where zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// connect is the VI consumer's request. [VIT-4.2-1]
func (a *active) connect() []setupStep {
	switch a.state {
	case activeDisconnected:
		a.to(activeConnecting)
		return []setupStep{{do: stepDial}}
	case activeConnecting, activePending, activeBackingOff, activeConnected:
	}
	panic("vitcp: connect in state " + a.state.String())
}

// tcpEstablished: the connection is there. [VIT-4.2-2] [VIT-2.2.2.2.2-4]
func (a *active) tcpEstablished() []setupStep {
	switch a.state {
	case activeConnecting:
		a.to(activePending)
		return []setupStep{{do: stepSendRequest}}
	case activeDisconnected, activePending, activeBackingOff, activeConnected:
	}
	panic("vitcp: TCP established in state " + a.state.String())
}

// tcpFailed: the connection could not be set up. [VIT-4.2-1] [VIT-2.2.2.2.2-7]
func (a *active) tcpFailed(err error) []setupStep {
	switch a.state {
	case activeConnecting:
		return a.end(outcomeNotReachable, err)
	case activeDisconnected, activePending, activeBackingOff, activeConnected:
	}
	panic("vitcp: TCP failed in state " + a.state.String())
}

// tcpClosed: the peer closed or reset the connection. If no byte of an answer was received, the
// attempt is repeated. [VIT-4.2-3] [VIT-4.2-6] [V-34]
func (a *active) tcpClosed(now time.Time, sawBytes bool, err error) []setupStep {
	switch a.state {
	case activePending:
		if sawBytes || a.deadline.IsZero() && a.backoff.tries >= maxReestablish {
			return a.end(outcomeLost, err, setupStep{do: stepClose})
		}
		a.retryAt = now.Add(a.backoff.next())
		a.to(activeBackingOff)
		return []setupStep{{do: stepClose}}
	case activeConnected:
		return a.end(outcomeDisconnected, err, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff:
	}
	panic("vitcp: TCP closed in state " + a.state.String())
}

// accepted: a valid Connect Accept was received. [VIT-4.2-5]
func (a *active) accepted() []setupStep {
	switch a.state {
	case activePending:
		a.to(activeConnected)
		return []setupStep{{do: stepDone, out: outcomeConnected}}
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: accepted in state " + a.state.String())
}

// rejected: a Connect Reject was received. [VIT-4.2-4]
func (a *active) rejected(code uint8) []setupStep {
	switch a.state {
	case activePending:
		return a.end(rejectOutcome(code), nil, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: rejected in state " + a.state.String())
}

// noMatch: a Connect No Match was received. The figure leaves it out; in the time line of [VIT 4.1]
// it returns to the caller like a refusal.
func (a *active) noMatch() []setupStep {
	switch a.state {
	case activePending:
		return a.end(outcomeNoMatch, nil, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: no match in state " + a.state.String())
}

// violated: the received bytes are no answer. [V-01] [V-41]
func (a *active) violated(err error) []setupStep {
	switch a.state {
	case activePending:
		return a.end(outcomeViolation, err, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: violation in state " + a.state.String())
}

// timer: the time of wakeAt has come, or may have. [VIT-4.2-4]
func (a *active) timer(now time.Time) []setupStep {
	late := !a.deadline.IsZero() && !now.Before(a.deadline)
	switch a.state {
	case activeConnecting, activePending:
		if late {
			return a.end(outcomeTimeout, nil, setupStep{do: stepClose})
		}
	case activeBackingOff:
		if late {
			return a.end(outcomeTimeout, nil)
		}
		if !now.Before(a.retryAt) {
			a.to(activeConnecting)
			return []setupStep{{do: stepDial}}
		}
	case activeDisconnected, activeConnected:
	}
	return nil
}

// disconnect: the VI consumer gives up or ends the connection. [VIT-4.2-6]
func (a *active) disconnect() []setupStep {
	switch a.state {
	case activeConnecting, activePending:
		return a.end(outcomeCancelled, nil, setupStep{do: stepClose})
	case activeBackingOff:
		return a.end(outcomeCancelled, nil)
	case activeConnected:
		return a.end(outcomeDisconnected, nil, setupStep{do: stepClose})
	case activeDisconnected:
	}
	return nil
}

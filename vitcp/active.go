package vitcp

import (
	"fmt"
	"time"
)

// An activeState is a state of the calling side during connection set-up. [VIT 4.2]
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
// BackingOff is not in the draft's figure, which has an arrow from Pending Accept straight back to
// Connecting. In BackingOff the machine waits before it returns to Connecting. [V-34]
type activeState uint8

const (
	activeDisconnected activeState = iota // nothing exists
	activeConnecting                      // TCP set-up is in progress
	activePending                         // the Connect Request was sent; the machine waits for the answer
	activeBackingOff                      // TCP was closed; the machine waits before the next attempt
	activeConnected                       // the Connect Accept was received; the VI connection exists
)

var activeStateNames = [...]string{"Disconnected", "Connecting", "Pending Accept", "Backing Off", "Connected"}

func (s activeState) String() string { return activeStateNames[s] }

// A setupStep is an action a set-up machine requests from the driver. The driver performs a list of
// steps in order.
type setupStep struct {
	do   setupAction
	conn int          // peer-to-peer: number of the incoming connection; otherwise 0
	code uint8        // stepReject: the reason of the refusal [V-46]
	out  setupOutcome // stepDone: the result of the attempt
	err  error        // stepDone: the cause, or nil
}

type setupAction uint8

const (
	stepDial        setupAction = iota + 1 // start the TCP set-up; its result is a later event
	stepSendRequest                        // send the Connect Request on the outgoing connection
	stepClose                              // close the outgoing connection, or cancel its set-up
	stepSendAccept                         // accept the incoming connection
	stepSendReject                         // answer the incoming connection with Connect Reject and close it
	stepSendNoMatch                        // answer the incoming connection with No Match and close it
	stepOffer                              // offer the request to the call that waits for its discriminator
	stepMatch                              // search for a waiting call
	stepCloseIn                            // close the incoming connection
	stepDone                               // report the outcome to the VI consumer
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

// A setupOutcome is the result of a connection attempt.
type setupOutcome uint8

const (
	outcomeConnected    setupOutcome = iota // the VI connection exists
	outcomeTimeout                          // the caller's deadline has passed
	outcomeRejected                         // the peer refused
	outcomeAttributes                       // the attributes of both sides do not match
	outcomeResources                        // the peer is out of resources
	outcomeVersion                          // the peer does not support this version
	outcomeNoMatch                          // no call waits for the discriminator
	outcomeNotReachable                     // TCP could not be set up
	outcomeLost                             // TCP was closed before an answer
	outcomeViolation                        // the answer violated the protocol
	outcomeCancelled                        // the VI consumer cancelled the attempt
	outcomeDisconnected                     // the connection had been established and has ended
)

var setupOutcomeNames = [...]string{"connected", "timeout", "rejected", "attributes", "resources", "version",
	"no match", "not reachable", "lost", "violation", "cancelled", "disconnected"}

func (o setupOutcome) String() string { return setupOutcomeNames[o] }

// rejectOutcome returns the outcome for the reason code of a Connect Reject: outcomeRejected for an
// unknown code. [V-46]
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

// The pause before the first repeated attempt is firstBackoff. Each further pause is twice as long,
// up to lastBackoff. [V-33] [V-34]
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = time.Second

	// maxReestablish is the maximum number of repeated attempts of a caller without a deadline. For
	// other callers, only the deadline limits the attempts. [V-34]
	maxReestablish = 8
)

// A backoff counts the repeated attempts and computes the growing pauses between them.
type backoff struct {
	pause time.Duration
	tries int
}

func (b *backoff) next() time.Duration {
	b.tries++
	b.pause = min(max(firstBackoff, 2*b.pause), lastBackoff)
	return b.pause
}

// An active is the machine of the calling side in the client-server model [VIT 4.2], without
// sockets and clocks. The methods are the events, and each returns the steps to perform. An event
// panics if impossible in the current state. After each event the driver asks wakeAt when to call
// timer. The zero value is ready for use; setting deadline is optional.
type active struct {
	deadline time.Time // deadline of the caller; zero means none

	state   activeState
	retryAt time.Time // in activeBackingOff: time of the next attempt
	backoff backoff
}

// to changes the state to s.
func (a *active) to(s activeState) { a.state = s }

// end changes the state to Disconnected. It returns the steps in first, followed by a stepDone with
// out and err.
func (a *active) end(out setupOutcome, err error, first ...setupStep) []setupStep {
	a.to(activeDisconnected)
	return append(first, setupStep{do: stepDone, out: out, err: err})
}

// wakeAt returns the time when the driver must call timer, or the zero time for never.
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

// earlier returns the earlier of two times. The zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// connect handles the VI consumer's request to connect. [VIT-4.2-1]
func (a *active) connect() []setupStep {
	switch a.state {
	case activeDisconnected:
		a.to(activeConnecting)
		return []setupStep{{do: stepDial}}
	case activeConnecting, activePending, activeBackingOff, activeConnected:
	}
	panic("vitcp: connect in state " + a.state.String())
}

// tcpEstablished handles a successful TCP set-up. [VIT-4.2-2] [VIT-2.2.2.2.2-4]
func (a *active) tcpEstablished() []setupStep {
	switch a.state {
	case activeConnecting:
		a.to(activePending)
		return []setupStep{{do: stepSendRequest}}
	case activeDisconnected, activePending, activeBackingOff, activeConnected:
	}
	panic("vitcp: TCP established in state " + a.state.String())
}

// tcpFailed ends the attempt after a failure of the TCP set-up. [VIT-4.2-1] [VIT-2.2.2.2.2-7]
func (a *active) tcpFailed(err error) []setupStep {
	switch a.state {
	case activeConnecting:
		return a.end(outcomeNotReachable, err)
	case activeDisconnected, activePending, activeBackingOff, activeConnected:
	}
	panic("vitcp: TCP failed in state " + a.state.String())
}

// tcpClosed handles a close or reset by the peer. In state Pending Accept, the attempt is repeated
// after a pause if no byte of an answer was received and maxReestablish allows another attempt. In
// state Connected the connection has ended. [VIT-4.2-3] [VIT-4.2-6] [V-34]
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

// accepted handles a valid Connect Accept. [VIT-4.2-5]
func (a *active) accepted() []setupStep {
	switch a.state {
	case activePending:
		a.to(activeConnected)
		return []setupStep{{do: stepDone, out: outcomeConnected}}
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: accepted in state " + a.state.String())
}

// rejected handles a Connect Reject. [VIT-4.2-4]
func (a *active) rejected(code uint8) []setupStep {
	switch a.state {
	case activePending:
		return a.end(rejectOutcome(code), nil, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: rejected in state " + a.state.String())
}

// noMatch handles a Connect No Match. The figure in the draft leaves this message out. In the time
// line of [VIT 4.1] the message returns to the caller like a refusal.
func (a *active) noMatch() []setupStep {
	switch a.state {
	case activePending:
		return a.end(outcomeNoMatch, nil, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: no match in state " + a.state.String())
}

// violated handles an invalid answer. [V-01] [V-41]
func (a *active) violated(err error) []setupStep {
	switch a.state {
	case activePending:
		return a.end(outcomeViolation, err, setupStep{do: stepClose})
	case activeDisconnected, activeConnecting, activeBackingOff, activeConnected:
	}
	panic("vitcp: violation in state " + a.state.String())
}

// timer handles the time returned by wakeAt. An early call, or a call in a state without a time,
// returns nil. [VIT-4.2-4]
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

// disconnect handles the VI consumer's request to cancel the attempt or to end the connection. It
// returns nil if there is neither. [VIT-4.2-6]
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

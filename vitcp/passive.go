package vitcp

import "time"

// A passiveState is a state of the called side during connection set-up. [VIT 4.3]
//
//	+--------------+
//	|  Listening   |
//	+--------------+
//	       | TCP connection arrives - accept it
//	       v
//	+--------------+  timeout, TCP closes, violation       +--------------+
//	|   Incoming   |-------------------------------------->|              |
//	+--------------+  - close TCP                          |              |
//	       | Connect Request                               |              |
//	       v                                               |              |
//	+--------------+  no matching discriminator            |              |
//	|   Matching   |-------------------------------------->|              |
//	+--------------+  - Connect No Match; close TCP        | Disconnected |
//	       | discriminator match                           |              |
//	       v                                               |              |
//	+--------------+  refused - Connect Reject; close TCP  |              |
//	|Pending Accept|-------------------------------------->|              |
//	+--------------+  TCP closes - close TCP               |              |
//	       | accepted - Connect Accept                     |              |
//	       v                                               |              |
//	+--------------+  VI or TCP disconnect - close TCP     |              |
//	|  Connected   |-------------------------------------->|              |
//	+--------------+                                       +--------------+
//
// The draft's figure lacks two arrows. A refusal before a consumer is asked (by the Authenticator,
// or because of attributes) leads from Matching to Disconnected with a Connect Reject. A caller's
// disconnection while the VI consumer decides leads from Pending Accept to Disconnected.
type passiveState uint8

const (
	passiveListening    passiveState = iota // nothing has arrived
	passiveIncoming                         // TCP is accepted; the machine waits for the request
	passiveMatching                         // the request was received; the machine searches for a waiting call
	passivePending                          // the VI consumer has to decide
	passiveConnected                        // the Connect Accept was sent; the VI connection exists
	passiveDisconnected                     // the connection was closed or refused
)

var passiveStateNames = [...]string{"Listening", "Incoming", "Matching", "Pending Accept", "Connected", "Disconnected"}

func (s passiveState) String() string { return passiveStateNames[s] }

// A passive is the machine of the called side for an incoming connection in the client-server model
// [VIT 4.3], without sockets and clocks. The methods are the events, and each returns the steps to
// perform. An event panics if impossible in the current state.
type passive struct {
	requestTimeout time.Duration // limit from TCP accept to a complete Connect Request; zero means none [V-35]

	state    passiveState
	deadline time.Time // in passiveIncoming: time when requestTimeout ends; zero means never
}

func (p *passive) to(s passiveState) { p.state = s }

// end changes the state to Disconnected and returns the given steps.
func (p *passive) end(steps ...setupStep) []setupStep {
	p.to(passiveDisconnected)
	return steps
}

// wakeAt returns the time when the driver must call timer, or the zero time for never.
func (p *passive) wakeAt() time.Time {
	if p.state == passiveIncoming {
		return p.deadline
	}
	return time.Time{}
}

// tcpAccepted handles an accepted connection. [VIT-4.3-2] [VIT-2.2.2.2.2-5]
func (p *passive) tcpAccepted(now time.Time) []setupStep {
	switch p.state {
	case passiveListening:
		if p.requestTimeout > 0 {
			p.deadline = now.Add(p.requestTimeout)
		}
		p.to(passiveIncoming)
		return nil
	case passiveIncoming, passiveMatching, passivePending, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: TCP accepted in state " + p.state.String())
}

// request handles a complete and valid Connect Request.
func (p *passive) request() []setupStep {
	switch p.state {
	case passiveIncoming:
		p.to(passiveMatching)
		return []setupStep{{do: stepMatch}}
	case passiveListening, passiveMatching, passivePending, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: request in state " + p.state.String())
}

// violated handles received bytes other than a valid Connect Request. The caller gets no answer.
// [V-01]
func (p *passive) violated() []setupStep {
	switch p.state {
	case passiveIncoming, passivePending:
		return p.end(setupStep{do: stepCloseIn})
	case passiveListening, passiveMatching, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: violation in state " + p.state.String())
}

// noMatch handles a request for whose discriminator no call waits. [VIT-4.3-3]
func (p *passive) noMatch() []setupStep {
	switch p.state {
	case passiveMatching:
		return p.end(setupStep{do: stepSendNoMatch}, setupStep{do: stepCloseIn}) // at once [VIA-6.4-14]
	case passiveListening, passiveIncoming, passivePending, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: no match in state " + p.state.String())
}

// match handles a request for whose discriminator a call waits. [VIT-4.3-4]
func (p *passive) match() []setupStep {
	switch p.state {
	case passiveMatching:
		p.to(passivePending)
		return []setupStep{{do: stepOffer}}
	case passiveListening, passiveIncoming, passivePending, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: match in state " + p.state.String())
}

// reject handles a refusal by the VI consumer, or by a local limit. [VIT-4.3-5]
func (p *passive) reject(code uint8) []setupStep {
	switch p.state {
	case passiveMatching, passivePending:
		return p.end(setupStep{do: stepSendReject, code: code}, setupStep{do: stepCloseIn})
	case passiveListening, passiveIncoming, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: reject in state " + p.state.String())
}

// accept handles the acceptance by the VI consumer. [VIT-4.3-6]
func (p *passive) accept() []setupStep {
	switch p.state {
	case passivePending:
		p.to(passiveConnected)
		return []setupStep{{do: stepSendAccept}}
	case passiveListening, passiveIncoming, passiveMatching, passiveConnected, passiveDisconnected:
	}
	panic("vitcp: accept in state " + p.state.String())
}

// timer handles the time returned by wakeAt. An early call, or a call in a state without a time,
// returns nil. [VIT-4.3-2] [V-35]
func (p *passive) timer(now time.Time) []setupStep {
	switch p.state {
	case passiveIncoming:
		if !p.deadline.IsZero() && !now.Before(p.deadline) {
			return p.end(setupStep{do: stepCloseIn})
		}
	case passiveListening, passiveMatching, passivePending, passiveConnected, passiveDisconnected:
	}
	return nil
}

// closed handles a close or reset by the peer, and a VI consumer that disconnects or no longer
// wants the connection. [VIT-2.2.2.2.2-3]
func (p *passive) closed() []setupStep {
	switch p.state {
	case passiveIncoming, passiveMatching, passivePending, passiveConnected:
		return p.end(setupStep{do: stepCloseIn})
	case passiveListening:
		return p.end()
	case passiveDisconnected:
	}
	return nil
}

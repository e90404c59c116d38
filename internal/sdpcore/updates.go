package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// updates decides when to send an empty Data: to refresh the peer's credit, or to make the peer
// refresh ours while payload waits for credit. [SDP-10.4-1] [D-10]
type updates struct {
	*common
	cr        *credits
	snd       *sender
	mode      *sendMode
	stalled   bool          // payload is waiting for credit
	stalledAt time.Duration // since when
	nudged    bool          // an empty Data was sent to get more credit
	nudgedAt  Time          // when this empty Data was sent
}

// step sends an empty Data that refreshes the peer's credit, or makes the peer refresh ours. waiting
// is whether payload waits only for credit. step reports whether it did. [SDP-10.4-1] [D-10]
func (u *updates) step(waiting bool) bool {
	if !u.due(waiting) && !u.mode.askAck(u.cr.credit()) { // [D-45]
		return false
	}
	u.snd.send(sdpwire.Data, 0)
	u.stats.SentCreditUpdates++
	return true
}

// due reports whether to send an empty Data now. waiting is whether payload waits only for credit.
func (u *updates) due(waiting bool) bool {
	n := u.cr.credit()
	switch {
	case n == 0: // without credit no message may be sent [SDP-10.5-5]
		return false
	case u.cr.mustRefresh(): // this update may take even the last credit [SDP-10.5-2] [SDP-10.5-8]
	case n >= 2 && u.cr.shouldRefresh():
	case !waiting:
		return false
	case u.nudge():
		u.nudged, u.nudgedAt = true, u.now
	case u.inDoubt() && u.now >= u.nudgedAt+u.insistAfter(): // [D-08]
	default:
		return false
	}
	return true
}

// nudge reports whether to spend one of two credits on an empty Data, because payload waits, and the
// peer has no reason to send more credit. There are three cases:
//   - All unacknowledged messages are empty Data, which the peer does not answer while we have two
//     credits.
//   - Message 0 is unacknowledged, and its acknowledgement looks like none. [D-08]
//   - Payload has waited for Timers.Nudge, because the peer gives credit only when one is left.
//     [D-10]
func (u *updates) nudge() bool {
	c := u.cr
	if c.credit() != 2 || c.unacked() == 0 {
		return false
	}
	if u.nudged {
		return u.now-u.nudgedAt >= u.nudgeAgain()
	}
	switch {
	case !c.ackSure && c.unacked() == 1:
		return true
	case !c.acked.less(c.lastReal):
		return true
	}
	return u.stalled && u.now-u.stalledAt >= u.p.Timers.Nudge
}

// inDoubt reports whether payload, if it waits, is stuck because the peer did not answer the empty Data after
// message 0. A peer with three buffers that follows the printed formula literally does not answer:
// for such a peer, its MSeqAck of 0 from set-up has acknowledged message 0. It counts two credits
// where we count one, and need not send more before its count is one. It then gets another empty
// Data, as its count allows. [D-08]
func (u *updates) inDoubt() bool {
	c := u.cr
	return u.nudged && !c.ackSure && c.unacked() == 2 && c.credit() == 1
}

// insistAfter returns how long the peer may take to answer before another empty Data is sent for
// inDoubt. The time is long, and differs between the peers: if both spent their last credit while
// the other's refresh was in flight, both would have none. [D-08]
func (u *updates) insistAfter() time.Duration { return 200 * u.nudgeAgain() }

// nudgeAgain returns the pause before another empty Data. It differs between the peers, because two
// peers that ask each other at the same time would never stop.
func (u *updates) nudgeAgain() time.Duration {
	if u.p.Role == Connecting {
		return u.p.Timers.Nudge
	}
	return 3 * u.p.Timers.Nudge
}

// note records that payload waits for credit, or does not any more.
func (u *updates) note(waiting bool) {
	if !waiting {
		u.endStall()
		return
	}
	u.stalled, u.stalledAt = true, u.now
	u.stats.CreditStalls++
}

// sentPayload records that the last message carries payload.
func (u *updates) sentPayload() {
	u.cr.lastReal, u.nudged = u.cr.next, false
	if u.stalled {
		u.endStall()
	}
}

func (u *updates) endStall() {
	u.stalled = false
	u.stats.LongestCreditStall = max(u.stats.LongestCreditStall, u.now-u.stalledAt)
}

// restart begins again on a new connection, after credits.start.
func (u *updates) restart() { u.stalled, u.nudged, u.nudgedAt = false, false, 0 }

// timers adds the times when due changes without an event.
func (u *updates) timers(a *alarm, waiting bool) {
	if u.stalled && u.cr.credit() == 2 && u.cr.unacked() > 0 {
		if u.nudged {
			a.at(u.nudgedAt + u.nudgeAgain())
		} else {
			a.at(u.stalledAt + u.p.Timers.Nudge)
		}
	}
	if waiting && u.inDoubt() {
		a.at(u.nudgedAt + u.insistAfter())
	}
}

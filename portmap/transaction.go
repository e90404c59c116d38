package portmap

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaduct/internal/wire/portmapwire"
)

// retryAfter has the pauses of a client before each retransmission. So a lost datagram costs a
// single pause, whatever the server is. [SDP-7.2-3] [D-62] [D-63]
var retryAfter = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second}

// unreachableRetry is the pause before the retry after the first ICMP report that no socket has the
// port.
const unreachableRetry = 50 * time.Millisecond

// Errors of a transaction that has ended without an SDP Address.
var (
	// ErrDenied means that the server has no mapping. The conventional address should be used.
	ErrDenied = errors.New("portmap: the mapper denied the request")
	// ErrNoAnswer means that no answer has arrived. The conventional address should be used.
	ErrNoAnswer = errors.New("portmap: no answer from the mapper")
)

// A clientState is the state of a transaction. [SDP 7.5.1]
type clientState uint8

const (
	idle     clientState = iota // nothing sent
	asking                      // a PMReq was sent and its timer is running
	refused                     // ICMP has reported that no socket has the port; one pause and one retry follow
	accepted                    // finished: PMAccept has arrived and was acknowledged
	denied                      // finished: PMDeny has arrived
	gaveUp                      // finished: no answer has arrived
)

func (s clientState) String() string {
	switch s {
	case idle:
		return "idle"
	case asking:
		return "asking"
	case refused:
		return "refused"
	case accepted:
		return "accepted"
	case denied:
		return "denied"
	case gaveUp:
		return "gave up"
	}
	return fmt.Sprintf("clientState(%d)", uint8(s))
}

// A transaction is a question of a client, without socket and clock. Each event returns the
// datagram to be sent, or nil. When Done reports true, events are ignored. A transaction is not
// safe for concurrent use.
type transaction struct {
	req      portmapwire.Message
	wire     []byte // the PMReq; every retransmission is equal [SDP-7.5.1-4]
	state    clientState
	sent     int // PMReqs sent
	deadline time.Time
	answer   portmapwire.Message // the PMAccept; set in state accepted
	at       time.Time           // time at which the answer was received
	icmp     bool                // the single retry of D-63 was made
}

// newTransaction returns a transaction that asks for the service at ap, for a later connection from
// cp. handle must be random and unused. newTransaction returns an error if ap is not the address of
// a service, or if cp is of another family.
func newTransaction(handle uint64, cp, ap netip.AddrPort) (*transaction, error) {
	cp = netip.AddrPortFrom(cp.Addr().Unmap().WithZone(""), cp.Port())
	ap = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	switch {
	case !ap.Addr().IsValid() || ap.Addr().IsUnspecified() || ap.Addr().IsMulticast() || ap.Port() == 0:
		return nil, fmt.Errorf("portmap: %v is not the address of a service", ap)
	case !cp.Addr().IsValid() || cp.Addr().Is4() != ap.Addr().Is4():
		return nil, fmt.Errorf("portmap: local address %v does not match the family of %v", cp, ap)
	}
	// [SDP-7.4-4] [SDP-7.4-5] [SDP-7.4-6] [SDP-7.4-7] [SDP-7.4-9] [SDP-7.4-10] [SDP-7.4-12] [SDP-7.4-13]
	m := portmapwire.Message{Type: portmapwire.Request, AssocHandle: handle, Cp: cp, Ap: ap}
	return &transaction{req: m, wire: m.Append(nil)}, nil
}

// Start returns the first PMReq.
func (t *transaction) Start(now time.Time) []byte { // [SDP-7.4-2] [SDP-7.5.1-2]
	if t.state != idle {
		panic("portmap: transaction started twice")
	}
	return t.send(now)
}

// Timeout handles the end of a pause, and returns a retransmission, or nil if Deadline has not
// passed. After the last pause, Timeout ends the transaction and returns nil.
func (t *transaction) Timeout(now time.Time) (out []byte) {
	switch t.state {
	case idle, accepted, denied, gaveUp:
		return nil
	case asking, refused:
		if now.Before(t.deadline) { // [SDP-7.5-2]
			return nil
		}
		if t.sent == len(retryAfter) { // [SDP-7.5.1-3] [SDP-7.5.1-7]
			t.state = gaveUp
			return nil
		}
		return t.send(now)
	}
	return nil
}

// Unreachable handles the ICMP report that no socket has the server's port. The report does not
// count as a denial, because reports can be forged. The first report only shortens the wait before
// the next retransmission. A report on a later datagram, or on the last datagram, ends the
// transaction with ErrNoAnswer.
func (t *transaction) Unreachable(now time.Time) { // [D-63]
	if t.state != asking {
		return
	}
	if t.icmp || t.sent == len(retryAfter) {
		t.state = gaveUp
		return
	}
	t.icmp = true
	t.state, t.deadline = refused, now.Add(unreachableRetry)
}

func (t *transaction) send(now time.Time) []byte {
	t.state = asking
	t.deadline = now.Add(retryAfter[t.sent])
	t.sent++
	return t.wire
}

// Receive handles a datagram from the server. Receive returns the PMAck to be sent, or nil. A
// datagram of another transaction is dropped, and so is every answer after the first.
func (t *transaction) Receive(now time.Time, b []byte) (out []byte) {
	switch t.state {
	case idle, accepted, denied, gaveUp: // [SDP-7.5-4] [SDP-7.5.1-9] [SDP-7.5.1-10]
		return nil
	case asking, refused:
	}
	m, err := portmapwire.Parse(b)
	if err != nil || m.AssocHandle != t.req.AssocHandle || m.Cp != t.req.Cp { // [SDP-7.5.1-10]
		return nil
	}
	switch m.Type {
	case portmapwire.Accept:
		if !t.plausible(m.Ap) {
			return nil
		}
		t.state, t.answer, t.at = accepted, m, now
		ack := m // the PMAck repeats all fields from ApPort on as granted [SDP-7.4-25] [SDP-7.4-27] [SDP-7.4-28] [SDP-7.4-29] [SDP-7.4-30] [D-65]
		ack.Type, ack.PmTime = portmapwire.Ack, 0
		return ack.Append(nil)
	case portmapwire.Deny: // finished: a PMDeny is not answered, and its ApPort is ignored [SDP-7.4-39] [SDP-7.4-40] [SDP-7.3.1.6-2]
		t.state, t.at = denied, now
	case portmapwire.Request, portmapwire.Ack: // messages that only clients send
	}
	return nil
}

// plausible reports whether a server could be at ap. An address of loopback is plausible only for a
// service on loopback. The family of ap equals that of m.Cp, which the caller has compared. [D-66]
func (t *transaction) plausible(ap netip.AddrPort) bool {
	a := ap.Addr()
	if ap.Port() == 0 || a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
		return false
	}
	return !a.IsLoopback() || t.req.Ap.Addr().IsLoopback()
}

// Deadline returns the time when Timeout must be called. ok is false when the transaction has
// ended.
func (t *transaction) Deadline() (at time.Time, ok bool) {
	return t.deadline, t.state == asking || t.state == refused
}

// Done reports whether the transaction has ended. Then m is an address for SDP, and err is nil, or
// err is ErrDenied or ErrNoAnswer, and the conventional address should be used.
func (t *transaction) Done() (m Mapped, done bool, err error) { // [SDP-7-1]
	switch t.state {
	case accepted:
		return Mapped{Address: t.answer.Ap, PmTime: PmTime(t.answer.PmTime), At: t.at}, true, nil
	case denied:
		return Mapped{}, true, ErrDenied
	case gaveUp:
		return Mapped{}, true, fmt.Errorf("%w after %d requests", ErrNoAnswer, t.sent)
	case idle, asking, refused:
	}
	return Mapped{}, false, nil
}

// A Mapped is a server's answer.
type Mapped struct {
	Address netip.AddrPort // address where the service speaks SDP
	PmTime  PmTime         // lifetime of the answer
	At      time.Time      // time at which the answer was received
	Cached  bool           // the answer is from an earlier question, and no datagram was sent
}

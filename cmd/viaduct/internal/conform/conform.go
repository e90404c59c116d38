// Package conform tests a peer against the requirements of the protocols. A case performs a
// conversation with the peer, byte by byte, with the codecs alone. It does not use the engines,
// because a fault of an engine could then hide itself.
package conform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

// A Role is the role of the peer under test.
type Role string

// Roles.
const (
	Passive Role = "passive" // the peer listens, and the case dials it
	Active  Role = "active"  // the peer dials
)

// A Case is a conversation with the peer.
type Case struct {
	Name  string   // unique name
	Proto string   // scheme of the peer's URL
	Role  Role     // role of the peer
	Rows  []string // requirements that the case checks; a failure without a row counts for the first
	Text  string   // the tested rule
	// Dangerous is set for a case known to crash some peers.
	Dangerous bool

	run func(t *T)
}

// A Verdict is the result of a case.
type Verdict string

// Verdicts.
const (
	Pass          Verdict = "pass"
	Fail          Verdict = "fail"
	NotObservable Verdict = "not observable" // what the peer did is permitted, and does not show whether it conforms
	Skip          Verdict = "skip"
)

// A Result is a case with an outcome.
type Result struct {
	Name    string   `json:"name"`
	Proto   string   `json:"protocol"`
	Role    Role     `json:"role"`
	Rows    []string `json:"requirements"`
	Text    string   `json:"text"`
	Verdict Verdict  `json:"verdict"`
	Row     string   `json:"failed_requirement,omitempty"`
	Detail  string   `json:"detail,omitempty"`
	Seconds float64  `json:"seconds"`
}

// Cases returns the cases for a protocol and a role of the peer.
func Cases(proto string, role Role) (cs []Case) {
	for _, c := range slices.Concat(iwarpPassive, iwarpActive, vitcpPassive, sdpPassive, portmapPassive, fcviPassive, rocePassive,
		vitcpActive, sdpActive, portmapActive, fcviActive, roceActive) {
		if c.Proto == proto && c.Role == role {
			cs = append(cs, c)
		}
	}
	return cs
}

// A Target describes the peer.
type Target struct {
	// Connect returns a connection with the peer, dialled or accepted.
	Connect func(ctx context.Context) (net.Conn, error)
	// Again returns another connection with the peer of the last Connect; nil means Connect.
	Again func(ctx context.Context) (net.Conn, error)
	// Datagrams opens UDP port 4791 of the address own of this host, for RoCEv2. MTU is the path
	// MTU of the peer's queue pair.
	Datagrams func(own netip.Addr) (net.PacketConn, error)
	MTU       int
	// Disc is the discriminator of the listening VI: the case's own VI if the peer dials. Service
	// is the address requested from a Port Mapper.
	Disc    []byte
	Service string
	// Patience is the time the peer has for an answer. Quiet is how long a case waits where the
	// peer must not send anything.
	Patience, Quiet time.Duration
	// Pause is the time between an MPA Reply and our first FPDU. Some peers do not read early
	// bytes. [I-10]
	Pause time.Duration
	// Dangerous also runs the dangerous cases.
	Dangerous bool
	// Only, if not empty, restricts the run to cases with the listed names or requirements.
	Only []string
}

// wants reports whether a case is to be run.
func (g *Target) wants(c *Case) bool {
	if len(g.Only) == 0 {
		return true
	}
	return slices.ContainsFunc(g.Only, func(s string) bool { return s == c.Name || slices.Contains(c.Rows, s) })
}

// Run runs the cases of cs selected by g, in order, and calls each with every result. No case
// begins after the end of ctx.
func Run(ctx context.Context, g Target, cs []Case, each func(Result)) {
	for i := range cs {
		c := &cs[i]
		if !g.wants(c) {
			continue
		}
		r := Result{Name: c.Name, Proto: c.Proto, Role: c.Role, Rows: c.Rows, Text: c.Text}
		if ctx.Err() != nil {
			return
		}
		if c.Dangerous && !g.Dangerous {
			r.Verdict, r.Detail = Skip, "known to kill peers: --dangerous runs it"
			each(r)
			continue
		}
		began := time.Now()
		o := play(ctx, &g, c)
		for n := 1; o.disturbed && n < tries; n++ {
			o = play(ctx, &g, c)
		}
		r.Verdict, r.Row, r.Detail, r.Seconds = o.verdict, o.row, o.detail, time.Since(began).Seconds()
		each(r)
	}
}

// An outcome is the result of a case. The methods of T end the case by a panic with an outcome.
type outcome struct {
	verdict     Verdict
	row, detail string
	disturbed   bool // another conversation or the network may be the cause
}

// tries is how often a disturbed case is performed before it fails.
const tries = 3

// A T is a running case. Its methods end the case when the peer violates a requirement.
type T struct {
	ctx   context.Context
	g     *Target
	c     *Case
	conns []net.Conn

	sockets []net.PacketConn // RoCEv2 sockets

	answers [][]byte // answers of a Port Mapper so far
}

func play(ctx context.Context, g *Target, c *Case) (o outcome) {
	t := &T{ctx: ctx, g: g, c: c}
	defer func() {
		for _, c := range t.conns {
			c.Close()
		}
		for _, s := range t.sockets {
			s.Close()
		}
		switch x := recover().(type) {
		case nil:
		case outcome:
			o = x
		default:
			panic(x)
		}
	}()
	c.run(t)
	return outcome{verdict: Pass}
}

// fail ends the case as failed, because the peer violates the requirement row.
func (t *T) fail(row, format string, a ...any) {
	panic(outcome{verdict: Fail, row: row, detail: fmt.Sprintf(format, a...)})
}

// again ends the case after an event that an earlier conversation, or the network, may have caused,
// for example a lost datagram. The case is repeated up to tries times, and fails if the event
// occurs each time.
func (t *T) again(row, format string, a ...any) {
	panic(outcome{verdict: Fail, row: row, detail: fmt.Sprintf(format, a...), disturbed: true})
}

// check fails the case unless ok is true.
func (t *T) check(ok bool, row, format string, a ...any) {
	if !ok {
		t.fail(row, format, a...)
	}
}

// hidden ends the case as not observable.
func (t *T) hidden(format string, a ...any) {
	panic(outcome{verdict: NotObservable, detail: fmt.Sprintf(format, a...)})
}

// connect opens a connection, or accepts a connection of the peer.
func (t *T) connect() net.Conn { return t.connectBy(t.g.Connect) }

// connectAgain is connect for the second connection of a conversation.
func (t *T) connectAgain() net.Conn {
	if t.g.Again == nil {
		return t.connect()
	}
	return t.connectBy(t.g.Again)
}

func (t *T) connectBy(connect func(ctx context.Context) (net.Conn, error)) net.Conn {
	ctx, cancel := context.WithTimeout(t.ctx, 4*t.g.Patience)
	defer cancel()
	c, err := connect(ctx)
	if err != nil {
		t.fail(t.c.Rows[0], "no connection with the peer: %v", err)
	}
	t.conns = append(t.conns, c)
	return c
}

// write sends bytes. It fails the case if the peer does not read within Patience. If the peer has
// closed the connection, only the next read reports the close.
func (t *T) write(c net.Conn, b []byte) {
	c.SetWriteDeadline(time.Now().Add(t.g.Patience))
	if _, err := c.Write(b); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.fail(t.c.Rows[0], "the peer does not read: %v", err)
	}
}

// An end is the reason why a read returned.
type end uint8

const (
	whole  end = iota // all bytes arrived
	quiet             // nothing, or no more, arrived in time
	closed            // the peer closed the connection in order
	reset             // the peer reset the connection
)

func (e end) String() string {
	return [...]string{"whole", "nothing more in time", "closed", "reset"}[e]
}

// read fills b within the given time. It returns the number of received bytes; e is whole, or the
// reason why b is not full.
func (t *T) read(c net.Conn, b []byte, within time.Duration) (n int, e end) {
	c.SetReadDeadline(time.Now().Add(within))
	n, err := io.ReadFull(c, b)
	return n, endOf(err)
}

// endOf returns how the read ended that returned err.
func endOf(err error) end {
	switch {
	case err == nil:
		return whole
	case errors.Is(err, os.ErrDeadlineExceeded):
		return quiet
	case errors.Is(err, syscall.ECONNRESET):
		return reset
	}
	return closed
}

// silent fails the case if the peer sends anything or ends the connection within Quiet.
func (t *T) silent(c net.Conn, row, when string) {
	var b [64]byte
	if n, e := t.read(c, b[:1], t.g.Quiet); n > 0 {
		t.fail(row, "byte %#02x comes %s", b[0], when)
	} else if e != quiet {
		t.fail(row, "connection %v %s", e, when)
	}
}

// gone fails the case unless the peer ends the connection within Patience without sending anything.
func (t *T) gone(c net.Conn, row, why string) {
	var b [1]byte
	n, e := t.read(c, b[:], t.g.Patience)
	switch {
	case n > 0:
		t.fail(row, "the peer answers %s (%#02x) instead of closing the connection", why, b[0])
	case e == quiet:
		t.fail(row, "the peer keeps the connection open %s", why)
	}
}

func list(rows ...string) []string { return rows }

// datagram reads a datagram; ok is false if none arrives in time.
func (t *T) datagram(c net.Conn, b []byte, within time.Duration) (n int, ok bool) {
	c.SetReadDeadline(time.Now().Add(within))
	n, err := c.Read(b)
	return n, err == nil
}

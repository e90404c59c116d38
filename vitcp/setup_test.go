package vitcp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A matrix records the effect of each event in each state, as text and as a drawing for graphviz.
type matrix struct{ text, dot strings.Builder }

// add runs one event on a machine in state from. A panic means that this package's code must not
// cause the event in that state.
func (m *matrix) add(from, event string, run func() (to string, steps []setupStep)) {
	var to string
	var steps []setupStep
	func() {
		defer func() {
			if e := recover(); e != nil {
				if _, ok := e.(string); !ok {
					panic(e)
				}
				to = "never"
			}
		}()
		to, steps = run()
	}()
	if to == "never" {
		fmt.Fprintf(&m.text, "%-15s %-34s never\n", from, event)
		return
	}
	var do []string
	for _, s := range steps {
		do = append(do, s.String())
	}
	actions := strings.Join(do, "; ")
	fmt.Fprintf(&m.text, "%-15s %-34s %-15s %s\n", from, event, to, actions)
	if to != from || len(steps) > 0 {
		fmt.Fprintf(&m.dot, "\t%q -> %q [label=%q];\n", from, to, event+" / "+actions)
	}
}

func (m *matrix) String() string {
	return m.text.String() + "\ndigraph {\n" + m.dot.String() + "}\n"
}

var (
	t0     = time.Date(2000, 7, 14, 0, 0, 0, 0, time.UTC)
	errTCP = errors.New("tcp")
)

// TestVIT_4_2 runs all events of the calling side in all its states. Compare the golden file with
// the figure of section 4.2. [VIT-4.2-1] [VIT-4.2-2] [VIT-4.2-3] [VIT-4.2-4] [VIT-4.2-5]
// [VIT-4.2-6] [VIT-2.2.2.2.2-4] [VIT-2.2.2.2.2-7] [V-01] [V-34] [V-41] [V-46]
func TestVIT_4_2(t *testing.T) {
	late := t0.Add(time.Minute)
	events := []struct {
		name string
		run  func(*active) []setupStep
	}{
		{"connect", (*active).connect},
		{"TCP established", (*active).tcpEstablished},
		{"TCP set-up fails", func(a *active) []setupStep { return a.tcpFailed(errTCP) }},
		{"TCP closes before a byte", func(a *active) []setupStep { return a.tcpClosed(t0, false, errTCP) }},
		{"TCP closes inside an answer", func(a *active) []setupStep { return a.tcpClosed(t0, true, errTCP) }},
		{"Connect Accept", (*active).accepted},
		{"Connect Reject 0", func(a *active) []setupStep { return a.rejected(0) }},
		{"Connect Reject attributes", func(a *active) []setupStep { return a.rejected(rejectAttributes) }},
		{"Connect Reject application", func(a *active) []setupStep { return a.rejected(rejectApplication) }},
		{"Connect Reject resources", func(a *active) []setupStep { return a.rejected(rejectResources) }},
		{"Connect Reject version", func(a *active) []setupStep { return a.rejected(rejectVersion) }},
		{"Connect No Match", (*active).noMatch},
		{"anything else", func(a *active) []setupStep { return a.violated(errTCP) }},
		{"timer, too early", func(a *active) []setupStep { return a.timer(t0) }},
		{"timer, back-off over", func(a *active) []setupStep { return a.timer(t0.Add(firstBackoff)) }},
		{"timer, deadline", func(a *active) []setupStep { return a.timer(late) }},
		{"disconnect", (*active).disconnect},
	}
	var m matrix
	for s := range activeState(len(activeStateNames)) {
		for _, e := range events {
			m.add(s.String(), e.name, func() (string, []setupStep) {
				a := &active{deadline: late, state: s, retryAt: t0.Add(firstBackoff)}
				steps := e.run(a)
				if wake := a.wakeAt(); !wake.IsZero() && wake.After(late) {
					t.Errorf("%v, %s: wakes after the deadline", s, e.name)
				}
				return a.state.String(), steps
			})
		}
	}
	testkit.Golden(t, "active.golden", []byte(m.String()))
}

// The pauses before TCP is set up again double from 100 ms to 1 s. Without a deadline the number of
// attempts is limited. [VIT-4.2-3] [VIT-4.2-4] [V-34]
func TestVIT_4_2_Backoff(t *testing.T) {
	a := &active{}
	now := t0
	a.connect()
	var pauses []time.Duration
	for {
		a.tcpEstablished()
		steps := a.tcpClosed(now, false, errTCP)
		if a.state == activeDisconnected {
			if last := steps[len(steps)-1]; last.out != outcomeLost || last.err != errTCP {
				t.Errorf("ended with %v, %v", last, last.err)
			}
			break
		}
		pauses = append(pauses, a.wakeAt().Sub(now))
		if s := a.timer(a.wakeAt().Add(-1)); s != nil {
			t.Errorf("woke too early: %v", s)
		}
		now = a.wakeAt()
		if s := a.timer(now); len(s) != 1 || s[0].do != stepDial {
			t.Fatalf("%v", s)
		}
	}
	want := "[100ms 200ms 400ms 800ms 1s 1s 1s 1s]"
	if got := fmt.Sprint(pauses); got != want {
		t.Errorf("pauses %s, want %s", got, want)
	}
	// With a deadline only the time limits the attempts.
	a = &active{deadline: t0.Add(time.Hour)}
	a.connect()
	for n, now := 0, t0; n < 2*maxReestablish; n++ {
		a.tcpEstablished()
		a.tcpClosed(now, false, errTCP)
		if a.state != activeBackingOff {
			t.Fatalf("given up after %d attempts", n+1)
		}
		now = a.wakeAt()
		a.timer(now)
	}
}

// TestVIT_4_3 runs all events of the called side in all its states. Compare the golden file with
// the figure of section 4.3. [VIT-4.3-2] [VIT-4.3-3] [VIT-4.3-4] [VIT-4.3-5] [VIT-4.3-6]
// [VIT-2.2.2.2.2-3] [VIT-2.2.2.2.2-5] [V-01] [V-35]
func TestVIT_4_3(t *testing.T) {
	events := []struct {
		name string
		run  func(*passive) []setupStep
	}{
		{"TCP arrives", func(p *passive) []setupStep { return p.tcpAccepted(t0) }},
		{"Connect Request", (*passive).request},
		{"anything else", (*passive).violated},
		{"no matching discriminator", (*passive).noMatch},
		{"discriminator match", (*passive).match},
		{"refused", func(p *passive) []setupStep { return p.reject(rejectApplication) }},
		{"accepted", (*passive).accept},
		{"timer, too early", func(p *passive) []setupStep { return p.timer(t0) }},
		{"timer, deadline", func(p *passive) []setupStep { return p.timer(t0.Add(10 * time.Second)) }},
		{"VI or TCP disconnect", (*passive).closed},
	}
	var m matrix
	for s := range passiveState(len(passiveStateNames)) {
		for _, e := range events {
			m.add(s.String(), e.name, func() (string, []setupStep) {
				p := &passive{requestTimeout: 10 * time.Second, state: s, deadline: t0.Add(10 * time.Second)}
				steps := e.run(p)
				if (p.state == passiveIncoming) == p.wakeAt().IsZero() {
					t.Errorf("%v, %s: wakes at %v in %v", s, e.name, p.wakeAt(), p.state)
				}
				return p.state.String(), steps
			})
		}
	}
	testkit.Golden(t, "passive.golden", []byte(m.String()))
	// Without a time limit the machine waits for a request forever.
	p := &passive{}
	p.tcpAccepted(t0)
	if steps := p.timer(t0.Add(1000 * time.Hour)); len(steps) != 0 || p.state != passiveIncoming ||
		!p.wakeAt().IsZero() {
		t.Errorf("without a limit: %v, %v, wakes at %v", steps, p.state, p.wakeAt())
	}
}

func disc(s string) vitcpwire.Discriminator {
	d, err := vitcpwire.MakeDiscriminator([]byte(s))
	if err != nil {
		panic(err)
	}
	return d
}

// TestVIT_4 runs all events in all states of a peer-to-peer request. [VIT-4-1] [VIT-4-2] [V-32]
// [V-33] [V-34]
func TestVIT_4(t *testing.T) {
	late := t0.Add(time.Minute)
	me, lower, higher := netip.MustParseAddrPort("10.0.0.9:3936"), netip.MustParseAddrPort("10.0.0.8:1"),
		netip.MustParseAddrPort("10.0.0.10:1")
	in := func(remote netip.AddrPort, mismatch bool) func(*peer) []setupStep {
		return func(p *peer) []setupStep {
			return p.incoming(incomingRequest{conn: 7, local: me, remote: remote, mismatch: mismatch})
		}
	}
	events := []struct {
		name string
		run  func(*peer) []setupStep
	}{
		{"request", (*peer).request},
		{"TCP established", func(p *peer) []setupStep { return p.tcpEstablished(me) }},
		{"TCP set-up fails", func(p *peer) []setupStep { return p.tcpFailed(t0, errTCP) }},
		{"TCP set-up fails, another place", func(p *peer) []setupStep { p.more = true; return p.tcpFailed(t0, errTCP) }},
		{"TCP closes", func(p *peer) []setupStep { return p.tcpClosed(t0, errTCP) }},
		{"Connect Accept", (*peer).accepted},
		{"Connect Reject 0", func(p *peer) []setupStep { return p.rejected(t0, 0) }},
		{"Connect Reject crossed", func(p *peer) []setupStep { return p.rejected(t0, rejectCrossed) }},
		{"Connect Reject attributes", func(p *peer) []setupStep { return p.rejected(t0, rejectAttributes) }},
		{"Connect No Match", func(p *peer) []setupStep { return p.noMatch(t0) }},
		{"Connect No Match, another place", func(p *peer) []setupStep { p.more = true; return p.noMatch(t0) }},
		{"anything else", func(p *peer) []setupStep { return p.violated(errTCP) }},
		{"their request, we are lower", in(higher, false)},
		{"their request, we are higher", in(lower, false)},
		{"their request, all equal", in(netip.AddrPortFrom(me.Addr(), 5), false)},
		{"their request, other attributes", in(lower, true)},
		{"timer, too early", func(p *peer) []setupStep { return p.timer(t0) }},
		{"timer, back-off over", func(p *peer) []setupStep { return p.timer(t0.Add(firstBackoff)) }},
		{"timer, deadline", func(p *peer) []setupStep { return p.timer(late) }},
		{"cancel", (*peer).cancel},
	}
	var m matrix
	for s := range peerState(len(peerStateNames)) {
		for _, e := range events {
			m.add(s.String(), e.name, func() (string, []setupStep) {
				p := &peer{local: disc("x"), remote: disc("x"), deadline: late, state: s, retryAt: t0.Add(firstBackoff),
					from: me.Addr(), fromPort: 5, last: outcomeTimeout, random: rand.New(rand.NewPCG(1, 1))}
				steps := e.run(p)
				return p.state.String(), steps
			})
		}
	}
	testkit.Golden(t, "peer.golden", []byte(m.String()))
}

// If two crossing requests tie, both are answered with No Match. Each side then pauses once before
// its next attempt, for a random time of 10 to 100 ms. All other pauses follow the back-off.
// [VIT-4-1] [V-32] [V-33]
func TestVIT_4_Tie(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.9:5")
	seen := make(map[time.Duration]bool)
	for seed := range uint64(50) {
		p := &peer{local: disc("x"), remote: disc("x"), random: rand.New(rand.NewPCG(seed, 0))}
		p.request()
		p.tcpEstablished(at)
		steps := p.incoming(incomingRequest{conn: 3, local: at, remote: at})
		if len(steps) != 1 || steps[0] != (setupStep{do: stepSendNoMatch, conn: 3}) || p.state != peerRequested {
			t.Fatalf("%v in %v", steps, p.state)
		}
		p.noMatch(t0)
		pause := p.wakeAt().Sub(t0)
		if pause < 10*time.Millisecond || pause >= 100*time.Millisecond {
			t.Errorf("a pause of %v after a tie", pause)
		}
		seen[pause] = true
		p.timer(p.wakeAt())
		p.tcpEstablished(at)
		p.noMatch(t0)
		if pause := p.wakeAt().Sub(t0); pause != 100*time.Millisecond {
			t.Errorf("a pause of %v after No Match", pause)
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d pauses in 50 ties", len(seen))
	}
}

// If the request times out, it reports the outcome of the last attempt. [VIT-4-2] [V-33] [V-34]
func TestVIT_4_TimeoutReports(t *testing.T) {
	deadline := t0.Add(time.Second)
	for _, v := range []struct {
		name string
		run  func(p *peer)
		want setupOutcome
		err  error
	}{
		{"no answer", func(p *peer) { p.tcpEstablished(netip.AddrPort{}) }, outcomeTimeout, nil},
		{"No Match", func(p *peer) { p.tcpEstablished(netip.AddrPort{}); p.noMatch(t0) }, outcomeTimeout, nil},
		{"refused TCP", func(p *peer) { p.tcpFailed(t0, errTCP) }, outcomeNotReachable, errTCP},
		{"refusals without reason", func(p *peer) { p.tcpEstablished(netip.AddrPort{}); p.rejected(t0, 0) }, outcomeRejected, nil},
		{"crossed after a refusal", func(p *peer) {
			p.tcpEstablished(netip.AddrPort{})
			p.rejected(t0, 0)
			p.timer(p.wakeAt())
			p.tcpEstablished(netip.AddrPort{})
			p.rejected(t0, rejectCrossed)
		}, outcomeTimeout, nil},
		{"No Match after refused TCP", func(p *peer) {
			p.tcpFailed(t0, errTCP)
			p.timer(p.wakeAt())
			p.tcpEstablished(netip.AddrPort{})
			p.noMatch(t0)
		}, outcomeTimeout, nil},
		{"closed after a refusal", func(p *peer) {
			p.tcpEstablished(netip.AddrPort{})
			p.rejected(t0, 0)
			p.timer(p.wakeAt())
			p.tcpEstablished(netip.AddrPort{})
			p.tcpClosed(t0, errTCP)
		}, outcomeTimeout, errTCP},
	} {
		p := &peer{deadline: deadline}
		p.request()
		v.run(p)
		steps := p.timer(deadline)
		if last := steps[len(steps)-1]; last.do != stepDone || last.out != v.want || last.err != v.err {
			t.Errorf("%s: %v, %v, want %v, %v", v.name, last, last.err, v.want, v.err)
		}
	}
}

// The order that resolves a conflict compares the IP addresses as bytes, where the shorter family
// is lower, then the discriminators, and then the ports of the callers. [V-32]
func TestVIT_4_Order(t *testing.T) {
	ap := func(a string, port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), port) }
	for _, v := range []struct {
		local, remote netip.AddrPort
		disc, rdisc   string
		port          uint16
		want          int
	}{
		{ap("10.0.0.9", 1), ap("10.0.0.10", 1), "a", "a", 1, -1}, // the order is not that of the text
		{ap("10.0.0.200", 1), ap("10.0.0.30", 1), "a", "a", 1, 1},
		{ap("255.255.255.255", 1), ap("::1", 1), "a", "a", 1, -1},
		{ap("::ffff:10.0.0.9", 1), ap("10.0.0.9", 7), "a", "a", 7, 0},
		{ap("fe80::1%eth0", 1), ap("fe80::2%eth1", 1), "b", "a", 1, -1},
		{ap("10.0.0.9", 9), ap("10.0.0.9", 1), "a", "b", 9, -1},
		{ap("10.0.0.9", 9), ap("10.0.0.9", 1), "a\x00", "a", 1, 1},
		{ap("10.0.0.9", 3936), ap("10.0.0.9", 100), "a", "a", 99, -1},
		{ap("10.0.0.9", 3936), ap("10.0.0.9", 100), "a", "a", 101, 1},
	} {
		p := &peer{local: disc(v.disc), remote: disc(v.rdisc), fromPort: v.port}
		got := p.order(incomingRequest{local: v.local, remote: v.remote})
		if got < 0 != (v.want < 0) || got > 0 != (v.want > 0) {
			t.Errorf("%v %q port %d against %v %q: %d, want %d", v.local, v.disc, v.port,
				v.remote, v.rdisc, got, v.want)
		}
	}
}

// TestHandedOver: a connection that was handed to a call no longer belongs to the listener. Closing
// the listener at that moment does not affect it.
func TestHandedOver(t *testing.T) {
	a, _ := testkit.TCPPair(t)
	defer a.Close()
	r := &request{tcp: a}
	l := &listener{halfOpen: map[net.Conn]struct{}{a: {}}, waits: make(map[vitcpwire.Discriminator][]*wait)}
	if taken, _ := l.offer(r, false); taken || len(l.halfOpen) != 1 {
		t.Errorf("taken: %t, %d half open, without a call", taken, len(l.halfOpen))
	}
	w := &wait{got: make(chan *request, 1)}
	l.wait(r.g.ce.Called, w)
	if taken, _ := l.offer(r, false); !taken || len(l.halfOpen) != 0 {
		t.Errorf("taken: %t, %d half open", taken, len(l.halfOpen))
	}
}

// TestDialError: nobody waits if the host has no listener, or if the listener ends during connect.
// [VIA 6.3]
func TestDialError(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), vi.ErrNoMatch},
		{os.NewSyscallError("connect", syscall.ECONNRESET), vi.ErrNoMatch},
		{os.NewSyscallError("connect", syscall.EHOSTUNREACH), vi.ErrNotReachable},
		{os.NewSyscallError("read", syscall.ECONNRESET), vi.ErrNotReachable}, // during a TLS handshake
		{os.ErrDeadlineExceeded, vi.ErrTimeout},
	} {
		if err := dialError(&net.OpError{Op: "dial", Net: "tcp", Err: c.err}); !errors.Is(err, c.want) || !errors.Is(err, c.err) {
			t.Errorf("%v: %v, want %v", c.err, err, c.want)
		}
	}
}

package portmap

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"viaduct/internal/wire/portmapwire"
)

var (
	t0   = time.Unix(1_000_000, 0)
	from = netip.MustParseAddr("10.0.0.2")
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func testMachine(change func(*ServerConfig)) *machine {
	r := NewRegistry()
	r.Set(ap("10.0.0.1:80"), NewMapping(ap("10.0.0.1:8080")))
	r.Set(ap("10.0.0.1:443"), NewMapping(ap("10.0.0.7:8443"), ap("10.0.0.8:8443")))
	r.Set(ap("[::]:90"), NewMapping(ap("0.0.0.0:9090")))
	cfg := ServerConfig{Registry: r}
	if change != nil {
		change(&cfg)
	}
	return newMachine(cfg)
}

// ask passes a message to m and returns the answer, or false if m does not answer.
func ask(t testing.TB, m *machine, now time.Time, msg portmapwire.Message) (portmapwire.Message, bool) {
	t.Helper()
	b := m.Handle(now, from, msg.Append(nil), nil)
	if len(b) == 0 {
		return portmapwire.Message{}, false
	}
	if len(b) != portmapwire.MessageLen { // [SDP-7.3-1]
		t.Fatalf("answer of %d bytes", len(b))
	}
	if b[2] != 0 || b[3] != 0 { // [SDP-7.3.1.5-1]
		t.Fatalf("reserved bits %x", b[2:4])
	}
	r, err := portmapwire.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return r, true
}

func req(handle uint64, service string) portmapwire.Message {
	cp := ap("10.0.0.2:40000")
	if a := ap(service); a.Addr().Is6() {
		cp = ap("[fd00::2]:40000")
	}
	return portmapwire.Message{Type: portmapwire.Request, AssocHandle: handle, Cp: cp, Ap: ap(service)}
}

func TestSDP_7_4_accept(t *testing.T) {
	// [SDP-7.2-2] [SDP-7.4-14] [SDP-7.3.1.6-1] [SDP-7.3.1.8-2] [SDP-7.3.1.9-1]
	m := testMachine(nil)
	q := req(9, "10.0.0.1:80")
	q.PmTime = 77 // ignored [SDP-7.4-8]
	got, ok := ask(t, m, t0, q)
	// [SDP-7.4-16] [SDP-7.4-17] [SDP-7.4-18] [SDP-7.4-19] [SDP-7.4-20] [SDP-7.4-21] [SDP-7.4-22] [SDP-7.4-23]
	want := portmapwire.Message{Type: portmapwire.Accept, PmTime: uint8(defaultPmTime),
		AssocHandle: 9, Cp: q.Cp, Ap: ap("10.0.0.1:8080")}
	if !ok || got != want {
		t.Errorf("got %+v %v, want %+v", got, ok, want)
	}
	q6 := req(9, "[fd00::1]:90")
	if got, _ := ask(t, m, t0, q6); got.Ap != ap("[fd00::1]:9090") || got.Type != portmapwire.Accept {
		t.Errorf("IPv6: got %+v", got)
	}
	var seen []string
	for i := range 4 { // [SDP-7.4-24] balancing
		got, _ := ask(t, m, t0, req(uint64(100+i), "10.0.0.1:443"))
		seen = append(seen, got.Ap.Addr().String())
	}
	if seen[0] == seen[1] || seen[0] != seen[2] || seen[1] != seen[3] {
		t.Errorf("targets came as %v", seen)
	}
}

func TestSDP_7_4_deny(t *testing.T) {
	m := testMachine(nil)
	for _, s := range []string{"10.0.0.1:81", "10.0.0.3:80", "[fd00::1]:80"} {
		q := req(5, s)
		q.PmTime = 77 // ignored [SDP-7.4-8]
		got, ok := ask(t, m, t0, q)
		// [SDP-7.4-33] [SDP-7.4-35] [SDP-7.4-36] [SDP-7.4-37] [SDP-7.4-38] [SDP-7.3.1.6-2] [SDP-7.3.1.10-1] [D-60]
		want := portmapwire.Message{Type: portmapwire.Deny, AssocHandle: 5, Cp: q.Cp, Ap: q.Ap}
		if !ok || got != want {
			t.Errorf("%s: got %+v %v, want %+v", s, got, ok, want)
		}
	}
	if s := m.Stats(); s.Pending != 0 || s.Denies != 3 {
		t.Errorf("%+v", s)
	}
}

func TestSilence(t *testing.T) {
	m := testMachine(nil)
	good := req(1, "10.0.0.1:80").Append(nil)
	bad := [][]byte{nil, good[:47]}
	for i := range 256 {
		b := append([]byte(nil), good...)
		b[0] = byte(i)
		if b[0]>>6 != 0 || (b[0]&15 != 4 && b[0]&15 != 6) || b[0]>>4 != 0 {
			bad = append(bad, b) // [SDP-7.3.1.1-1] [SDP-7.3.1.3-1] also the messages that only servers send
		}
	}
	now := t0
	for _, b := range bad {
		now = now.Add(time.Second)
		if r := m.Handle(now, from, b, nil); len(r) != 0 { // [D-61]
			t.Errorf("%x was answered with %x", b, r)
		}
	}
	// Two datagrams are too short, 192 have another version, and 56 of the others another IPV. The
	// six unmatched datagrams are three messages of other types in both families.
	if s := m.Stats(); s.Malformed != 2+192+56 || s.Unmatched != 6 || s.Received != 256 {
		t.Errorf("%+v", s)
	}
	if got := m.Handle(now, from, append(good, make([]byte, 16)...), nil); len(got) != portmapwire.MessageLen {
		t.Errorf("the 64-byte form of iwpmd got %d bytes", len(got)) // [D-61]
	}
}

// TestMappedAddresses: if one or both addresses of an IPv6 request are IPv4-mapped, the answer has
// the same IPV and the same CpIPAddr. [SDP-15-1]
func TestMappedAddresses(t *testing.T) {
	var p ports
	m := testMachine(func(c *ServerConfig) { c.Registry.Set(ap("10.0.0.1:99"), Mapping{Open: p.Open}) })
	for _, c := range []struct {
		cp, ap string
		want   string // the granted address; empty means PMDeny
	}{
		{"[::ffff:10.0.0.2]:1", "[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]:8080"},
		{"[fd00::2]:2", "[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]:8080"},
		{"[::ffff:10.0.0.2]:3", "[fd00::1]:90", "[fd00::1]:9090"},
		{"[::ffff:10.0.0.2]:4", "[::ffff:10.0.0.1]:90", "[::ffff:10.0.0.1]:9090"},
		{"[::ffff:10.0.0.2]:5", "[::ffff:10.0.0.1]:99", "[::ffff:10.0.0.1]:1"},
		{"[::ffff:10.0.0.2]:6", "[::1]:80", ""},
	} {
		q := portmapwire.Message{Type: portmapwire.Request, AssocHandle: 7, Cp: ap(c.cp), Ap: ap(c.ap)}
		want := portmapwire.Message{Type: portmapwire.Accept, PmTime: uint8(defaultPmTime), AssocHandle: 7, Cp: q.Cp}
		if c.want == "" {
			want.Type, want.PmTime, want.Ap = portmapwire.Deny, 0, q.Ap
		} else if want.Ap = ap(c.want); want.Ap.Port() == 1 {
			want.PmTime = 0
		}
		for range 2 { // the request and a duplicate
			b := m.Handle(t0, from, q.Append(nil), nil)
			if got, err := portmapwire.Parse(b); err != nil || got != want { // [SDP-7.4-17] [SDP-7.4-22]
				t.Errorf("%v asks for %v: %+v, %v, want %+v", q.Cp, q.Ap, got, err, want)
			}
		}
	}
	if s := m.Stats(); s.Pending != 5 || s.Duplicates != 5 {
		t.Errorf("%+v", s)
	}
	m.Connected(ap("10.0.0.2:1"), ap("10.0.0.1:8080")) // the addresses as the listener sees them
	m.Handle(t0, from, portmapwire.Message{Type: portmapwire.Ack, AssocHandle: 7, Cp: ap("[::ffff:10.0.0.2]:4"), Ap: ap("[::ffff:10.0.0.1]:9090")}.Append(nil), nil)
	if s := m.Stats(); s.Pending != 3 || s.Acks != 1 {
		t.Errorf("%+v", s)
	}
	m.Close()
}

func TestSDP_7_5_2_duplicates(t *testing.T) {
	m := testMachine(nil)
	q := req(1, "10.0.0.1:443")
	a, _ := ask(t, m, t0, q)
	b, _ := ask(t, m, t0.Add(9*time.Second), q)
	if a != b { // [SDP-7.5-3] [SDP-7.5.2-4]
		t.Errorf("equal requests, answers %+v and %+v", a, b)
	}
	if s := m.Stats(); s.Duplicates != 1 || s.Pending != 1 {
		t.Errorf("%+v", s)
	}
	m.Expire(t0.Add(18 * time.Second)) // the duplicate at 9 s has restarted the timer [SDP-7.5.2-5]
	if s := m.Stats(); s.Pending != 1 {
		t.Error("the timer was not restarted")
	}
	m.Expire(t0.Add(19 * time.Second)) // the restarted time has passed [SDP-7.5.2-1] [SDP-7.5.2-2] [SDP-7.5-1]
	if s := m.Stats(); s.Pending != 0 || s.Expired != 1 {
		t.Errorf("after expiry: %+v", s)
	}

	// The answer has the current state of the service. [SDP-7.5.2-7]
	ask(t, m, t0, q)
	m.cfg.Registry.Set(q.Ap, NewMapping(ap("10.0.0.1:1")))
	if c, _ := ask(t, m, t0, q); c.Ap != ap("10.0.0.1:1") {
		t.Errorf("moved service answered with %v", c.Ap)
	}
	m.cfg.Registry.Delete(q.Ap)
	if c, _ := ask(t, m, t0, q); c.Type != portmapwire.Deny {
		t.Errorf("closed service answered with %v", c.Type)
	}
	if s := m.Stats(); s.Pending != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSDP_7_5_2_replace(t *testing.T) {
	// [SDP-7.5.2-8] [SDP-7.5.2-6]
	m := testMachine(nil)
	old, _ := ask(t, m, t0, req(1, "10.0.0.1:80"))
	fresh, _ := ask(t, m, t0, req(2, "10.0.0.1:80"))
	if s := m.Stats(); s.Pending != 1 || s.Replaced != 1 {
		t.Errorf("%+v", s)
	}
	old.Type, fresh.Type = portmapwire.Ack, portmapwire.Ack
	fresh.PmTime = 77 // ignored [SDP-7.4-29]
	if _, answered := ask(t, m, t0, old); answered {
		t.Error("PMAck was answered")
	}
	if s := m.Stats(); s.Pending != 1 || s.Unmatched != 1 {
		t.Errorf("old handle's PMAck: %+v", s)
	}
	ask(t, m, t0, fresh)
	if s := m.Stats(); s.Pending != 0 || s.Acks != 1 {
		t.Errorf("new handle's PMAck: %+v", s)
	}
	ask(t, m, t0, fresh) // there is no state for a second PMAck
	if s := m.Stats(); s.Unmatched != 2 {
		t.Errorf("second PMAck: %+v", s)
	}

	// A PMAck for an address not granted matches no request.
	granted, _ := ask(t, m, t0, req(3, "10.0.0.1:80"))
	wrong := granted
	wrong.Type, wrong.Ap = portmapwire.Ack, ap("10.0.0.1:8081")
	ask(t, m, t0, wrong)
	if s := m.Stats(); s.Pending != 1 || s.Unmatched != 3 || s.Acks != 1 {
		t.Errorf("PMAck for another address: %+v", s)
	}
	// A request with the same handle replaces nothing, even if the service has moved.
	m.cfg.Registry.Set(ap("10.0.0.1:80"), NewMapping(ap("10.0.0.1:8082")))
	ask(t, m, t0, req(3, "10.0.0.1:80"))
	if s := m.Stats(); s.Pending != 1 || s.Replaced != 1 {
		t.Errorf("the same handle after a move: %+v", s)
	}
}

// TestConnected: a connection replaces the PMAck only from the client's address and port to the
// granted address and port. [SDP-7.5.2-1]
func TestConnected(t *testing.T) {
	m := testMachine(nil)
	ask(t, m, t0, req(1, "10.0.0.1:80"))
	for _, c := range []struct {
		cp, ap  string
		pending uint64
	}{
		{"10.0.0.2:40001", "10.0.0.1:8080", 1},
		{"10.0.0.3:40000", "10.0.0.1:8080", 1},
		{"10.0.0.2:40000", "10.0.0.1:8081", 1},
		{"10.0.0.2:40000", "10.0.0.7:8080", 1},
		{"[::ffff:10.0.0.2]:40000", "[::ffff:10.0.0.1]:8080", 0}, // the addresses as a dual-stack socket reports them
	} {
		m.Connected(ap(c.cp), ap(c.ap))
		if s := m.Stats(); s.Pending != c.pending {
			t.Errorf("connection from %s to %s: %d pending, want %d", c.cp, c.ap, s.Pending, c.pending)
		}
	}
}

// A ports opens a port for each request. open counts the open ports, lost the ports closed without
// a confirmation, and taken the confirmed ports.
type ports struct {
	next              uint16
	open, lost, taken int
	fail              bool
}

func (p *ports) Open(client, service netip.AddrPort) (netip.AddrPort, func(bool), error) {
	if p.fail {
		return netip.AddrPort{}, nil, errors.New("no more")
	}
	p.next++
	p.open++
	return netip.AddrPortFrom(netip.IPv4Unspecified(), p.next), func(confirmed bool) {
		p.open--
		if confirmed {
			p.taken++
		} else {
			p.lost++
		}
	}, nil
}

func TestSDP_7_4_dynamicPort(t *testing.T) {
	var p ports
	m := testMachine(func(c *ServerConfig) { c.Registry.Set(ap("10.0.0.1:99"), Mapping{Open: p.Open}) })
	q := req(1, "10.0.0.1:99")
	a, _ := ask(t, m, t0, q)
	if b, _ := ask(t, m, t0, q); b != a || p.open != 1 { // [SDP-7.5-3] [SDP-7.5.2-5]
		t.Errorf("duplicate got %+v, %d ports open", b, p.open)
	}
	t.Run("SDP-7.5.2-8", func(t *testing.T) { // with another handle the older port is closed and a new one opened [D-67]
		q.AssocHandle = 2
		if b, _ := ask(t, m, t0, q); b.Ap == a.Ap || b.AssocHandle != 2 || p.open != 1 || p.lost != 1 {
			t.Errorf("other handle got %+v after %+v; %+v", b, a, p)
		}
	})
	m.Expire(t0.Add(defaultLifetime)) // [SDP-7.4-32] [SDP-7.5.2-2]
	if p.open != 0 || p.lost != 2 {
		t.Errorf("after expiry: %+v", p)
	}
	a, _ = ask(t, m, t0, q)
	a.Type = portmapwire.Ack
	ask(t, m, t0, a)
	if p.open != 0 || p.taken != 1 { // the port was not closed [SDP-7.5.2-6]
		t.Errorf("after PMAck: %+v", p)
	}
	a, _ = ask(t, m, t0, q)
	m.Connected(q.Cp, a.Ap) // a connection has the same effect as a PMAck [SDP-7.5.2-1] [SDP-7.5.2-3]
	if p.open != 0 || p.taken != 2 || m.Stats().Pending != 0 {
		t.Errorf("after connection: %+v", p)
	}
	for i := range 2 * maxPendingPerSource {
		q.Cp = netip.AddrPortFrom(q.Cp.Addr(), uint16(i+1))
		ask(t, m, t0.Add(time.Duration(i)*10*time.Millisecond), q)
	}
	if p.open != maxPendingPerSource {
		t.Errorf("one source holds %d ports, want %d", p.open, maxPendingPerSource)
	}
	m.Close()
	if p.open != 0 || len(m.perSrc) != 0 || len(m.byHandle) != 0 {
		t.Errorf("after Close: %+v, %d sources", p, len(m.perSrc))
	}
	p.fail = true
	if b, _ := ask(t, m, t0.Add(time.Minute), q); b.Type != portmapwire.Deny {
		t.Errorf("no port to be had: %v", b.Type)
	}
}

func TestRateLimit(t *testing.T) {
	m := testMachine(func(c *ServerConfig) { c.Rate, c.Burst = 10, 5 })
	n := 0
	for i := range 50 {
		if _, ok := ask(t, m, t0, req(uint64(i), "10.0.0.1:80")); ok {
			n++
		}
	}
	if n != 5 || m.Stats().RateLimited != 45 { // silence [D-61]
		t.Errorf("%d of 50 answered, %+v", n, m.Stats())
	}
	other := m.Handle(t0, netip.MustParseAddr("10.0.0.3"), req(1, "10.0.0.1:80").Append(nil), nil)
	if len(other) == 0 {
		t.Error("another source was punished")
	}
	if _, ok := ask(t, m, t0.Add(time.Second), req(1, "10.0.0.1:80")); !ok {
		t.Error("the bucket did not fill again")
	}
	a6, b6 := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff")
	if sourceOf(a6) != sourceOf(b6) {
		t.Error("one /64 counts as two sources")
	}
}

// TestFlood: 200,000 requests with forged fields use a bounded amount of memory, and an honest
// client gets answers meanwhile. [SDP-15-2]
func TestFlood(t *testing.T) {
	const total = 200_000
	m := testMachine(nil)
	r := rand.New(rand.NewPCG(1, 2))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	buf, reply := make([]byte, 0, portmapwire.MessageLen), make([]byte, 0, portmapwire.MessageLen)
	honest := 0
	for i := range total {
		now := t0.Add(time.Duration(i) * time.Microsecond)
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], r.Uint32()|1<<31)
		src := netip.AddrFrom4(a)
		buf = portmapwire.Message{Type: portmapwire.Request, AssocHandle: r.Uint64(), Cp: netip.AddrPortFrom(src, uint16(i)), Ap: ap("10.0.0.1:80")}.Append(buf[:0])
		reply = m.Handle(now, src, buf, reply[:0])
		if i%10000 == 0 {
			a, ok := ask(t, m, now, req(uint64(i), "10.0.0.1:80"))
			if ok && a.Type == portmapwire.Accept {
				honest++
			}
		}
	}
	if honest != total/10000 {
		t.Errorf("the honest client was answered %d times of %d", honest, total/10000)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if s := m.Stats(); s.Pending > defaultMaxPending || len(m.lim.m) > limiterSources ||
		len(m.byHandle) > defaultMaxPending {
		t.Errorf("tables grew: %+v, %d sources", s, len(m.lim.m))
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
	m.Expire(t0.Add(time.Hour)) // [SDP-7.2-1]
	if s := m.Stats(); s.Pending != 0 {
		t.Errorf("still pending: %d", s.Pending)
	}
}

func FuzzMachine(f *testing.F) {
	for _, m := range []portmapwire.Message{
		{Type: portmapwire.Request, AssocHandle: 0x0102030405060708, Cp: ap("10.0.0.2:40000"), Ap: ap("10.0.0.1:80")},
		{Type: portmapwire.Accept, PmTime: 120, AssocHandle: 1, Cp: ap("10.0.0.2:40000"), Ap: ap("10.0.0.9:8080")},
		{Type: portmapwire.Ack, AssocHandle: 1<<64 - 1, Cp: ap("[2001:db8::2]:1"), Ap: ap("[2001:db8::1]:65535")},
		{Type: portmapwire.Request, AssocHandle: 9, Cp: ap("[::ffff:10.0.0.2]:5"), Ap: ap("[2001:db8::1]:6")},
		{Type: portmapwire.Deny, AssocHandle: 7, Cp: ap("[::1]:5"), Ap: ap("[::1]:6")},
	} {
		f.Add(m.Append(nil), uint16(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, step uint16) {
		var p ports
		m := testMachine(func(c *ServerConfig) {
			c.MaxPending = 3
			c.Registry.Set(ap("10.0.0.1:99"), Mapping{Open: p.Open})
		})
		now := t0
		for len(b) > 0 {
			n := min(len(b), portmapwire.MessageLen)
			d := append([]byte(nil), b[:n]...)
			if n == portmapwire.MessageLen && d[47]&1 == 1 { // half of the requests name real services
				copy(d[4:6], []byte{0, 99})
				copy(d[32:36], []byte{10, 0, 0, 1})
				d[0] = d[0]&0x30 | 4
			}
			if r := m.Handle(now, from, d, nil); len(r) != 0 && len(r) != portmapwire.MessageLen {
				t.Fatalf("answer of %d bytes", len(r))
			}
			if len(m.pending) > 3 || len(m.byHandle) > 3 || p.open > 3 {
				t.Fatalf("%d pending, %d ports", len(m.pending), p.open)
			}
			now = now.Add(time.Duration(step) * time.Millisecond)
			b = b[n:]
		}
		m.Expire(now.Add(time.Hour))
		if len(m.pending) != 0 || p.open != 0 || len(m.perSrc) != 0 || len(m.byHandle) != 0 {
			t.Fatalf("left behind: %d pending, %d ports", len(m.pending), p.open)
		}
	})
}

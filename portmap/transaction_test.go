package portmap

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/wire/portmapwire"
)

func newTx(t testing.TB) *transaction {
	t.Helper()
	tx, err := newTransaction(42, ap("10.0.0.2:40000"), ap("10.0.0.1:80"))
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func answer(ty portmapwire.Type, target string) []byte {
	return portmapwire.Message{Type: ty, PmTime: 4, AssocHandle: 42, Cp: ap("10.0.0.2:40000"), Ap: ap(target)}.Append(nil)
}

func TestSDP_7_4_request(t *testing.T) {
	// [SDP-7.4-4] [SDP-7.4-5] [SDP-7.4-6] [SDP-7.4-7] [SDP-7.4-9] [SDP-7.4-10] [SDP-7.4-12] [SDP-7.4-13] [SDP-7.3.1.7-1]
	tx := newTx(t)
	if tx.Receive(t0, answer(portmapwire.Accept, "10.0.0.1:8080")) != nil { // nothing was sent yet [SDP-7.5.1-10]
		t.Error("an answer before the question was acknowledged")
	}
	want := portmapwire.Message{Type: portmapwire.Request, AssocHandle: 42, Cp: ap("10.0.0.2:40000"), Ap: ap("10.0.0.1:80")}.Append(nil)
	if got := tx.Start(t0); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	t.Run("SDP-7.4-2", func(t *testing.T) { // the PMReq is the first message and is sent once
		defer func() {
			if recover() == nil {
				t.Error("a second start did not panic")
			}
		}()
		tx.Start(t0)
	})
	for _, bad := range []struct{ cp, ap string }{
		{"10.0.0.2:1", "[::1]:1"}, {"10.0.0.2:1", "0.0.0.0:1"}, {"10.0.0.2:1", "10.0.0.1:0"}, {"10.0.0.2:1", "224.0.0.1:1"},
	} {
		if _, err := newTransaction(1, ap(bad.cp), ap(bad.ap)); err == nil {
			t.Errorf("question about %s from %s was allowed", bad.ap, bad.cp)
		}
	}
}

func TestSDP_7_5_1_timeout(t *testing.T) {
	// [SDP-7.5-2] [SDP-7.5.1-2] [SDP-7.5.1-3] [SDP-7.5.1-4] [SDP-7.5.1-7] [D-62]
	tx := newTx(t)
	first := tx.Start(t0)
	now, n := t0, 1
	for {
		at, ok := tx.Deadline()
		if !ok {
			break
		}
		if out := tx.Timeout(at.Add(-time.Nanosecond)); out != nil {
			t.Fatal("retransmitted early")
		}
		now = at
		out := tx.Timeout(now)
		if out == nil {
			continue
		}
		n++
		if !bytes.Equal(out, first) {
			t.Errorf("retransmission %x differs from %x", out, first)
		}
	}
	if n != 3 || now.Sub(t0) != 1750*time.Millisecond {
		t.Errorf("%d requests in %v, want 3 in 1.75s", n, now.Sub(t0))
	}
	if _, done, err := tx.Done(); !done || !errors.Is(err, ErrNoAnswer) {
		t.Errorf("done %v, %v", done, err)
	}
	if out := tx.Receive(now, answer(portmapwire.Accept, "10.0.0.1:8080")); out != nil { // [SDP-7.5.1-10]
		t.Error("an answer after the end was acknowledged")
	}
}

func TestSDP_7_4_ack(t *testing.T) {
	tx := newTx(t)
	tx.Start(t0)
	in := answer(portmapwire.Accept, "10.0.0.9:8080") // the granted address may differ from the requested one [SDP-7.4-24]
	in[1] = 200
	out := tx.Receive(t0, in)
	// [SDP-7.4-25] [SDP-7.4-27] [SDP-7.4-28] [SDP-7.4-29] [SDP-7.4-30] The PMAck is sent whether or
	// not a program still wants the answer. [D-65]
	want := bytes.Clone(in)
	want[0], want[1] = 0x24, 0
	if !bytes.Equal(out, want) {
		t.Errorf("PMAck %x, want %x", out, want)
	}
	m, done, err := tx.Done()
	if !done || err != nil || m.Address != ap("10.0.0.9:8080") || m.PmTime != 200 {
		t.Errorf("%+v %v %v", m, done, err)
	}
	// A second PMAccept and a late PMDeny are ignored. [SDP-7.5-4] [SDP-7.5.1-9]
	if tx.Receive(t0, in) != nil || tx.Receive(t0, answer(portmapwire.Deny, "10.0.0.1:80")) != nil {
		t.Error("a second answer was answered")
	}
	if again, _, err := tx.Done(); err != nil || again != m {
		t.Errorf("outcome changed to %+v, %v", again, err)
	}
}

func TestSDP_7_4_denied(t *testing.T) {
	tx := newTx(t)
	tx.Start(t0)
	d := answer(portmapwire.Deny, "10.0.0.1:80")
	d[1] = 99                     // [SDP-7.4-36]
	d[4], d[5] = 0, 0             // zero and a copy of the request are both valid [SDP-7.3.1.6-2] [D-60]
	if tx.Receive(t0, d) != nil { // [SDP-7.4-40]
		t.Error("PMDeny was acknowledged")
	}
	if _, ok := tx.Deadline(); ok || tx.Timeout(t0.Add(time.Hour)) != nil { // [SDP-7.4-39]
		t.Error("the transaction goes on")
	}
	if tx.Receive(t0, answer(portmapwire.Accept, "10.0.0.1:8080")) != nil { // [SDP-7.5.1-9]
		t.Error("a late PMAccept was acknowledged")
	}
	if _, done, err := tx.Done(); !done || !errors.Is(err, ErrDenied) {
		t.Errorf("%v %v", done, err)
	}
}

func TestSDP_7_5_1_foreign(t *testing.T) {
	// These answers belong to a request of another client, or could not come from a correct server.
	// [SDP-7.5.1-10] [D-66]
	good := portmapwire.Message{Type: portmapwire.Accept, PmTime: 4, AssocHandle: 42,
		Cp: ap("10.0.0.2:40000"), Ap: ap("10.0.0.1:8080")}
	change := func(f func(*portmapwire.Message)) []byte { m := good; f(&m); return m.Append(nil) }
	for name, b := range map[string][]byte{
		"handle":      change(func(m *portmapwire.Message) { m.AssocHandle++ }),
		"port":        change(func(m *portmapwire.Message) { m.Cp = ap("10.0.0.2:40001") }),
		"address":     change(func(m *portmapwire.Message) { m.Cp = ap("10.0.0.3:40000") }),
		"family":      change(func(m *portmapwire.Message) { m.Cp, m.Ap = ap("[::1]:40000"), ap("[::1]:1") }),
		"port 0":      change(func(m *portmapwire.Message) { m.Ap = ap("10.0.0.1:0") }),
		"loopback":    change(func(m *portmapwire.Message) { m.Ap = ap("127.0.0.1:22") }),
		"multicast":   change(func(m *portmapwire.Message) { m.Ap = ap("224.0.0.1:22") }),
		"unspecified": change(func(m *portmapwire.Message) { m.Ap = ap("0.0.0.0:22") }),
		"request":     change(func(m *portmapwire.Message) { m.Type = portmapwire.Request }),
		"ack":         change(func(m *portmapwire.Message) { m.Type = portmapwire.Ack }),
		"short":       good.Append(nil)[:40],
	} {
		tx := newTx(t)
		tx.Start(t0)
		if out := tx.Receive(t0, b); out != nil {
			t.Errorf("%s: answered", name)
		}
		if _, done, _ := tx.Done(); done {
			t.Errorf("%s: ended the transaction", name)
		}
	}
	tx, err := newTransaction(42, ap("[fd00::2]:40000"), ap("[fd00::1]:80"))
	if err != nil {
		t.Fatal(err)
	}
	tx.Start(t0)
	for _, target := range []string{"[::ffff:10.0.0.1]:8080", "[::1]:22", "[ff02::1]:22", "[::]:22"} {
		if tx.Receive(t0, portmapwire.Message{Type: portmapwire.Accept, PmTime: 4, AssocHandle: 42, Cp: ap("[fd00::2]:40000"), Ap: ap(target)}.Append(nil)) != nil {
			t.Errorf("%s was taken for a service", target)
		}
	}
	if tx.Receive(t0, portmapwire.Message{Type: portmapwire.Accept, PmTime: 4, AssocHandle: 42, Cp: ap("[fd00::2]:40000"), Ap: ap("[fd00::9]:8080")}.Append(nil)) == nil {
		t.Error("a good answer was refused")
	}
}

func TestUnreachable(t *testing.T) {
	// After the first ICMP report there is a retry after 50 ms, and after the second none. [D-63]
	tx := newTx(t)
	tx.Start(t0)
	tx.Unreachable(t0)
	at, ok := tx.Deadline()
	if !ok || at != t0.Add(50*time.Millisecond) {
		t.Fatalf("deadline %v %v", at.Sub(t0), ok)
	}
	if tx.Timeout(at) == nil {
		t.Fatal("no retry")
	}
	tx.Unreachable(at)
	if _, done, err := tx.Done(); !done || !errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrDenied) {
		t.Errorf("%v %v", done, err)
	}

	// After the last request, an ICMP report ends the transaction at once.
	tx = newTx(t)
	tx.Start(t0)
	for range len(retryAfter) - 1 {
		at, _ := tx.Deadline()
		tx.Timeout(at)
	}
	tx.Unreachable(at)
	if _, done, err := tx.Done(); !done || !errors.Is(err, ErrNoAnswer) {
		t.Errorf("after the last request: %v %v", done, err)
	}

	// An ICMP report does not count as a denial. An earlier answer stays valid, and an answer
	// during the pause is accepted.
	for _, news := range []int{0, 1} {
		tx = newTx(t)
		tx.Start(t0)
		if news == 1 {
			tx.Unreachable(t0)
		}
		tx.Receive(t0, answer(portmapwire.Accept, "10.0.0.1:8080"))
		tx.Unreachable(t0)
		if m, done, err := tx.Done(); !done || err != nil || m.Address != ap("10.0.0.1:8080") {
			t.Errorf("with an answer: %+v %v %v", m, done, err)
		}
	}
}

// TestLossMatrix runs client and server with every pattern of lost datagrams. There is always
// exactly one outcome, and no pending state remains. [SDP-7-1] [SDP-7.2-1] [SDP-7.2-3]
func TestLossMatrix(t *testing.T) {
	for _, service := range []string{"10.0.0.1:80", "10.0.0.1:81"} {
		for lost := range 1 << 8 {
			t.Run(fmt.Sprintf("%s/%08b", service, lost), func(t *testing.T) {
				m := testMachine(nil)
				tx, _ := newTransaction(7, ap("10.0.0.2:40000"), ap(service))
				if _, done, err := tx.Done(); done || err != nil {
					t.Fatal("an outcome before the question")
				}
				n := 0
				arrives := func() bool { n++; return lost>>(n-1)&1 == 0 }
				now := t0
				out := tx.Start(now)
				for {
					for out != nil {
						if !arrives() {
							break
						}
						back := m.Handle(now, netip.MustParseAddr("10.0.0.2"), out, nil)
						out = nil
						if len(back) > 0 && arrives() {
							out = tx.Receive(now, back)
						}
					}
					at, ok := tx.Deadline()
					if !ok {
						break
					}
					now = at
					out = tx.Timeout(now)
				}
				got, done, err := tx.Done()
				if !done {
					t.Fatal("no outcome")
				}
				switch {
				case err == nil && got.Address != ap("10.0.0.1:8080"),
					err == nil && service != "10.0.0.1:80",
					errors.Is(err, ErrDenied) && service == "10.0.0.1:80":
					t.Errorf("%+v, %v", got, err)
				}
				m.Expire(now.Add(defaultLifetime))
				if s := m.Stats(); s.Pending != 0 {
					t.Errorf("server keeps %d requests", s.Pending)
				}
			})
		}
	}
}

// TestRememberFromReceipt: the lifetime of an answer starts when the PMAccept is received, not when
// the answer is stored.
func TestRememberFromReceipt(t *testing.T) {
	k := cacheKey{service: ap("10.0.0.1:80"), local: from}
	t.Run("SDP-7.3.1.4-1", func(t *testing.T) {
		for _, v := range []struct {
			ago  time.Duration
			keep bool
		}{{100 * time.Second, true}, {130 * time.Second, false}} {
			c := NewClient(ClientConfig{})
			m := Mapped{Address: ap("10.0.0.1:8080"), PmTime: 128, At: time.Now().Add(-v.ago)}
			c.remember(k, m, nil)
			e, ok := c.cache.m[k]
			if ok != v.keep || ok && !e.end.Equal(m.At.Add(128*time.Second)) {
				t.Errorf("received %v ago, 128 s to live: kept %t until %v after receipt", v.ago, ok, e.end.Sub(m.At))
			}
		}
	})
}

func TestSDP_7_3_1_4_cache(t *testing.T) {
	c := cache{m: make(map[cacheKey]cacheEntry), max: 3}
	k := cacheKey{service: ap("10.0.0.1:80"), local: from}
	put := func(p PmTime) {
		c.put(t0, k, cacheEntry{m: Mapped{Address: ap("10.0.0.1:8080"), PmTime: p}, end: t0.Add(p.Duration())})
	}
	put(4) // PmTime 4 is one second
	// [SDP-7.3.1.4-1] [SDP-7.3.1.4-6]
	if e, ok := c.get(t0.Add(900*time.Millisecond), k); !ok || !e.m.Cached {
		t.Error("not kept for its time")
	}
	if _, ok := c.get(t0.Add(900*time.Millisecond), cacheKey{service: k.service, local: netip.MustParseAddr("10.0.0.3")}); ok {
		t.Error("an answer for another local address was used") // [D-64]
	}
	// [SDP-7.3.1.4-2] [SDP-7.3.1.4-3]
	if _, ok := c.get(t0.Add(time.Second), k); ok || len(c.m) != 0 {
		t.Error("kept beyond its time")
	}
	put(128) // [SDP-7.3.1.4-7]
	if _, ok := c.get(t0.Add(127*time.Second), k); !ok {
		t.Error("128 is not 128 seconds")
	}
	put(Once) // [SDP-7.3.1.4-1] [SDP-7.3.1.4-4] [D-65]
	if len(c.m) != 0 {
		t.Error("an answer for one connection was kept, or the one before it")
	}
	put(Forever) // [SDP-7.3.1.4-8]
	if _, ok := c.get(t0.Add(23*time.Hour), k); !ok {
		t.Error("for ever ended within a day")
	}
	c.forget(k.service) // after a failure [D-64]
	if _, ok := c.get(t0, k); ok {
		t.Error("a failed answer was kept")
	}
	for i := range 10 {
		k.service = netip.AddrPortFrom(k.service.Addr(), uint16(i+1))
		put(4)
		if len(c.m) > 3 {
			t.Fatalf("cache holds %d", len(c.m))
		}
	}
}

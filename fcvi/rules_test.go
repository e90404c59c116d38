package fcvi

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// TestDescriptorStatus checks the status of a descriptor for every reason the peer may report.
func TestDescriptorStatus(t *testing.T) {
	t.Run("FCVI-5.9.7-7", func(t *testing.T) {
		known := map[iu.Reason]vi.Status{
			iu.RDMAWriteProt: vi.StatusRDMAProtection, iu.RDMAWriteOff: vi.StatusRDMAProtection,
			iu.RDMAReadProt: vi.StatusRDMAProtection, iu.RDMAReadOff: vi.StatusRDMAProtection,
			iu.NoRecvDesc: vi.StatusRemoteDescriptor, iu.LengthError: vi.StatusRemoteDescriptor,
			iu.RecvProt:   vi.StatusRemoteDescriptor,
			iu.RecvFormat: vi.StatusRemoteDescriptor, iu.TooLong: vi.StatusRemoteDescriptor,
		}
		for r := range 256 {
			want, ok := known[iu.Reason(r)]
			if !ok {
				want = vi.StatusTransportError
			}
			if got := descriptorStatus(iu.Reason(r)); got != want {
				t.Errorf("%v: %#x, want %#x", iu.Reason(r), uint32(got), uint32(want))
			}
		}
	})
}

// TestAsks: a message at Reliable Reception requests a separate response in these cases: one side
// does not stream; a number of messages, or of bytes, was sent since the last request; the window,
// or the memory the peer may need for waiting messages, is nearly full; the queue is about to
// become empty.
func TestAsks(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, _ := s.connect(iu.ReliableReception)
	c := a.c
	c.attrs.Streaming, c.rattrs.Streaming, c.rattrs.MaxUnacked = true, true, 500
	c.p.cfg.maxUnacked = 500
	limit := c.sendWindow()
	every := min(askEvery, max(1, limit/2))
	most := int64(c.maxHold()) - int64(c.mts) // bytes that are not known to be delivered, including the current message
	for _, v := range []struct {
		what           string
		ours, theirs   bool // whether this side and the peer stream
		more           bool // later messages are in the queue
		unasked, bytes int  // since the last request for a response
		pending        int
		unproven       int64
		n              uint32
		asks           bool
	}{
		{"a few", true, true, true, 0, 0, 0, 0, 100, false},
		{"ours does not stream", false, true, true, 0, 0, 0, 0, 100, true},
		{"theirs does not stream", true, false, true, 0, 0, 0, 0, 100, true},
		{"nothing behind it", true, true, false, 0, 0, 0, 0, 100, true},
		{"one before the last of a few", true, true, true, every - 2, 0, 0, 0, 100, false},
		{"the last of a few", true, true, true, every - 1, 0, 0, 0, 100, true},
		{"a byte less than many", true, true, true, 0, askBytes - 101, 0, 0, 100, false},
		{"many bytes", true, true, true, 0, askBytes - 100, 0, 0, 100, true},
		{"two places in the window", true, true, true, 0, 0, limit - 2, 0, 100, false},
		{"the last place in the window", true, true, true, 0, 0, limit - 1, 0, 100, true},
		{"as much as the peer holds", true, true, true, 0, 0, 0, most - 100, 100, false},
		{"more than the peer holds", true, true, true, 0, 0, 0, most - 99, 100, true},
	} {
		t.Run("FCVI-E-2", func(t *testing.T) { // [FCVI-5.9.4-4]
			tx := &c.tx
			was := *tx
			defer func() { *tx = was }()
			tx.resp.pending = fifo[pending]{}
			for range v.pending {
				tx.resp.pending.push(pending{})
			}
			c.attrs.Streaming, c.rattrs.Streaming = v.ours, v.theirs
			tx.unasked, tx.unaskedBytes, tx.resp.unproven, tx.cur.n = v.unasked, v.bytes, v.unproven, v.n
			sends, next := a.sends, a.next1
			a.sends, a.next1 = nil, 0
			if v.more {
				a.sends = []*fakeSend{{}}
			}
			got := c.tx.asks()
			a.sends, a.next1 = sends, next
			if got != v.asks {
				t.Errorf("%s: asks %t", v.what, got)
			}
			both := v.ours && v.theirs
			if want := v.unasked + 1; both && !v.asks && (tx.unasked != want || tx.unaskedBytes != v.bytes+int(v.n)) ||
				both && v.asks && (tx.unasked != 0 || tx.unaskedBytes != 0) {
				t.Errorf("%s: %d messages of %d bytes have not asked", v.what, tx.unasked, tx.unaskedBytes)
			}
		})
	}
}

// TestAsksSmallWindow: if the window has few places, each message requests a response. [FCVI-E-2]
func TestAsksSmallWindow(t *testing.T) {
	for window, want := range map[uint16]bool{1: true, 2: true, 3: true, 4: false} {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, _ := s.connect(iu.ReliableReception)
		a.c.attrs.Streaming, a.c.rattrs.Streaming, a.c.rattrs.MaxUnacked = true, true, window
		a.sends = []*fakeSend{{}}
		if got := a.c.tx.asks(); got != want {
			t.Errorf("window of %d: asks %v", window, got)
		}
	}
}

// TestStartsMessage: which requests may start while others are unanswered.
func TestStartsMessage(t *testing.T) {
	for _, level := range []iu.Reliability{iu.ReliableDelivery, iu.ReliableReception} {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, _ := s.connect(level)
		c := a.c
		limit, reads := c.sendWindow(), int(c.rattrs.MaxReads)
		rr := level == iu.ReliableReception
		full := int64(c.maxHold()) - int64(c.mts)
		for _, v := range []struct {
			what            string
			read            bool
			reads           int
			pending, acking int
			unproven        int64
			starts          bool
		}{
			{"a Send", false, 0, 0, 0, 0, true},
			{"a Send beside Reads", false, reads, 0, 0, 0, true},
			{"a Read", true, 0, 0, 0, 0, true},
			{"the last Read there may be", true, reads - 1, 1, 0, 0, true},
			{"one Read more", true, reads, 1, 0, 0, false},
			{"a Send, the window has a place", false, 0, limit - 1, 0, 0, true},
			{"a Send, the window is full", false, 0, limit, 0, 0, !rr},
			{"a Read, the window is full", true, 0, limit, 0, 0, false},
			{"a Send, the peer holds no more", false, 0, 1, 0, full + 1, !rr},
			{"a Send, the peer holds it", false, 0, 1, 0, full, true},
			{"a Send, nothing is pending", false, 0, 0, 0, full + 1, true},
			{"a Read, the peer holds no more", true, 0, 1, 0, full + 1, false},
			{"a Send, class 2 has a place", false, 0, 0, limit - 1, 0, true},
			{"a Send, class 2 is full", false, 0, 0, limit, 0, false},
		} {
			t.Run("FCVI-F-2", func(t *testing.T) { // [FCVI-E-1] [FCVI-5.2.4-7] [VIA-4.3-4]
				tx := &c.tx
				was, sends, next := *tx, a.sends, a.next1
				defer func() { *tx, a.sends, a.next1 = was, sends, next }()
				ctl := vi.OpSendReceive
				if v.read {
					ctl = vi.OpRDMARead
				}
				a.sends, a.next1 = []*fakeSend{{ctl: ctl, data: make([]byte, 10), va: 1000, mh: 7}}, 0
				tx.resp.pending, tx.acks.fifo = fifo[pending]{}, fifo[ackWait]{}
				for range v.pending {
					tx.resp.pending.push(pending{w: work{op: iu.SendRqst}})
				}
				if v.acking > 0 {
					tx.acks.push(ackWait{id: tx.nextID - iu.MsgID(v.acking)})
				}
				tx.resp.reads, tx.resp.unproven = v.reads, v.unproven
				began, fail := c.tx.startMessage(s.net.Now())
				if got := a.next1 == 1; got != v.starts || began != v.starts || fail != nil {
					t.Errorf("%v, %s: starts %t", level, v.what, got)
				}
			})
		}
		for _, most := range []uint16{0, 1} { // a peer that allows no Read gets a single one
			c.rattrs.MaxReads = most
			for reads, starts := range []bool{true, false} {
				a.sends, a.next1 = []*fakeSend{{ctl: vi.OpRDMARead, data: make([]byte, 10), va: 1000, mh: 7}}, 0
				was := c.tx
				c.tx.resp.reads = reads
				began, fail := c.tx.startMessage(s.net.Now())
				if began != starts || fail != nil {
					t.Errorf("%v, %d Reads allowed, %d outstanding: starts %t", level, most, reads, began)
				}
				c.tx = was
			}
		}
	}
}

// TestPlaceWrite: a Write is checked once, as a whole. If the check fails, the reason is reported
// and no byte is placed.
func TestPlaceWrite(t *testing.T) {
	for _, v := range []struct {
		what    string
		h       iu.Header
		enabled bool
		checked bool
		bad     iu.Reason // before
		data    string
		placed  string
		want    iu.Reason
	}{
		{"good", iu.Header{RmtHandle: 7, RmtVA: 1000, Total: 4}, true, false, 0, "data", "data", 0},
		{"no bytes", iu.Header{RmtHandle: 7, RmtVA: 1000, Total: 0}, true, false, 0, "", "", 0},
		{"another handle", iu.Header{RmtHandle: 8, RmtVA: 1000, Total: 4}, true, false, 0, "data", "", iu.RDMAWriteProt},
		{"not enabled", iu.Header{RmtHandle: 8, RmtVA: 1000, Total: 4}, false, false, 0, "data", "", iu.RDMAWriteOff},
		{"no rights for the whole", iu.Header{RmtHandle: 7, RmtVA: 1000, Total: 1 << 20}, true, false, 0, "data", "", iu.RDMAWriteProt},
		{"memory that went away", iu.Header{RmtHandle: 8, RmtVA: 1000, Total: 4}, true, true, 0, "data", "", iu.RDMAWriteProt},
		{"failed before", iu.Header{RmtHandle: 7, RmtVA: 1000, Total: 4}, true, true, iu.RDMAWriteOff, "data", "", iu.RDMAWriteOff},
	} {
		t.Run("FCVI-5.2.3-3", func(t *testing.T) { // [FCVI-5.2.3-1] [FCVI-5.9.8-2] [FCVI-7.3-7] [VIA-4.2-1]
			s := newSim(t, simConfig{seed: 1, order: true})
			_, b := s.connect(iu.ReliableDelivery)
			b.c.attrs.Write = v.enabled
			m := &rxMsg{h: v.h, checked: v.checked, bad: v.bad}
			stats, traffic := b.c.p.stats.PlacedBytes, b.c.traffic.ReceivedBytes
			if ok, fail := b.c.rx.placeWrite(s.net.Now(), m, 0, []byte(v.data)); !ok || fail != nil {
				t.Errorf("%s: the message does not go on to its end", v.what)
			}
			n := uint64(len(v.placed))
			if m.bad != v.want || !m.checked || string(b.mem[:n]) != v.placed || b.mem[n] != 0 ||
				b.c.p.stats.PlacedBytes-stats != n || b.c.traffic.ReceivedBytes-traffic != n {
				t.Errorf("%s: %v, checked %t, %q", v.what, m.bad, m.checked, b.mem[:4])
			}
		})
	}
}

// TestResolveOrder: an address is searched for in the cache, in the static table, in the directory
// and by FARP, in that order. While the port is offline, a search waits for the port, up to a time
// limit.
func TestResolveOrder(t *testing.T) {
	t.Run("FCVI-7.4-1", func(t *testing.T) { // [FCVI-7.5-10] [FCVI-7.6-3] [FCVI-7.6-4]
		s := newSim(t, simConfig{seed: 1, order: true})
		p, other := s.ports[0], s.ports[1].np
		asked, farps := map[uint16]int{}, 0
		s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
			if from == p.end && f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == fc.ELSFARPReq {
				farps++
			}
			if from == p.end && f.Type == fc.TypeCT && f.RCtl == fc.RCtlUnsolControl && len(f.Payload) > 10 {
				asked[uint16(f.Payload[8])<<8|uint16(f.Payload[9])]++
			}
		})
		find := func(a iu.NetAddress) (found *fc.Remote, calls int, err error) {
			t.Helper()
			p.resolve(s.net.Now(), a, func(_ fc.Time, r *fc.Remote, e error) { found, err, calls = r, e, calls+1 })
			s.net.Run(2 * time.Minute)
			return found, calls, err
		}
		far := netip.MustParseAddr("10.9.9.9") // an address that is not in the directory
		p.cfg.static = map[netip.Addr]WWN{far: WWN(other.Name())}
		if r, n, err := find(iu.IPAddress(far, nil)); n != 1 || err != nil ||
			r.PortName != other.Name() || asked[uint16(fc.NSGIDPN)] != 1 {
			t.Errorf("by the static table: %v, %v, %d calls, asked %v", r, err, n, asked)
		}
		clear(asked)
		if r, n, err := find(iu.IPAddress(far, nil)); n != 1 || err != nil ||
			r.PortName != other.Name() || len(asked) != 0 {
			t.Errorf("from the cache: %v, %v, %d calls, asked %v", r, err, n, asked)
		}
		p.cache[keyOf(iu.IPAddress(far, nil))] = mapping{0x010203, 9} // an outdated mapping
		if r, n, err := find(iu.IPAddress(far, nil)); n != 1 || err != nil ||
			r.PortName != other.Name() || asked[uint16(fc.NSGIDPN)] != 1 {
			t.Errorf("behind a stale mapping: %v, %v, %d calls, asked %v", r, err, n, asked)
		}
		named := func(name fc.WWN) iu.NetAddress { return iu.NameAddress(uint64(name), nil) }
		for _, v := range []struct {
			what     string
			a        iu.NetAddress
			farpOnly bool
			query    uint16 // first query to the directory; 0 means none
			farp     bool
			found    bool
		}{
			{"an IP address", iu.IPAddress(addrOf(2), nil), false, uint16(fc.NSGIDIPP), false, true},
			{"an IP address, without a directory", iu.IPAddress(addrOf(2), nil), true, 0, true, true},
			{"a Port_Name", named(other.Name()), false, uint16(fc.NSGIDPN), false, true},
			{"a Port_Name, without a directory", named(other.Name()), true, 0, true, true},
			{"an IP address of none", iu.IPAddress(addrOf(9), nil), false, uint16(fc.NSGIDIPP), true, false},
			{"a Port_Name of none", named(other.Name() + 1), false, uint16(fc.NSGIDPN), true, false},
			{"a Port_Name of none, without a directory", named(other.Name() + 1), true, 0, true, false},
		} {
			clear(asked)
			clear(p.cache)
			farps, p.cfg.farpOnly = 0, v.farpOnly
			r, n, err := find(v.a)
			if n != 1 || (err == nil) != v.found || v.found && r.PortName != other.Name() ||
				(farps > 0) != v.farp || (v.query != 0) != (asked[v.query] == 1) || v.query == 0 && len(asked) != 0 {
				t.Errorf("%s: %v, %v, %d calls, asked %v, %d FARPs", v.what, r, err, n, asked, farps)
			}
		}
		p.cfg.farpOnly = false
		if r, n, err := find(iu.NetAddress{}); n != 1 || r != nil || !errors.Is(err, vi.ErrNotReachable) {
			t.Errorf("no address: %v, %v, %d calls", r, err, n)
		}
	})
}

// TestResolveOffline: a search waits until the port is online, at most for FCVI_ULP_TIMEOUT, and
// ends once.
func TestResolveOffline(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run("FCVI-7.4-1", func(t *testing.T) {
			s := newSim(t, simConfig{seed: 1, order: true})
			p, other := s.ports[0], s.ports[1].np
			p.np.LinkDown(s.net.Now())
			if p.np.State() == fc.Online {
				t.Fatal("the port is online")
			}
			var found *fc.Remote
			var why error
			calls := 0
			begun, ended := s.net.Now(), fc.Time(0)
			p.resolve(begun, iu.IPAddress(addrOf(s.ports[1].n), nil), func(now fc.Time, r *fc.Remote, err error) {
				found, why, ended, calls = r, err, now, calls+1
			})
			if len(p.onlineFn) != 1 || calls != 0 {
				t.Errorf("%d searches wait, %d calls", len(p.onlineFn), calls)
			}
			if back {
				s.net.BringUp(p.end)
				s.net.Run(2 * p.ulpTimeout())
				if calls != 1 || why != nil || found.PortName != other.Name() {
					t.Errorf("%d calls, %v, %v", calls, found, why)
				}
				return
			}
			s.net.Run(2 * p.ulpTimeout())
			if calls != 1 || !errors.Is(why, fc.ErrOffline) || ended-begun != p.ulpTimeout() {
				t.Errorf("%d calls, %v after %v, want %v", calls, why, ended-begun, p.ulpTimeout())
			}
			s.net.BringUp(p.end)
			s.net.Run(time.Minute)
			if calls != 1 {
				t.Errorf("%d calls: it ended twice", calls)
			}
		})
	}
}

// TestMatchAttributes lists attributes two ends agree on, whichever end makes the request, and
// rejected attributes.
func TestMatchAttributes(t *testing.T) {
	qos := func(n uint32) iu.QoS { return iu.QoS{Latency: n} }
	for _, v := range []struct {
		row  string
		a, b func(*iu.Attributes)
		want iu.Reason
		mts  uint32
	}{
		{"FCVI-7.3-4", nil, nil, iu.Accepted, 1000},
		{"FCVI-7.3-4", func(a *iu.Attributes) { a.MaxTransfer = 1 }, nil, iu.Accepted, 1},
		{"FCVI-7.3-4", func(a *iu.Attributes) { a.Reliability = iu.ReliableDelivery }, nil, iu.InvalidReliability, 0},
		{"FCVI-7.3-4", func(a *iu.Attributes) { a.Reliability = 9 }, func(b *iu.Attributes) { b.Reliability = 9 }, iu.InvalidReliability, 0},
		{"FCVI-7.3-3", func(a *iu.Attributes) { a.MaxUnacked = 0 }, nil, iu.InvalidReliability, 0},
		{"FCVI-7.3-3", func(a *iu.Attributes) { a.MaxUnacked, a.Reliability = 0, iu.ReliableDelivery },
			func(b *iu.Attributes) { b.MaxUnacked, b.Reliability = 0, iu.ReliableDelivery }, iu.Accepted, 1000},
		{"FCVI-7.3-5", func(a *iu.Attributes) { a.MaxTransfer = 0 }, nil, iu.InvalidMTS, 0},
		{"FCVI-7.3-6", func(a *iu.Attributes) { a.QoS = qos(1) }, nil, iu.Accepted, 1000},
		{"FCVI-7.3-6", func(a *iu.Attributes) { a.QoS = qos(1) }, func(b *iu.Attributes) { b.QoS = qos(1) }, iu.Accepted, 1000},
		{"FCVI-7.3-6", func(a *iu.Attributes) { a.QoS = qos(1) }, func(b *iu.Attributes) { b.QoS = qos(2) }, iu.InvalidQoS, 0},
		{"FCVI-7.3-8", func(a *iu.Attributes) { a.Reliability, a.Read = iu.Unreliable, true },
			func(b *iu.Attributes) { b.Reliability = iu.Unreliable }, iu.InvalidRDMARead, 0},
		{"FCVI-7.3-8", func(a *iu.Attributes) { a.Reliability = iu.Unreliable }, func(b *iu.Attributes) { b.Reliability = iu.Unreliable }, iu.Accepted, 1000},
		{"FCVI-7.3-8", func(a *iu.Attributes) { a.Read = true }, nil, iu.Accepted, 1000},
	} {
		t.Run(v.row, func(t *testing.T) {
			base := iu.Attributes{Reliability: iu.ReliableReception, MaxTransfer: 1000, MaxUnacked: 4}
			a, b := base, base
			if v.a != nil {
				v.a(&a)
			}
			if v.b != nil {
				v.b(&b)
			}
			for range 2 {
				if mts, why := matchAttributes(&a, &b); why != v.want || mts != v.mts {
					t.Errorf("%+v and %+v: %v, %d bytes, want %v, %d", a, b, why, mts, v.want, v.mts)
				}
				a, b = b, a
			}
		})
	}
}

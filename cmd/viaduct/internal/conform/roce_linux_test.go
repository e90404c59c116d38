package conform

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"viaduct/internal/roceudp"
	"viaduct/internal/wire/ib"
)

// target returns the Target for the cases with a passive peer.
func (p *testPeer) target() Target {
	return Target{
		Connect: p.dial, MTU: p.mtu, Patience: time.Minute, Quiet: 100 * time.Millisecond,
		Datagrams: func(own netip.Addr) (net.PacketConn, error) { return roceudp.Listen(own) },
	}
}

// runAll runs independent cases concurrently. It calls each with every result, never concurrently.
func runAll(t *testing.T, cs []Case, target func(c *Case) Target, each func(r Result)) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range cs {
		wg.Go(func() {
			Run(t.Context(), target(&cs[i]), cs[i:i+1], func(r Result) {
				mu.Lock()
				defer mu.Unlock()
				each(r)
			})
		})
	}
	wg.Wait()
}

// TestRoCE: package roce passes all cases, in both roles and with all relevant path MTUs.
func TestRoCE(t *testing.T) {
	passes := func(r Result) {
		if r.Verdict != Pass {
			t.Errorf("%s (%s): %s %s %s", r.Name, r.Role, r.Verdict, r.Row, r.Detail)
		}
	}
	if n := len(Cases("roce", Passive)); n < 30 {
		t.Errorf("%d cases", n)
	}
	for _, mtu := range []int{256, 1024} {
		p := newTestPeer(t, mtu)
		runAll(t, Cases("roce", Passive), func(*Case) Target { return p.target() }, passes)
	}
	p := newTestPeer(t, 1024)
	runAll(t, Cases("roce", Active), func(*Case) Target {
		g := p.target()
		g.Connect = p.dialledBy
		return g
	}, passes)
}

// dialledBy makes the peer dial, and returns our end of the connection.
func (p *testPeer) dialledBy(ctx context.Context) (net.Conn, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(roceLoopback(), 0).String())
	if err != nil {
		return nil, err
	}
	defer l.Close()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.dev.Addr(), 0))}
	c, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	p.wg.Go(func() { p.serve(c, true) })
	return l.Accept()
}

// A breakage changes the packets between conform and a correct responder, so that the responder
// seems to violate a requirement.
type breakage struct {
	of, row string // the case that must fail, and the violated requirement
	// sent modifies packet n to the responder. b excludes the invariant CRC. The CRC is recomputed.
	sent func(n int, b []byte)
	// answer modifies packet n of the responder.
	answer func(n int, p *ib.Packet)
	// bytes modifies a packet of the responder before the invariant CRC is computed, sealed
	// afterwards.
	bytes  func(b []byte)
	sealed func(b []byte)
	// unasked makes the responder answer packet n instead of dropping the packet.
	unasked func(n int) bool
}

// A brokenWire applies a breakage.
type brokenWire struct {
	net.PacketConn
	own      netip.AddrPort
	b        *breakage
	out, in  int
	returned [][]byte // answers to unasked packets
	far      net.Addr
	qpn      uint32 // queue pair of conform's end
}

func (w *brokenWire) flow(far net.Addr, out bool) *ib.Flow {
	a := far.(*net.UDPAddr).AddrPort()
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	if out {
		return &ib.Flow{Source: w.own, Destination: a}
	}
	return &ib.Flow{Source: a, Destination: w.own}
}

func (w *brokenWire) WriteTo(b []byte, to net.Addr) (int, error) {
	n := len(b)
	if w.b.unasked != nil && w.b.unasked(w.out) {
		h, _, _ := ib.ParseBTH(b)
		p := ib.Packet{BTH: ib.BTH{Opcode: ib.Acknowledge, PKey: ib.DefaultPKey, QPN: w.qpn, PSN: h.PSN},
			AETH: ib.AETH{Syndrome: ib.ACK}}
		w.returned, w.far = append(w.returned, w.flow(to, false).Seal(p.Append(nil))), to
	}
	if w.b.sent != nil {
		c := slices.Clone(b[:n-ib.ICRCLen])
		w.b.sent(w.out, c)
		b = w.flow(to, true).Seal(c)
	}
	w.out++
	_, err := w.PacketConn.WriteTo(b, to)
	return n, err
}

func (w *brokenWire) ReadFrom(b []byte) (int, net.Addr, error) {
	if len(w.returned) > 0 {
		n := copy(b, w.returned[0])
		w.returned = w.returned[1:]
		return n, w.far, nil
	}
	n, from, err := w.PacketConn.ReadFrom(b)
	if err != nil {
		return n, from, err
	}
	p, err := ib.Parse(b[:n-ib.ICRCLen])
	if err != nil {
		return n, from, nil
	}
	w.qpn = p.QPN
	if w.b.answer != nil {
		w.b.answer(w.in, &p)
	}
	w.in++
	c := p.Append(nil)
	if w.b.bytes != nil {
		w.b.bytes(c)
	}
	c = w.flow(from, false).Seal(c)
	if w.b.sealed != nil {
		w.b.sealed(c)
	}
	return copy(b, c), from, nil
}

// syndrome returns the breakage of a responder that answers with another syndrome.
func syndrome(of, row string, s ib.Syndrome) breakage {
	return breakage{of: of, row: row, answer: func(_ int, p *ib.Packet) { p.AETH.Syndrome = s }}
}

// placed returns the breakage of a responder that stores or reads a wrong byte, beginning with
// answer from.
func placed(of, row string, from int) breakage {
	return breakage{of: of, row: row, answer: func(n int, p *ib.Packet) {
		if n >= from && len(p.Payload) > 0 {
			p.Payload[len(p.Payload)-1] ^= 1
		}
	}}
}

// first returns a function to modify only the first packet from conform.
func first(change func(b []byte)) func(n int, b []byte) {
	return func(n int, b []byte) {
		if n == 0 {
			change(b)
		}
	}
}

var breakages = []breakage{
	{of: "roce/send", row: "ROCE-RESP-14", answer: func(_ int, p *ib.Packet) { p.PSN = p.PSN.Add(1) }},
	{of: "roce/send", row: "ROCE-RESP-13", answer: func(n int, p *ib.Packet) { p.AETH.MSN += uint32(n) }},
	{of: "roce/send", row: "ROCE-BTH-2", bytes: func(b []byte) { b[1] |= 1 }},
	{of: "roce/send", row: "ROCE-BTH-4", bytes: func(b []byte) { b[3] = 1 }},
	{of: "roce/send", row: "ROCE-BTH-6", bytes: func(b []byte) { b[8] |= 1 }},
	{of: "roce/send", row: "ROCE-OP-1", bytes: func(b []byte) { b[0] = 0x1f }},
	{of: "roce/send", row: "ROCE-OP-2", bytes: func(b []byte) { b[0] = byte(ib.AtomicAcknowledge) }},
	{of: "roce/send", row: "ROCE-BTH-3", bytes: func(b []byte) { b[1] |= 0x10 }},
	{of: "roce/send", row: "ROCE-ICRC-1", sealed: func(b []byte) { b[len(b)-1] ^= 1 }},
	{of: "roce/long-send", row: "ROCE-RESP-1", answer: func(_ int, p *ib.Packet) { p.PSN = p.PSN.Add(1) }},
	{of: "roce/number-wrap", row: "ROCE-BTH-5", answer: func(_ int, p *ib.Packet) {
		if p.PSN == 0 {
			p.AETH.Syndrome = ib.NAKSequence
		}
	}},
	syndrome("roce/ahead", "ROCE-RESP-2", ib.ACK),
	{of: "roce/ahead-again", row: "ROCE-RESP-2", unasked: func(n int) bool { return n == 1 }},
	{of: "roce/duplicate-send", row: "ROCE-RESP-13", answer: func(n int, p *ib.Packet) { p.AETH.MSN += uint32(n) }},
	{of: "roce/duplicate-send", row: "ROCE-RESP-3", answer: func(n int, p *ib.Packet) {
		if n == 1 {
			p.AETH.Syndrome = ib.NAKInvalidRequest
		}
	}},
	{of: "roce/duplicate-old", row: "ROCE-RESP-3", sent: func(n int, b []byte) {
		if n == 3 { // the new number makes the responder execute the packet as a new request
			binary.BigEndian.PutUint32(b[8:], binary.BigEndian.Uint32(b[8:])+3)
		}
	}},
	syndrome("roce/no-receive", "ROCE-RESP-14", ib.NAKSequence),
	{of: "roce/no-receive", row: "ROCE-RESP-9", answer: func(_ int, p *ib.Packet) {
		if p.AETH.Syndrome.Type() == ib.TypeRNR {
			p.AETH.Syndrome = ib.NAKRemoteOp
		}
	}},
	{of: "roce/after-error", row: "ROCE-RESP-16", unasked: func(n int) bool { return n == 1 }},
	syndrome("roce/middle-first", "ROCE-RESP-7", ib.ACK),
	syndrome("roce/last-first", "ROCE-RESP-7", ib.ACK),
	syndrome("roce/only-inside", "ROCE-RESP-7", ib.ACK),
	syndrome("roce/kinds-mixed", "ROCE-RESP-7", ib.NAKSequence),
	{of: "roce/opcode-unassigned", row: "ROCE-OP-3", sent: first(func(b []byte) { b[0] = byte(ib.SendOnly) })},
	{of: "roce/opcode-transport", row: "ROCE-OP-3", sent: first(func(b []byte) { b[0] = byte(ib.SendOnly) })},
	{of: "roce/version", row: "ROCE-BTH-2", sent: first(func(b []byte) { b[1] &^= 15 })},
	{of: "roce/partition", row: "ROCE-BTH-4", sent: first(func(b []byte) { b[2], b[3] = 0xff, 0xff })},
	{of: "roce/no-queue-pair", row: "ROCE-NET-5", sent: first(func(b []byte) { b[5] ^= 0x40; b[6] ^= 0x5a })},
	syndrome("roce/partition-limited", "ROCE-BTH-4", ib.NAKInvalidRequest),
	syndrome("roce/reserved-bits", "ROCE-BTH-6", ib.NAKInvalidRequest),
	{of: "roce/icrc", row: "ROCE-ICRC-3", sent: func(int, []byte) {}}, // the CRC is recomputed, so it is correct
	syndrome("roce/empty-send", "ROCE-RESP-8", ib.NAKInvalidRequest),
	syndrome("roce/first-short", "ROCE-RESP-8", ib.ACK),
	syndrome("roce/last-empty", "ROCE-RESP-8", ib.ACK),
	syndrome("roce/only-long", "ROCE-RESP-8", ib.ACK),
	syndrome("roce/too-long", "ROCE-RESP-12", ib.ACK),
	placed("roce/write", "ROCE-RESP-1", 1),
	placed("roce/long-write", "ROCE-RESP-1", 2),
	placed("roce/pads", "ROCE-BTH-3", 0),
	syndrome("roce/write-length", "ROCE-RESP-8", ib.ACK),
	syndrome("roce/write-overrun", "ROCE-RESP-8", ib.NAKRemoteAccess),
	syndrome("roce/key", "ROCE-RESP-10", ib.ACK),
	syndrome("roce/bounds", "ROCE-RESP-10", ib.ACK),
	syndrome("roce/wrapped-bounds", "ROCE-RESP-10", ib.ACK),
	syndrome("roce/rights", "ROCE-RESP-10", ib.NAKInvalidRequest),
	syndrome("roce/empty-write", "ROCE-RESP-11", ib.NAKRemoteAccess),
	{of: "roce/read", row: "ROCE-OP-12", answer: func(_ int, p *ib.Packet) {
		if p.Opcode == ib.ReadResponseMiddle {
			p.Opcode = ib.ReadResponseFirst
		}
	}},
	{of: "roce/read", row: "ROCE-COMP-4", answer: func(_ int, p *ib.Packet) { p.Payload = p.Payload[:len(p.Payload)/2] }},
	syndrome("roce/empty-read", "ROCE-RESP-11", ib.NAKRemoteAccess),
	syndrome("roce/read-key", "ROCE-RESP-10", ib.NAKSequence),
	placed("roce/duplicate-read", "ROCE-RESP-4", 3),
	placed("roce/rest-of-read", "ROCE-RESP-4", 3),
	{of: "roce/other-read", row: "ROCE-RESP-4", unasked: func(n int) bool { return n == 1 }},
	{of: "roce/order", row: "ROCE-RESP-15", answer: func(n int, p *ib.Packet) { p.PSN = p.PSN.Add(1 - n) }},
	{of: "roce/fetch-add", row: "ROCE-OP-7", answer: func(n int, p *ib.Packet) { p.AtomicAck += ib.AtomicAckETH(n) }},
	{of: "roce/compare-swap", row: "ROCE-OP-6", answer: func(n int, p *ib.Packet) {
		if n == 3 {
			p.AtomicAck++
		}
	}},
	{of: "roce/duplicate-atomic", row: "ROCE-RESP-5", answer: func(n int, p *ib.Packet) {
		if n == 1 {
			p.AtomicAck += 7
		}
	}},
	{of: "roce/duplicate-atomic", row: "ROCE-RESP-5", answer: func(n int, p *ib.Packet) {
		if n == 2 {
			p.AtomicAck += 7
		}
	}},
	syndrome("roce/atomic-alignment", "ROCE-RESP-17", ib.ACK),
	placed("roce/datagram", "ROCE-UD-1", 0),
	{of: "roce/datagram", row: "ROCE-OP-10", answer: func(_ int, p *ib.Packet) { p.DETH.SourceQPN++ }},
	{of: "roce/datagram-key", row: "ROCE-UD-2", sent: first(func(b []byte) { b[15] ^= 0x10 })},
}

// TestRoCEBroken runs each case against a responder in violation of the tested rule. The case must
// fail, and must name the requirement.
func TestRoCEBroken(t *testing.T) {
	p := newTestPeer(t, 1024)
	cases := Cases("roce", Passive)
	for _, c := range cases {
		if !slices.ContainsFunc(breakages, func(b breakage) bool { return b.of == c.Name }) {
			t.Errorf("nothing shows that %s can fail", c.Name)
		}
	}
	var wg sync.WaitGroup
	for i := range breakages {
		b := &breakages[i]
		at := slices.IndexFunc(cases, func(c Case) bool { return c.Name == b.of })
		if at < 0 {
			t.Errorf("there is no case %s", b.of)
			continue
		}
		wg.Go(func() {
			g := p.target()
			g.Quiet = time.Minute // the unexpected answer does arrive
			g.Datagrams = func(own netip.Addr) (net.PacketConn, error) {
				c, err := roceudp.Listen(own)
				if err != nil {
					return nil, err
				}
				return &brokenWire{PacketConn: c, own: netip.AddrPortFrom(own, ib.Port), b: b}, nil
			}
			Run(t.Context(), g, cases[at:at+1], func(r Result) {
				if r.Verdict != Fail || r.Row != b.row {
					t.Errorf("%s with a responder that breaks %s: %s %s %s", b.of, b.row, r.Verdict, r.Row, r.Detail)
				}
			})
		})
	}
	wg.Wait()
}

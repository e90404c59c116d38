package roceudp

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/rocecore"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ib"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A host counts the calls of its methods.
type host struct{ memory, receives, received, done, failed int }

func (h *host) Check(rocecore.Place, uint64, rocecore.Access) rocecore.Verdict {
	h.memory++
	return rocecore.Refused
}
func (h *host) Write(rocecore.Place, []byte) rocecore.Verdict { h.memory++; return rocecore.Refused }
func (h *host) Read(rocecore.Place, []byte) rocecore.Verdict  { h.memory++; return rocecore.Refused }
func (h *host) Atomic(rocecore.Op, rocecore.Place, uint64, uint64) (uint64, rocecore.Verdict) {
	h.memory++
	return 0, rocecore.Refused
}
func (h *host) Invalidate(uint32) rocecore.Verdict                 { h.memory++; return rocecore.Refused }
func (h *host) NextReceive() (rocecore.Receive, bool)              { h.receives++; return rocecore.Receive{}, false }
func (h *host) RequestDone(*rocecore.Request, rocecore.Completion) { h.done++ }
func (h *host) Received(rocecore.Receive, rocecore.Arrival)        { h.received++ }
func (h *host) Refused(ib.Syndrome)                                {}
func (h *host) Failed(rocecore.Status)                             { h.failed++ }

func loopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
}

func port(t *testing.T) *Port {
	p, err := Open(loopback())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestStranger sends packets of all kinds from an address that is not the peer's to a port with a
// queue pair: random bytes, random packets with a correct CRC, and packets from the peer's address
// with a wrong CRC. Each packet is counted. None is answered, allocates more than its error, or
// causes an access to memory. [ROCE-NET-4] [ROCE-NET-5] [ROCE-NET-8] [ROCE-ICRC-3]
func TestStranger(t *testing.T) {
	p := port(t)
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	h := new(host)
	stranger, peer := loopback(), loopback()
	q.Receive(h, peer, rocecore.Config{Transport: ib.RC, MTU: 1024, PeerQPN: 99, MaxServed: 16, Access: 7})
	q.Send(rocecore.SendConfig{MaxReads: 16, Timeout: time.Hour, Retries: 1})
	from := func(a netip.Addr) *net.UDPConn {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, ib.Port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	bad, known := from(stranger), from(peer)
	to := netip.AddrPortFrom(p.Addr(), ib.Port)
	r, bytes := rand.New(rand.NewPCG(3, 4)), rand.NewChaCha8([32]byte{5})
	random := func(n int) []byte {
		b := make([]byte, n, n+ib.ICRCLen)
		bytes.Read(b)
		return b
	}
	sealed := func(a netip.Addr, b []byte, qpn uint32) []byte {
		for !ib.Opcode(b[0]).Assigned() {
			b[0] = byte(r.Uint32())
		}
		binary.BigEndian.PutUint32(b[4:], qpn)
		b[1] &^= 0x0f
		f := ib.Flow{Source: netip.AddrPortFrom(a, ib.Port), Destination: to}
		return f.Seal(b)
	}
	total := uint64(0)
	handled := func() uint64 {
		n := p.Counters()
		return n.Malformed + n.NoPair + n.Stranger + n.WrongCRC
	}
	const ahead = 300 // every socket buffer has room for so many packets
	send := func(c *net.UDPConn, b []byte) {
		if _, err := c.WriteToUDPAddrPort(b, to); err != nil {
			t.Fatal(err)
		}
		if total++; total%100 == 0 { // wait, so that the socket drops none
			testkit.Eventually(t, "packets", func() bool { return handled()+ahead >= total })
		}
	}
	kinds := func() (all [4][]byte) {
		all[0] = random(r.IntN(200))
		all[1] = sealed(stranger, random(12+4*r.IntN(50)), q.QPN())
		all[2] = sealed(stranger, random(12+4*r.IntN(50)), r.Uint32N(1<<24))
		b := sealed(peer, random(12+4*r.IntN(50)), q.QPN())
		// No identification explains this change of the CRC.
		binary.LittleEndian.PutUint32(b[len(b)-4:], binary.LittleEndian.Uint32(b[len(b)-4:])^0x80000000)
		all[3] = b
		return all
	}
	rounds, begin := 3000, time.Now()
	if testkit.LongRuns() {
		rounds = 250_000
	}
	for range rounds {
		for i, b := range kinds() {
			c := bad
			if i == 3 {
				c = known
			}
			send(c, b)
		}
	}
	send(bad, random(maxPacket+1))
	testkit.Eventually(t, "all packets", func() bool { return handled() == total })
	n := p.Counters()
	t.Logf("%d packets in %v: %+v", total, time.Since(begin), n)
	if n.Malformed == 0 || n.NoPair == 0 || n.Stranger == 0 || n.WrongCRC == 0 {
		t.Errorf("%+v", n)
	}
	p.rx.Lock()
	for i, b := range kinds() {
		copy(p.batch.buf[0][:], b)
		p.batch.len[0], p.batch.from[0] = len(b), netip.AddrPortFrom([]netip.Addr{stranger, peer}[i/3], ib.Port)
		const ofError = 4 // allocations of an error that describes a packet
		if n := testing.AllocsPerRun(100, func() { p.handleLocked(0, false) }); n > ofError {
			t.Errorf("a packet of kind %d costs %v allocations", i, n)
		}
	}
	p.rx.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if *h != (host{}) || q.conn.Counters() != (rocecore.Counters{}) {
		t.Errorf("%+v, %+v", h, q.conn.Counters())
	}
}

// A host that knows of a message may close the queue pair at once. Close sends the acknowledgement
// then, so that the peer's request does not fail.
func TestCloseAcknowledges(t *testing.T) {
	p := port(t)
	peer, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback(), ib.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	q.Receive(new(host), peer.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), rocecore.Config{Transport: ib.RC, MTU: 1024, PeerQPN: 99, Access: 7})
	q.mu.Lock()
	write := ib.Packet{BTH: ib.BTH{Opcode: ib.WriteOnly, PKey: ib.DefaultPKey, QPN: q.qpn, AckReq: true}}
	q.conn.Receive(0, &write) // as handleLocked does, before the queue pair has its turn
	q.mu.Unlock()
	q.Close()
	b := make([]byte, maxPacket)
	peer.SetReadDeadline(time.Now().Add(testkit.Patience))
	n, err := peer.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if ack, err := ib.Parse(b[:n-ib.ICRCLen]); err != nil || ack.Opcode != ib.Acknowledge || ack.AETH.Syndrome.Type() != ib.TypeACK {
		t.Errorf("%+v, %v", ack, err)
	}
}

// IPv4 packets have the DF flag, no UDP checksum, identification 0, and source port 4791.
// [ROCE-NET-1] [ROCE-NET-2] [ROCE-NET-3]
func TestHeaders(t *testing.T) {
	p := port(t)
	raw, err := net.ListenIP("ip4:udp", &net.IPAddr{IP: p.Addr().AsSlice()})
	if err != nil {
		t.Skipf("SKIPPED: no raw socket to look at IP headers: %v", err)
	}
	defer raw.Close()
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	q.Receive(new(host), p.Addr(), rocecore.Config{Transport: ib.RC, MTU: 1024, PeerQPN: 99})
	q.Send(rocecore.SendConfig{Timeout: time.Hour})
	sc, err := raw.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	q.Post(new(rocecore.Request))
	b := make([]byte, 2048)
	n := 0
	raw.SetReadDeadline(time.Now().Add(testkit.Patience))
	if err := sc.Read(func(fd uintptr) bool { n = readRaw(fd, b); return n > 0 }); err != nil {
		t.Fatal(err)
	}
	ip, udp := b[:20], b[20:28]
	if id, frag := binary.BigEndian.Uint16(ip[4:]), binary.BigEndian.Uint16(ip[6:]); ip[0] != 0x45 ||
		id != 0 || frag != 0x4000 {
		t.Errorf("IP header %x", ip)
	}
	if binary.BigEndian.Uint16(udp) != ib.Port || binary.BigEndian.Uint16(udp[2:]) != ib.Port ||
		binary.BigEndian.Uint16(udp[6:]) != 0 {
		t.Errorf("UDP header %x", udp)
	}
	f := ib.Flow{Source: netip.AddrPortFrom(p.Addr(), ib.Port), Destination: netip.AddrPortFrom(p.Addr(), ib.Port)}
	if err := f.Check(b[28:n]); err != nil {
		t.Error(err)
	}
}

// A port accepts packets without a UDP checksum over IPv6 too, because rxe sends them. [ROCE-NET-2]
func TestNoChecksum(t *testing.T) {
	p, err := Open(netip.IPv6Loopback())
	if err != nil {
		t.Skipf("SKIPPED: no port 4791 of ::1: %v", err)
	}
	defer p.Close()
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = withoutChecksum(fd) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteTo(make([]byte, 3), &net.UDPAddr{IP: net.IPv6loopback, Port: ib.Port}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the packet", func() bool { return p.Counters().Malformed == 1 })
}

package roceudp

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"viaduct/internal/rocecore"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ib"
)

// sharedPort opens the port of an address that other ports may have.
func sharedPort(t *testing.T, addr netip.Addr) *Port {
	t.Helper()
	if os.Geteuid() == sock.OverflowUID {
		t.Skip("SKIPPED: ports of user 65534 are not shared")
	}
	p, err := Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// A talk is a connection between two ports. Its ends are hosts[i] and pairs[i].
type talk struct {
	hosts [2]*host
	pairs [2]*Pair
}

func newTalk(t *testing.T, transport ib.Transport, a, b *Port) (c talk) {
	t.Helper()
	ports := [2]*Port{a, b}
	for i, p := range ports {
		var err error
		if c.pairs[i], err = p.NewPair(); err != nil {
			t.Fatal(err)
		}
		c.hosts[i] = new(host)
	}
	for i, q := range c.pairs {
		q.Receive(c.hosts[i], ports[1-i].Addr(), rocecore.Config{Transport: transport, MTU: 1024, PeerQPN: c.pairs[1-i].QPN(),
			MaxServed: 1, Access: rocecore.RemoteWrite})
		q.Send(rocecore.SendConfig{Timeout: time.Second, Retries: 7})
	}
	return c
}

func (c talk) done(i int) int {
	c.pairs[i].mu.Lock()
	defer c.pairs[i].mu.Unlock()
	return c.hosts[i].done
}

// writes makes both ends write empty messages, and waits until all are acknowledged.
func (c talk) writes(t *testing.T, what string) {
	t.Helper()
	const n = 20
	for i, q := range c.pairs {
		want := c.done(i) + n
		for range n {
			q.Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(0)})
		}
		testkit.Eventually(t, what, func() bool { return c.done(i) == want })
		if c.hosts[i].failed > 0 {
			t.Fatalf("%s: an error", what)
		}
	}
}

// Ports of one address reach each other and other addresses, whichever port the kernel gives a
// packet to. When a port ends, the others go on, and new ones can come. [ROCE-NET-9]
func TestShared(t *testing.T) {
	addr := loopback()
	a, b, far := sharedPort(t, addr), sharedPort(t, addr), sharedPort(t, loopback())
	if !a.Shared() || !b.Shared() || far.Shared() {
		t.Error("Shared")
	}
	newTalk(t, ib.RC, a, b).writes(t, "a and b")
	af, bf := newTalk(t, ib.RC, a, far), newTalk(t, ib.RC, far, b)
	af.writes(t, "a and another address")
	bf.writes(t, "another address and b")
	// All packets of far have the same addresses and ports, so the kernel gives all to one port.
	if na, nb := a.Counters(), b.Counters(); (na.Passed == 0) == (nb.Passed == 0) || na.NoPair+nb.NoPair > 0 {
		t.Errorf("%+v, %+v", na, nb)
	}
	a.Close()
	testkit.Eventually(t, "the end of a", func() bool { return !b.Shared() })
	bf.writes(t, "b alone")
	c := sharedPort(t, addr)
	newTalk(t, ib.RC, c, b).writes(t, "b and c")
	newTalk(t, ib.RC, c, far).writes(t, "c and another address")
	bf.writes(t, "b beside c")
}

// A queue pair with a long message waits for room in the lane, so that no packet is lost while the
// other port receives.
func TestSharedFull(t *testing.T) {
	addr := loopback()
	a, b := sharedPort(t, addr), sharedPort(t, addr)
	c := newTalk(t, ib.UC, a, b)
	const size = 32 << 20
	b.rx.Lock() // b does not receive
	soon(t, "Post", func() { c.pairs[0].Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(size)}) })
	testkit.Eventually(t, "a full lane", c.pairs[0].Full)
	soon(t, "Poll", func() { a.Poll() })
	b.rx.Unlock()
	testkit.Eventually(t, "the end of the message", func() bool { return c.done(0) == 1 })
	testkit.Eventually(t, "all packets", func() bool { return c.pairs[1].Counters().ReceivedPackets == size/1024 })
}

// If the other port ends while a lane is full, the packets are lost like packets on the network.
func TestSharedFullEnd(t *testing.T) {
	addr := loopback()
	a, b := sharedPort(t, addr), sharedPort(t, addr)
	c := newTalk(t, ib.UC, a, b)
	b.rx.Lock()
	c.pairs[0].Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(32 << 20)})
	testkit.Eventually(t, "a full lane", c.pairs[0].Full)
	go b.Close()
	b.rx.Unlock()
	testkit.Eventually(t, "the end of the message", func() bool { return c.done(0) == 1 })
}

// A box is a host that receives datagrams.
type box struct{ host }

func (*box) NextReceive() (rocecore.Receive, bool) { return rocecore.Receive{Buf: zeros(4096)}, true }

// A datagram to queue pair 1 reaches the port that expects it, exactly once. If no port does, one
// port that has the queue pair gets it. [ROCE-NET-9]
func TestSharedManagement(t *testing.T) {
	addr := loopback()
	var ports [4]*Port
	var boxes [4]*box
	var pairs [4]*Pair
	const without = 2 // this port has no queue pair 1
	for i := range ports {
		ports[i] = sharedPort(t, addr)
		if i == without {
			continue
		}
		q, err := ports[i].NewPairNumbered(ib.ManagementQPN)
		if err != nil {
			t.Fatal(err)
		}
		boxes[i], pairs[i] = new(box), q
		q.SetExpects(func(_ netip.Addr, b []byte) bool { return b[0] == byte(i) })
		q.Datagrams(boxes[i], rocecore.DatagramConfig{MTU: 256})
	}
	received := func(i int) int {
		if i == without {
			return 0
		}
		pairs[i].mu.Lock()
		defer pairs[i].mu.Unlock()
		return boxes[i].received
	}
	for range 4 { // packets from different addresses arrive at different ports
		from := sharedPort(t, loopback())
		q, err := from.NewPair()
		if err != nil {
			t.Fatal(err)
		}
		q.Datagrams(new(host), rocecore.DatagramConfig{MTU: 256})
		for to := range 5 { // nobody expects those to without and to 4
			before, all := [4]int{}, 0
			for i := range before {
				before[i] = received(i)
				all += before[i]
			}
			q.Post(&rocecore.Request{Buf: first(to), To: rocecore.Destination{Addr: addr, QPN: ib.ManagementQPN}})
			testkit.Eventually(t, "the datagram", func() bool {
				n := 0
				for i := range ports {
					n += received(i)
				}
				return n > all
			})
			if to < 4 && to != without && received(to) != before[to]+1 {
				t.Errorf("a datagram for port %d went elsewhere", to)
			}
		}
	}
	total := 0
	for i := range ports {
		total += received(i)
	}
	if total != 20 {
		t.Errorf("%d datagrams arrived, not 20", total)
	}
}

// A first is a Buffer of 4 bytes with a certain first byte.
type first byte

func (f first) Len() int { return 4 }
func (f first) ReadAt(b []byte, at int) error {
	if at == 0 && len(b) > 0 {
		b[0] = byte(f)
	}
	return nil
}
func (f first) WriteAt([]byte, int) error { return nil }

// A port does not accept a lane that claims an impossible slot, and drops malformed packets from a
// lane without passing them on. [ROCE-NET-9]
func TestSharedHostile(t *testing.T) {
	addr := loopback()
	a, b := sharedPort(t, addr), sharedPort(t, addr)
	dial := func(hello ...byte) net.Conn {
		c, err := net.DialUnix("unixpacket", nil, laneAddr(addr, a.slot))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, hello := range [][]byte{{0}, {255}, {a.slot}} {
		if n, err := dial(hello...).Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("greeting %d was answered: %d, %v", hello, n, err)
		}
	}
	other := byte(firstSlot)
	for other == a.slot || other == b.slot {
		other++
	}
	c := dial(other)
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("the greeting was not answered: %d, %v", n, err)
	}
	toB := make([]byte, 40+trailerLen) // a packet for b, which came to a through a lane
	toB[5] = b.slot
	toOne := append([]byte(nil), toB...) // for queue pair 1
	toOne[0], toOne[5], toOne[7] = byte(ib.UD)|byte(ib.SendOnly), 0, 1
	trailer{from: netip.AddrPortFrom(addr, ib.Port), start: a.slot}.put(toOne[40:])
	for _, m := range [][]byte{{1}, make([]byte, trailerLen), make([]byte, maxPacket+2*trailerLen), toB, toOne} {
		if _, err := c.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all packets", func() bool { n := a.Counters(); return n.Malformed+n.NoPair == 5 })
	if n := a.Counters(); n.Passed != 0 {
		t.Errorf("%+v", n)
	}
	newTalk(t, ib.RC, a, b).writes(t, "a and b")
}

// The user that stands for unknown users has no shares. Other processes refuse lanes to such a user,
// so that packets to a shared port would be lost.
func TestOverflowUser(t *testing.T) {
	slot, name := reserveSlot(sock.OverflowUID)
	if slot != 0 || name != nil {
		t.Errorf("slot %d", slot)
	}
	if slot, name = reserveSlot(sock.OverflowUID - 1); slot == 0 {
		t.Fatal("no slot for another user")
	}
	name.Close()
}

// A port that has the address alone is refused while others share it, and the other way round.
func TestSharedAlone(t *testing.T) {
	addr := loopback()
	p := sharedPort(t, addr)
	if c, err := Listen(addr); err == nil {
		c.Close()
		t.Error("Listen beside a port")
	}
	p.Close()
	c, err := Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p, err := Open(addr); err == nil {
		p.Close()
		t.Error("a port beside Listen")
	}
}

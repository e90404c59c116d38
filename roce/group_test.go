package roce

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// A datagram to a multicast group reaches the members on all devices, including its sender, and no
// queue pair that has left the group. [ROCE-UD-6]
func TestMulticast(t *testing.T) {
	da, db := devices(t)
	testMulticast(t, da, db, netip.AddrFrom4([4]byte{239, 255, byte(rand.IntN(256)), byte(rand.IntN(256))}))
}

// TestMulticastIPv6 is TestMulticast over IPv6, with two queue pairs of one device. It needs a real
// interface, because a loopback interface has no IPv6 multicast.
func TestMulticastIPv6(t *testing.T) {
	d := deviceIPv6(t)
	group := [16]byte{0: 0xff, 1: 0x15, 14: byte(rand.IntN(256)), 15: byte(1 + rand.IntN(255))} // transient, site-local
	testMulticast(t, d, d, netip.AddrFrom16(group))
}

// deviceIPv6 returns a device at a global IPv6 address of this host. It skips the test if there is
// none.
func deviceIPv6(t *testing.T) *Device {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		p, err := netip.ParsePrefix(x.String())
		if err != nil || p.Addr().Is4() || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if d, err := Open(p.Addr()); err == nil {
			t.Cleanup(func() { d.Close() })
			return d
		}
	}
	t.Skip("SKIPPED: this host has no IPv6 address but that of the loopback interface, whose port 4791 is free")
	return nil
}

func testMulticast(t *testing.T, da, db *Device, group netip.Addr) {
	const key, members = 0x11111111, 3
	var qs [members]*QueuePair
	for i := range qs {
		d := da
		if i > 0 {
			d = db
		}
		q, err := d.NewQueuePair(Config{Transport: UD, QKey: key})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Join(group); err != nil {
			t.Skipf("SKIPPED: this host can't join a multicast group: %v", err)
		}
		qs[i] = q
	}
	data := random(1000)
	send := func() {
		t.Helper()
		to := Endpoint{Addr: group, QPN: MulticastQPN}
		if err := qs[0].Post(SendWR{SG: []SGE{Buf(data)}, To: to, QKey: key}); err != nil {
			t.Fatal(err)
		}
		good(t, qs[0].SendCQ())
	}
	received := func(q *QueuePair, got []byte) {
		t.Helper()
		if c := good(t, q.RecvCQ()); c.Len != 40+len(data) || c.SourceQPN != qs[0].Local().QPN ||
			!bytes.Equal(got[40:], data) {
			t.Errorf("%+v", c)
		}
		to := netip.AddrFrom16([16]byte(got[24:40]))
		if group.Is4() {
			to = netip.AddrFrom4([4]byte(got[36:40]))
		}
		if to != group {
			t.Errorf("sent to %v, not to %v", to, group)
		}
	}
	bufs := make([][]byte, members)
	for i, q := range qs {
		bufs[i] = make([]byte, 40+len(data))
		if err := q.PostRecv(RecvWR{SG: []SGE{Buf(bufs[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	send()
	for i, q := range qs {
		received(q, bufs[i])
	}
	qs[1].Leave(group)
	for i, q := range qs {
		if err := q.PostRecv(RecvWR{SG: []SGE{Buf(bufs[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	send()
	received(qs[0], bufs[0])
	received(qs[2], bufs[2])
	if c, ok := qs[1].RecvCQ().Poll(); ok {
		t.Errorf("one that has left has received: %+v", c)
	}
	rc, err := da.NewQueuePair(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Join(group); !errors.Is(err, ErrInvalid) {
		t.Errorf("a connected queue pair: %v", err)
	}
	if err := qs[2].Join(da.Addr()); !errors.Is(err, ErrInvalid) {
		t.Errorf("no group: %v", err)
	}
	qs[2].Close()
	if err := qs[2].Join(group); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if s := da.Stats(); s != (DeviceStats{}) {
		t.Errorf("%+v", s)
	}
}

package conform

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/roce"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A testPeer is a peer built on package roce. Each TCP connection gets separate queue pairs.
type testPeer struct {
	dev *roce.Device
	l   net.Listener
	wg  sync.WaitGroup
	mtu int
}

// roceLoopback returns a random, probably unused loopback address.
func roceLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
}

func newTestPeer(t *testing.T, mtu int) *testPeer {
	t.Helper()
	dev, err := roce.Open(roceLoopback())
	if err != nil {
		t.Skipf("SKIPPED: no port of RoCEv2 here: %v", err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(dev.Addr(), 0).String())
	if err != nil {
		dev.Close()
		t.Fatal(err)
	}
	p := &testPeer{dev: dev, l: l, mtu: mtu}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c, false) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		dev.Close()
		p.wg.Wait()
	})
	return p
}

const (
	peerReceives = 8
	peerKey      = 0x11112222 // queue key for datagrams
)

// serve acts as the peer of a case until conform closes the connection. dials is true if the peer
// opened the connection.
func (p *testPeer) serve(c net.Conn, dials bool) {
	defer c.Close()
	pd := p.dev.NewPD()
	// The peer repeats its message for more than a minute.
	qp, err := p.dev.NewQueuePair(roce.Config{PD: pd, MTU: p.mtu, Retries: 1000})
	if err != nil {
		return
	}
	defer qp.Close()
	ud, err := p.dev.NewQueuePair(roce.Config{Transport: roce.UD, PD: pd, MTU: p.mtu, QKey: peerKey})
	if err != nil {
		return
	}
	all, err1 := pd.Register(make([]byte, 4*p.mtu), roce.RemoteRead|roce.RemoteWrite|roce.RemoteAtomic)
	some, err2 := pd.Register(make([]byte, 4*p.mtu), roce.RemoteRead)
	if err1 != nil || err2 != nil {
		return
	}
	defer all.Close()
	defer some.Close()
	post := func() { qp.PostRecv(roce.RecvWR{SG: []roce.SGE{roce.Buf(make([]byte, 4*p.mtu))}}) }
	var datagrams [peerReceives][]byte
	for i := range datagrams {
		post()
		datagrams[i] = make([]byte, 40+p.mtu)
		ud.PostRecv(roce.RecvWR{ID: uint64(i), SG: []roce.SGE{roce.Buf(datagrams[i])}})
	}
	r := bufio.NewReader(c)
	far, err := p.exchange(c, r, qp, dials)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var echo sync.WaitGroup
	echo.Go(func() { sendBack(ctx, ud, far.Addr, datagrams[:]) })
	defer func() { cancel(); ud.Close(); echo.Wait() }()
	fmt.Fprintf(c, "memory %x %x %x rwa\nmemory %x %x %x r\ndatagram %x %x\nreceives %d %d\nready\n",
		all.Addr(), all.Key(), 4*p.mtu, some.Addr(), some.Key(), 4*p.mtu, ud.Local().QPN, peerKey,
		peerReceives, 4*p.mtu)
	if dials { // the message shows that the peer is ready
		qp.Post(roce.SendWR{SG: []roce.SGE{roce.Buf([]byte("ready"))}})
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if line == "receive\n" {
			post()
			io.WriteString(c, "posted\n")
		}
	}
}

// exchange exchanges queue pairs like ibv_rc_pingpong, and connects qp.
func (p *testPeer) exchange(c net.Conn, r io.Reader, qp *roce.QueuePair, dials bool) (far roce.Endpoint, err error) {
	own := qp.Local()
	g := own.GID()
	intro := fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, own.QPN, own.PSN, g)
	if dials {
		c.Write(intro)
	}
	b := make([]byte, roceIntroLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return far, err
	}
	parts := strings.Split(strings.TrimRight(string(b), "\x00"), ":")
	if len(parts) != 4 {
		return far, fmt.Errorf("%q", b)
	}
	fmt.Sscanf(parts[1], "%x", &far.QPN)
	fmt.Sscanf(parts[2], "%x", &far.PSN)
	gid, err := hex.DecodeString(parts[3])
	if err != nil {
		return far, err
	}
	a, _ := netip.AddrFromSlice(gid)
	far.Addr = a.Unmap()
	if err := qp.Connect(far); err != nil {
		return far, err
	}
	if dials {
		_, err = io.WriteString(c, roceDone)
		return far, err
	}
	c.Write(intro)
	_, err = io.ReadFull(r, make([]byte, len(roceDone)))
	return far, err
}

// sendBack returns every datagram to the sender. The receives are posted before conform learns of
// the queue pair, because a datagram without a receive is lost.
func sendBack(ctx context.Context, ud *roce.QueuePair, to netip.Addr, received [][]byte) {
	for {
		c, err := ud.RecvCQ().Wait(ctx)
		if err != nil || c.Status != roce.StatusOK {
			return
		}
		ud.Post(roce.SendWR{SG: []roce.SGE{roce.Buf(received[c.ID][40:c.Len])},
			To: roce.Endpoint{Addr: to, QPN: c.SourceQPN}, QKey: peerKey})
		if _, err := ud.SendCQ().Wait(ctx); err != nil {
			return
		}
	}
}

// dial dials the peer from another address, because both ends need port 4791.
func (p *testPeer) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(roceLoopback(), 0))}
	return d.DialContext(ctx, "tcp", p.l.Addr().String())
}

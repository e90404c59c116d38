package vitcp

import (
	"net"
	"testing"
	"time"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A peer may cancel a request and soon send another. The first request, whose connection is closed,
// is not accepted although it matches. Otherwise the local request would end with a connection the
// peer does not have, and the peer's second request would find no match. [VIT-4-1] [V-33]
func TestVIT_4_CancelledPeer(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{}))
	c := listenProbe(t)
	v := newVI(t, n, reliableAll)
	// The local side has the lower address, so it would accept the peer's request.
	must(t, v.ConnectPeerRequest(n.addr("me"), c.addr("x"), 0))
	p := c.take()
	p.want(vitcpwire.ConnectRequest)

	d := n.Device().(*device)
	at, err := d.place(n.addr("me"))
	must(t, err)
	l, err := d.listen(at)
	must(t, err)
	theirs, err := net.Dial("tcp", c.l.Addr().String())
	must(t, err)
	nc, err := c.l.Accept()
	must(t, err)
	theirs.Close()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if ended, _ := hungUp(nc); ended {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the end never came")
		}
	}
	ce := ceOf(reliableAll, "x", "me")
	ce.Attributes |= vitcpwire.PeerToPeer
	r := &request{
		l: l, tcp: nc, nc: nc, g: greeting{h: vitcpwire.Header{Type: vitcpwire.ConnectRequest}, ce: ce},
		local: addrPort(nc.LocalAddr()), remote: addrPort(nc.RemoteAddr()),
	}
	r.m.tcpAccepted(time.Now())
	r.m.request()
	if !l.offerPeer(r) {
		t.Error("the request was left alone")
	}
	if s := v.State(); s != vi.ConnectPending {
		t.Fatalf("state %v", s)
	}
	answer := ceOf(reliableAll, "x", "me")
	answer.Attributes |= vitcpwire.PeerToPeer
	p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, answer, nil)
	_, err = v.ConnectPeerWait(testContext(t))
	must(t, err)
}

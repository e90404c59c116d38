package attend

import (
	"net"
	"testing"

	"viaduct/internal/budget"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// TestAttendantPolls: an attendant polls shared memory for a moment before it sleeps there, or
// until bytes arrive. The attendant must poll neither a socket nor on a single processor, and must
// seldom poll if polling has no result.
func TestAttendantPolls(t *testing.T) {
	defer AssumeProcessors(2)()
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := sock.OwnListener(nl, sock.Tuning{SameHost: samehost.Auto})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	peer, err := sock.Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if err := sock.ShareMemory(t.Context(), peer, samehost.Require, ""); err != nil {
		t.Fatal(err)
	}
	s := sock.Take(testkit.Await(t, "the connection", accepted))
	defer s.Close(false)

	var a Attention
	a.Init(s, nil)
	d := &attendant{a: &a}
	expect := func(want int, what string) {
		t.Helper()
		if got := d.poll(); got != want {
			t.Errorf("%d instead of %d: %s", got, want, what)
		}
	}
	for range budget.Attendant.Grace {
		expect(nothingCame, "nothing was sent")
	}
	if !d.polls.Worth() {
		t.Error("not polled any more for want of luck")
	}
	expect(nothingCame, "nothing was sent")
	if d.polls.Worth() {
		t.Error("polled again and again in vain")
	}
	if _, err := peer.Write([]byte("something")); err != nil {
		t.Fatal(err)
	}
	expect(someCame, "something is there")
	if n, err := s.Read(make([]byte, 20)); n != 9 || err != nil {
		t.Fatal(n, err)
	}

	peer.Write([]byte("x"))
	d = &attendant{a: &a}
	undo := AssumeProcessors(1)
	expect(nothingCame, "there is one processor, and polling takes it from the peer")
	undo()
	x, y := testkit.TCPPair(t)
	defer y.Close()
	tcp := sock.Take(x)
	defer tcp.Close(false)
	y.Write([]byte("x"))
	var b Attention
	b.Init(tcp, nil)
	d = &attendant{a: &b}
	expect(nothingCame, "looking at a socket takes a system call")
}

package sock

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// patiently has both sides of agreements by memory of a connection before wait for each other for
// as long as it takes, until the test is over.
func patiently(t *testing.T) {
	look, timeout := lookAgain, againTimeout
	lookAgain, againTimeout = 10*time.Second, 10*time.Second
	t.Cleanup(func() {
		shm.Drop()
		lookAgain, againTimeout = look, timeout
	})
}

// usesOf is how many connections had the memory of c before.
func usesOf(c net.Conn) int { return c.(*conn).s.rings.mem.Uses() }

// passEachWay passes n random bytes each way.
func passEachWay(t *testing.T, a, b net.Conn, n int) {
	t.Helper()
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		want, got := make([]byte, n), make([]byte, n)
		rand.Read(want)
		var wg sync.WaitGroup
		wg.Go(func() { way[0].Write(want) })
		if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("other bytes came, %v", err)
		}
		wg.Wait()
	}
}

// keepOne has the memory of a connection kept.
func keepOne(t *testing.T, l net.Listener) {
	t.Helper()
	a, b := sharedPair(t, l)
	passEachWay(t, a, b, 1)
	a.Close()
	b.Close()
	if !shm.Asks() {
		t.Fatal("nothing is kept")
	}
}

// The next connection between two processes has the memory and the bells of one that has ended, and
// what it reads is what its peer has written; where a listener does not have them any more, it is new memory.
func TestMemoryAgain(t *testing.T) {
	patiently(t)
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	// once makes a connection, passes n bytes and ends it.
	once := func(n int) int {
		t.Helper()
		client, server := sharedPair(t, l)
		passEachWay(t, client, server, n)
		// Both have slept at the bells, and left something there.
		server.SetReadDeadline(time.Now().Add(time.Millisecond))
		server.Read(make([]byte, 1))
		client.Write([]byte{1})
		uses := usesOf(client)
		if n := usesOf(server); n != uses {
			t.Fatalf("the two ends have other memory, used %d and %d times", uses, n)
		}
		client.Close()
		server.Close()
		return uses
	}
	for i := range 20 {
		if n := once(1000); n != i {
			t.Errorf("connection %d has memory that was used %d times", i, n)
		}
	}
	if n := once(1 << 20); n != 20 {
		t.Errorf("the memory was used %d times", n)
	}
	if once(10) != 0 {
		t.Error("memory by which much has passed was used again")
	}
	if once(10) != 1 {
		t.Error("the memory was not used again")
	}
	shm.Forget(l.(*ownedListener).meet)
	if once(10) != 0 {
		t.Error("memory that the listener has forgotten was used again")
	}
	// Connections at the same time have memory of their own.
	a, _ := sharedPair(t, l)
	b, _ := sharedPair(t, l)
	if usesOf(a) != 1 || usesOf(b) != 0 {
		t.Errorf("memory used %d and %d times", usesOf(a), usesOf(b))
	}
}

// A listener that has accepted the connection before it is asked by memory of one before, and does
// not look any more, is asked at the rendezvous.
func TestAgainLate(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	keepOne(t, l)
	c, s := dialAccept(t, l)
	if err := ShareMemory(t.Context(), c, samehost.Require, ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the listener has committed", func() bool { return PathOf(s).SharedMemory })
	if n := usesOf(c); n != 0 {
		t.Errorf("the memory was used %d times", n)
	}
	passEachWay(t, c, s, 1000)
}

// A reader that polls hears of a request that came after its connection was accepted.
func TestAgainWhileReading(t *testing.T) {
	patiently(t)
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	keepOne(t, l)
	lookAgain = 0
	c, s := dialAccept(t, l)
	done := make(chan error)
	go func() { done <- ShareMemory(t.Context(), c, samehost.Require, "") }()
	for shared := false; !shared; {
		s.SetReadDeadline(time.Now().Add(time.Millisecond))
		s.Read(make([]byte, 1))
		shared = PathOf(s).SharedMemory
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.SetReadDeadline(time.Time{})
	if usesOf(c) != 1 {
		t.Error("the memory was not used again")
	}
	passEachWay(t, c, s, 1000)
}

// Whatever a dialer does that was granted memory of a connection before, the listener goes the
// same way.
func TestAgainDecides(t *testing.T) {
	patiently(t)
	for _, c := range []struct {
		name   string
		does   func(r *rings)
		shared bool
	}{
		{"commits", func(r *rings) { r.mem.Commit() }, true},
		{"commits late", func(r *rings) { time.Sleep(20 * time.Millisecond); r.mem.Commit() }, true},
		{"leaves", func(r *rings) { r.mem.Leave() }, false},
		{"leaves late", func(r *rings) { time.Sleep(20 * time.Millisecond); r.mem.Leave() }, false},
		{"dies", func(r *rings) { unix.Shutdown(r.bell, unix.SHUT_RDWR) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
			keepOne(t, l)
			client, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			mem := shm.Reuse(meetingName(addrPort(l.Addr())))
			if mem == nil {
				t.Fatal("no memory is kept")
			}
			r := againRings(mem, true)
			m := meeting{from: addrPort(client.LocalAddr()), to: addrPort(client.RemoteAddr())}
			mem.Ask(m.appendNames(nil))
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					if yes, done := mem.Answered(); done {
						if !yes {
							t.Error("refused")
						}
						c.does(r)
						return
					}
					time.Sleep(10 * time.Microsecond)
				}
			})
			server := acceptFrom(t, l, client)
			defer server.Close()
			wg.Wait()
			if c.shared {
				if err := client.(*conn).s.adopt(r); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			passEachWay(t, client, server, 100) // it waits for the verdict
			if d := time.Since(start); d > commitTimeout/2 {
				t.Errorf("it took %v", d)
			}
			if p := PathOf(server); p.SharedMemory != c.shared || !c.shared && p.Why == "" {
				t.Errorf("the listener's path: %+v", p)
			}
			if !c.shared {
				r.drop()
			}
		})
	}
}

// Another connection than the one that is asked for is not granted, nor one whose stream has begun.
func TestAgainRefuses(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	for _, c := range []struct {
		name   string
		begin  func(c, s net.Conn)
		change func(m *meeting)
		found  bool
	}{
		{"another connection", func(net.Conn, net.Conn) {}, func(m *meeting) { m.from, m.to = m.to, m.from }, false},
		{"begun", func(c, s net.Conn) { c.Write([]byte{1}); s.Read(make([]byte, 1)) }, func(*meeting) {}, true},
		{"closed", func(_, s net.Conn) { s.Close() }, func(*meeting) {}, true},
	} {
		keepOne(t, l)
		client, server := dialAccept(t, l)
		c.begin(client, server)
		mem := shm.Reuse(meetingName(addrPort(l.Addr())))
		if mem == nil {
			t.Fatal("no memory is kept")
		}
		m := meeting{from: addrPort(client.LocalAddr()), to: addrPort(client.RemoteAddr())}
		c.change(&m)
		mem.Ask(m.appendNames(nil))
		if l.(*ownedListener).meet.grantAgain(server.(*conn)) {
			t.Errorf("%s: granted", c.name)
		}
		if yes, answered := mem.Answered(); yes || answered != c.found {
			t.Errorf("%s: %t, %t", c.name, yes, answered)
		}
		mem.Close()
		client.Close()
		server.Close()
	}
}

// Where a process has no descriptor left, what is kept gives its own back.
func TestAgainGivesDescriptors(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	for _, side := range []string{"dialer", "listener"} {
		keepOne(t, l)
		free := 0
		if side == "listener" {
			free = 1 // for the dialer
		}
		giveBack := exhaust(t, free)
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
		if err == nil {
			var s net.Conn
			if s, err = l.Accept(); err == nil {
				s.Close()
			}
			c.Close()
		}
		giveBack()
		if err != nil {
			t.Errorf("the %s: %v", side, err)
		}
	}
}

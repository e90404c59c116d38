package sock

import (
	"encoding/binary"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// seatOf returns the seat of a connection in a pair, or nil.
func seatOf(c net.Conn) *seat {
	s := c.(*conn).s
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.rings == nil || s.rings.seat == nil || s.rings.seat.pair == nil {
		return nil
	}
	return s.rings.seat
}

// exchange sends a byte each way, so that both ends know that the bytes go through shared memory.
func exchange(t *testing.T, a, b net.Conn) {
	t.Helper()
	for range 2 {
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	}
}

// noPairs waits until this process has no pair any more.
func noPairs(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the pairs end", func() bool {
		process.joined.Lock()
		listening := slices.Collect(maps.Values(process.joined.pairs))
		process.joined.Unlock()
		for _, p := range listening {
			p.endIfIdle() // which would happen after listenerLingers
		}
		process.partners.Lock()
		process.joined.Lock()
		defer process.partners.Unlock()
		defer process.joined.Unlock()
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(process.partners.m)+len(process.joined.pairs) == 0 && !strings.Contains(string(b), "viaduct-pair")
	})
}

// TestPairOfProcesses: the second connection to a listener makes a pair, a later connection has a
// slot of its own, and a slot and finally the pair are given back.
func TestPairOfProcesses(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	var clients, servers [4]net.Conn
	for i := range 3 {
		clients[i], servers[i] = sharedPair(t, l)
		exchange(t, clients[i], servers[i])
	}
	if seatOf(clients[0]) != nil || seatOf(servers[0]) != nil {
		t.Error("the first connection has a pair")
	}
	slot := seatOf(clients[1]).slot
	check := func(i, wantSlot int) {
		t.Helper()
		c, s := seatOf(clients[i]), seatOf(servers[i])
		if c == nil || s == nil {
			t.Fatalf("no pair: %v %v", c, s)
		}
		if c.pair.id != s.pair.id || c.pair.id != seatOf(servers[2]).pair.id {
			t.Error("different pairs")
		}
		if c.slot != wantSlot || s.slot != wantSlot {
			t.Errorf("slots %d and %d, not %d", c.slot, s.slot, wantSlot)
		}
	}
	check(1, slot)
	check(2, slot+1)
	clients[1].Close()
	servers[1].Close()
	clients[3], servers[3] = sharedPair(t, l)
	exchange(t, clients[3], servers[3])
	check(3, slot)
	for i := range clients {
		clients[i].Close()
		servers[i].Close()
	}
	noPairs(t)
}

// TestPairTells: after AskPair an arrival sets the bit of the connection. The goroutine of the
// pair is woken only if it sleeps. After the end of the pair, the connection's own bell is rung.
func TestPairTells(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	sharedPair(t, l)
	client, server := sharedPair(t, l)
	exchange(t, client, server)
	s := server.(*conn).s
	p, slot := s.Pair()
	if p == nil || !p.Open() {
		t.Fatal("no pair")
	}
	p.Hold()
	next := func() (n int, ok bool) {
		for range 2 { // Next returns false once in each round
			if n, ok = p.Next(); ok {
				return n, ok
			}
		}
		return n, ok
	}
	rungs := func(fd int) int {
		var b [64]byte
		n, err := unix.Read(fd, b[:])
		if err != nil {
			return 0
		}
		return n
	}
	unix.SetNonblock(s.FD(), true)
	rungs(s.FD())
	s.AskPair()
	client.Write([]byte("x"))
	if got, ok := next(); !ok || got != slot {
		t.Fatalf("slot %d, %v", got, ok)
	}
	if rungs(p.bell)+rungs(s.FD()) > 0 {
		t.Error("a bell rings for a goroutine that is awake")
	}
	s.AskPair()
	if !p.mem.Sleep() {
		t.Fatal("a bit is left")
	}
	client.Write([]byte("x"))
	client.Write([]byte("x"))
	if n := rungs(p.bell); n != 1 {
		t.Errorf("the bell rang %d times", n)
	}
	p.mem.Wake()
	next()
	slept := make(chan bool)
	go func() { slept <- p.Sleep() }()
	s.AskPair()
	client.Write([]byte("x"))
	if !<-slept {
		t.Error("the pair has ended")
	}
	next()

	go func() { slept <- p.Sleep() }()
	cp, _ := client.(*conn).s.Pair()
	cp.End()
	if <-slept || !p.Ended() {
		t.Error("the pair has not ended")
	}
	s.AskPair()
	client.Write([]byte("x"))
	if n := rungs(s.FD()); n != 1 {
		t.Errorf("the own bell rang %d times", n)
	}
	if p, _ := s.Pair(); p != nil {
		t.Error("still has a pair")
	}
	p.Release()
}

// TestOlderEnds: a listener that knows no pairs gets the commitment of earlier versions, and a
// dialer that knows no pairs is served.
func TestOlderEnds(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	dial := func() (c, s net.Conn, bell *net.UnixConn, answer []byte) {
		t.Helper()
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s = acceptFrom(t, l, c)
		m := meeting{ring: shm.DefaultRing, from: addrPort(c.LocalAddr()), to: addrPort(c.RemoteAddr())}
		mem, fd, err := shm.Create(shm.DefaultRing)
		if err != nil {
			t.Fatal(err)
		}
		bell, err = net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: meetingName(addrPort(l.Addr()))})
		if err != nil {
			t.Fatal(err)
		}
		room, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); s.Close(); bell.Close(); mem.Close(); closeAll([]int{fd, room[0], room[1]}) })
		if _, _, err := bell.WriteMsgUnix(m.append(nil), unix.UnixRights(fd, room[1]), nil); err != nil {
			t.Fatal(err)
		}
		answer = make([]byte, answerLen)
		bell.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := io.ReadFull(bell, answer); err != nil || answer[0] != granted {
			t.Fatalf("%q, %v", answer, err)
		}
		return c, s, bell, answer
	}
	shared := func(s net.Conn) func() bool { return func() bool { return PathOf(s).SharedMemory } }
	t.Run("dialer", func(t *testing.T) {
		_, s, bell, answer := dial()
		if answer[1] < pairsOffered {
			t.Error("offers no pairs")
		}
		bell.Write([]byte{committed, 0, 0}) // a ring may follow at once
		testkit.Eventually(t, "the connection is shared", shared(s))
		if seatOf(s) != nil {
			t.Error("has a pair")
		}
		if n, err := recv(s.(*conn).s.FD(), make([]byte, 64), unix.MSG_DONTWAIT); n != 2 || err != nil {
			t.Errorf("%d rings are left (%v), not 2", n, err)
		}
	})
	t.Run("unknown pair", func(t *testing.T) {
		for _, slot := range []uint16{3, shm.PairSlots} {
			_, s, bell, _ := dial()
			bell.Write(binary.BigEndian.AppendUint16(append([]byte{committedPair}, make([]byte, len(pairID{}))...), slot))
			testkit.Eventually(t, "the connection is shared", shared(s))
			if seatOf(s) != nil {
				t.Error("has a pair")
			}
		}
	})
	t.Run("not a pair", func(t *testing.T) {
		_, s, bell, _ := dial()
		mem, fd, err := shm.Create(shm.DefaultRing) // of another size
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		defer mem.Close()
		bell.WriteMsgUnix(append([]byte{committedPair}, make([]byte, seatLen)...), unix.UnixRights(fd, fd), nil)
		testkit.Eventually(t, "the connection is shared", shared(s))
		if seatOf(s) != nil {
			t.Error("has a pair")
		}
	})
	t.Run("listener", func(t *testing.T) {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(ends[:])
		var b [answerLen]byte // as a version without pairs fills it
		b[0] = granted
		unix.Write(ends[1], b[:])
		_, pairs, err := awaitAnswer(t.Context(), ends[0], time.Now().Add(testkit.Patience))
		if err != nil || pairs {
			t.Fatalf("%v, %v", pairs, err)
		}
		if seat, err := commit(ends[0], "", pairs); seat != nil || err != nil {
			t.Errorf("%v, %v", seat, err)
		}
		if n, err := unix.Read(ends[1], b[:]); n != 1 || b[0] != committed {
			t.Errorf("%q, %v", b[:n], err)
		}
	})
	noPairs(t)
}

// TestPairOfFalseBell: the goroutine of a pair ends with the pair, whatever the dialer has sent as the
// bell.
func TestPairOfFalseBell(t *testing.T) {
	mem, fd, err := shm.CreatePair()
	if err != nil {
		t.Fatal(err)
	}
	mem.Close()
	defer unix.Close(fd)
	// A shutdown of a netlink socket is refused.
	netlink, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	for i, bell := range []int{netlink, event} {
		p, err := process.joined.join(pairID{byte(i)}, []int{fd, bell}, false)
		if p == nil || err != nil || !p.Open() {
			t.Fatal(err)
		}
		p.Hold()
		slept := make(chan bool)
		go func() {
			for p.Sleep() {
			}
			close(slept)
		}()
		p.leave(0, false)
		p.end(true)
		testkit.Await(t, "the end of the goroutine", slept)
		p.Release()
	}
	noPairs(t)
}

// TestPairAnnounced: a connection that names a pair before its maker's commitment was handled gets
// a seat too.
func TestPairAnnounced(t *testing.T) {
	id := pairID{1}
	if p, err := process.joined.join(id, nil, false); p != nil || err != ErrWouldBlock {
		t.Fatalf("%v, %v", p, err)
	}
	mem, fd, err := shm.CreatePair()
	if err != nil {
		t.Fatal(err)
	}
	mem.Close() // joinPair maps the memory again
	bells, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bells[0])
	files := []int{fd, bells[1]}
	p, err := process.joined.join(id, files, false)
	closeAll(files)
	if p == nil || err != nil {
		t.Fatal(err)
	}
	q, err := process.joined.join(id, nil, true)
	if q != p || err != nil {
		t.Fatalf("%v, %v", q, err)
	}
	if again, _ := process.joined.join(id, []int{-1, -1}, false); again != nil {
		t.Error("the same name twice")
	}
	p.leave(0, false)
	p.end(true)
	if p.Ended() {
		t.Error("ended with a connection left")
	}
	p.leave(1, false)
	p.end(true)
	if !p.Ended() || p.enter() {
		t.Error("not ended")
	}
	if _, ok := p.takeSlot(); ok {
		t.Error("a slot in a pair that has ended")
	}
	noPairs(t)
}

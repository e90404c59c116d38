package sock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// sharedPair returns both ends of a connection to l that goes through shared memory. l accepts while
// the dialer requests the memory.
func sharedPair(t testing.TB, l net.Listener) (client, server net.Conn) {
	t.Helper()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
	}
	client, err := Dial(t.Context(), new(net.Dialer), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	go func() { accepted <- acceptFrom(t, l, client) }()
	if err := ShareMemory(t.Context(), client, samehost.Require, ""); err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestSharedIsConn(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		a, b = sharedPair(t, l)
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

// TestRendezvousOfAddresses: a dialer finds the rendezvous of every kind of listening address.
func TestRendezvousOfAddresses(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0", "[::1]:0", "127.0.0.2:0"} {
		l := ownListener(t, at, Tuning{SameHost: samehost.Auto})
		client, server := sharedPair(t, l)
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if n, err := ReadSoon(server, b); err != nil || string(b[:n]) != "hello" {
			t.Errorf("%s: %q, %v", at, b[:n], err)
		}
		for _, c := range []net.Conn{client, server} {
			if p := PathOf(c); !p.SharedMemory {
				t.Errorf("%s: %s", at, p)
			}
		}
	}
}

// TestRendezvousOfInherited: a dialer finds the rendezvous of a listener whose socket another
// process has opened, as systemd does. A dialer that uses a host name must find the rendezvous too.
func TestRendezvousOfInherited(t *testing.T) {
	opened, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := opened.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(opened.Addr().String())
	opened.Close()
	nl, err := net.FileListener(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	l, err := OwnListener(nl, Tuning{SameHost: samehost.Auto})
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
	c, err := Dial(t.Context(), new(net.Dialer), "tcp", net.JoinHostPort("localhost", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ShareMemory(t.Context(), c, samehost.Require, ""); err != nil {
		t.Error(err)
	}
	s := testkit.Await(t, "the connection", accepted)
	defer s.Close()
	c.Write([]byte("x")) // the dialer's decision may arrive after Accept has returned
	if n, err := s.Read(make([]byte, 1)); n != 1 || !PathOf(s).SharedMemory {
		t.Errorf("%d, %v; %v", n, err, PathOf(s))
	}
}

// TestRendezvousFromOtherAddress: a dialer with another address of this host finds the rendezvous,
// and both ends agree on which connections are within the host.
func TestRendezvousFromOtherAddress(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	here := []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			here = append(here, p.Addr())
		}
	}
	for _, from := range here {
		d := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := Dial(t.Context(), d, "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := acceptFrom(t, l, c)
		if err := ShareMemory(t.Context(), c, samehost.Require, ""); err != nil {
			t.Error(err)
		}
		c.Close()
		s.Close()
	}
	at := func(s string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(s), 1) }
	for _, p := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"::1", "2001:db8::1", true},
		{"2001:db8::1", "2001:db8::2", false},
	} {
		a, b := at(p.a), at(p.b)
		if x, y := isHere(a, b), isHere(b, a); x != p.want || y != p.want {
			t.Errorf("%s to %s: %v, seen from the other end %v; want %v", p.a, p.b, x, y, p.want)
		}
	}
}

// TestAdoptWakesReader: a server that sleeps at the TCP connection while the memory is adopted
// reads from the ring.
func TestAdoptWakesReader(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	read := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			read <- err
			return
		}
		defer c.Close()
		b := make([]byte, 5)
		_, err = io.ReadFull(c, b)
		if err == nil && string(b) != "after" {
			err = errors.New(string(b))
		}
		read <- err
	}()
	c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	time.Sleep(5 * time.Millisecond) // the server is asleep by then
	if err := ShareMemory(t.Context(), c, samehost.Require, ""); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Millisecond)
	c.Write([]byte("after"))
	if err := testkit.Await(t, "the server reads", read); err != nil {
		t.Error(err)
	}
}

// TestSharedEnds: the peer's Read returns the right error for each way to end a connection.
func TestSharedEnds(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	for name, c := range map[string]struct {
		end  func(*Socket)
		want error
	}{
		"close":        {func(s *Socket) { s.Close(false) }, io.EOF},
		"half close":   {func(s *Socket) { s.CloseWrite() }, io.EOF},
		"reset":        {func(s *Socket) { s.Close(true) }, syscall.ECONNRESET},
		"process dies": {func(s *Socket) { unix.Shutdown(s.rings.bell, unix.SHUT_RDWR) }, syscall.ECONNRESET},
		// An end that takes the connection for broken, although the peer lives, resets it.
		"broken, half close": {func(s *Socket) { s.rings.gone.Store(true); s.CloseWrite() }, syscall.ECONNRESET},
		"broken, close":      {func(s *Socket) { s.rings.gone.Store(true); s.Close(false) }, syscall.ECONNRESET},
	} {
		for _, asleep := range []bool{false, true} {
			client, server := sharedPair(t, l)
			s := Take(client)
			s.Write([]byte("last"))
			end := func() { c.end(s) }
			if asleep {
				time.AfterFunc(5*time.Millisecond, end)
			} else {
				end()
			}
			b, err := io.ReadAll(server)
			if err == nil {
				err = io.EOF
			}
			if string(b) != "last" && c.want == io.EOF || !errors.Is(err, c.want) {
				t.Errorf("%s, asleep %v: %q, %v", name, asleep, b, err)
			}
			s.Close(false)
		}
	}
}

// TestPollerHearsOfDeath: a consumer that polls without sleeping notices the death of the peer.
func TestPollerHearsOfDeath(t *testing.T) {
	client, server := sharedPair(t, ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto}))
	s := Take(client)
	unix.Shutdown(Take(server).rings.bell, unix.SHUT_RDWR)
	for i := 0; ; i++ {
		_, err := s.Read(make([]byte, 1))
		if errors.Is(err, syscall.ECONNRESET) {
			break
		}
		if i > 2*emptyReads {
			t.Fatalf("%d reads: %v", i, err)
		}
	}
	s.Close(false)
}

// TestRungThenDead: a sleeper notices both a byte in the bell and the peer's death after it,
// although one epoll report may stand for both.
func TestRungThenDead(t *testing.T) {
	client, server := sharedPair(t, ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto}))
	c, s := Take(client).rings, Take(server).rings
	for _, bell := range []int{c.bell, c.room} {
		c.ring(bell)
		unix.Shutdown(bell, unix.SHUT_RDWR)
	}
	s.ask()
	if _, err := s.read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a read after the death of the peer's process: %v", err)
	}
	s.gone.Store(false)
	if s.askRoom() {
		t.Error("a writer waits for room after the death of the peer's process")
	}
}

// TestFallBack: each obstacle to shared memory is reported as the reason, and the stream works on
// TCP.
func TestFallBack(t *testing.T) {
	dial := func(t *testing.T, l net.Listener) (net.Conn, net.Conn) {
		t.Helper()
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := acceptFrom(t, l, c)
		t.Cleanup(func() { c.Close(); s.Close() })
		return c, s
	}
	// asks checks the listener's reason, with time for the answer of a busy machine.
	asks := func(t *testing.T, c net.Conn, want string) {
		t.Helper()
		m := meeting{ring: shm.DefaultRing, from: addrPort(c.LocalAddr()), to: addrPort(c.RemoteAddr())}
		names, err := meetingNames(m.from, m.to, "")
		if err != nil {
			t.Fatal(err)
		}
		err = c.(*conn).ask(t.Context(), m, names, time.Now().Add(testkit.Patience), false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	const late = "in time" // of the reason if the listener's process is too busy to answer
	check := func(t *testing.T, c, s net.Conn, policy samehost.Policy, wants ...string) {
		t.Helper()
		start := time.Now()
		if err := ShareMemory(t.Context(), c, policy, ""); err != nil {
			t.Fatal(err)
		}
		p := PathOf(c)
		if p.SharedMemory || !slices.ContainsFunc(wants, func(w string) bool { return strings.Contains(p.Why, w) }) {
			t.Errorf("%v, not %q", p, wants)
		}
		if took := time.Since(start); took >= requireTimeout {
			t.Errorf("it took %v", took)
		}
		c.Write([]byte("x"))
		if _, err := s.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		soon, cancel := context.WithTimeout(t.Context(), 2*acceptTimeout)
		defer cancel()
		err := ShareMemory(soon, c, samehost.Require, "")
		if err == nil {
			t.Error("required, and given after the stream has begun")
		}
	}
	t.Run("policy of the dialer", func(t *testing.T) {
		c, s := dial(t, ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto}))
		check(t, c, s, samehost.Off, WhyOff)
	})
	t.Run("policy of the listener", func(t *testing.T) {
		c, s := dial(t, ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Off}))
		check(t, c, s, samehost.Auto, whyNoMeeting)
		if p := PathOf(s); p.Why != WhyOff {
			t.Error(p)
		}
	})
	t.Run("no memory", func(t *testing.T) {
		c, s := dial(t, ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto}))
		shm.SetLimit(-1)
		defer shm.SetLimit(0)
		check(t, c, s, samehost.Auto, "exhausted")
	})
	t.Run("not the listener's memory", func(t *testing.T) {
		c, s := dial(t, ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto}))
		testkit.Eventually(t, "the memory of connections before", func() bool { return shm.Used() == 0 })
		shm.SetLimit(2*shm.FirstRing + 8192)
		defer shm.SetLimit(0)
		asks(t, c, "exhausted")
		check(t, c, s, samehost.Auto, "exhausted", late)
	})
	t.Run("another process has the name and not the connection", func(t *testing.T) {
		l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Off})
		v := openRendezvous(addrPort(l.Addr()), "")
		defer v.close()
		stop := make(chan struct{})
		defer close(stop)
		go func() { // plays the other process, which accepts there
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					v.drain()
				}
			}
		}()
		c, s := dial(t, l)
		asks(t, c, whyNotAccepted)
		check(t, c, s, samehost.Auto, whyNotAccepted, late)
	})
	t.Run("the name does not answer", func(t *testing.T) {
		l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Off})
		u, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: meetingName(addrPort(l.Addr()))})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		c, s := dial(t, l)
		check(t, c, s, samehost.Auto, late)
		c, s = dial(t, l)
		check(t, c, s, samehost.Auto, "lately") // the second dialer does not wait
	})
	t.Run("wrapped", func(t *testing.T) {
		c, s := wrappedPair(t)
		check(t, c, s, samehost.Auto, whyNotOwned)
	})
}

// TestRequiredWaits: a dialer that requires shared memory waits for a busy listener, even if
// another dialer has found the listener too busy.
func TestRequiredWaits(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	process.shunned.add(meetingName(addrPort(l.Addr())))
	c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted := make(chan net.Conn, 1)
	time.AfterFunc(answerTimeout+100*time.Millisecond, func() { accepted <- acceptFrom(t, l, c) })
	if err := ShareMemory(t.Context(), c, samehost.Require, ""); err != nil {
		t.Error(err)
	}
	(<-accepted).Close()
	t.Run("until its context ends", func(t *testing.T) {
		l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Off})
		u, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: meetingName(addrPort(l.Addr()))})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		start := time.Now()
		if err := ShareMemory(ctx, c, samehost.Require, ""); err == nil || time.Since(start) >= requireTimeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestStoppedWaiting: a dialer that requires shared memory repeats a request only if the listener has
// not waited long enough, also if the listener has closed the rendezvous before the request.
func TestStoppedWaiting(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	unix.Close(ends[1])
	late := os.NewSyscallError("sendmsg", unix.Sendmsg(ends[0], []byte("x"), nil, nil, unix.MSG_NOSIGNAL))
	for err, want := range map[error]bool{
		errors.New(whyNotAccepted): true,
		late:                       true,
		errors.New(whyNoMeeting):   false,
		os.ErrDeadlineExceeded:     false,
	} {
		if got := stoppedWaiting(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

// TestRendezvousRefuses: a dialer that sends false claims gets no shared memory.
func TestRendezvousRefuses(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := acceptFrom(t, l, c)
	defer s.Close()
	good := meeting{ring: shm.DefaultRing, from: addrPort(c.LocalAddr()), to: addrPort(c.RemoteAddr())}
	mem, fd, err := shm.Create(shm.DefaultRing)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	defer unix.Close(fd)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	other := good
	other.from = netip.AddrPortFrom(other.from.Addr(), other.from.Port()^1)
	huge := good
	huge.ring = 1 << 30
	elsewhere := good
	elsewhere.to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), good.to.Port())
	for name, c := range map[string]struct {
		b    []byte
		fds  []int
		want string
	}{
		"nonsense":           {bytes.Repeat([]byte("x"), requestLen), []int{fd, fd}, "version"},
		"short":              {[]byte("x"), []int{fd, fd}, "version"},
		"no memory":          {good.append(nil), nil, "no memory came"},
		"too few":            {good.append(nil), []int{fd}, "no memory came"},
		"too many":           {good.append(nil), []int{fd, fd, fd, fd}, "no memory came"},
		"a file":             {good.append(nil), []int{int(file.Fd()), fd}, "seal"},
		"another connection": {other.append(nil), []int{fd, fd}, "has not accepted"},
		"another address":    {elsewhere.append(nil), []int{fd, fd}, "has not accepted"},
		"huge":               {huge.append(nil), []int{fd, fd}, "power of two"},
	} {
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: meetingName(addrPort(l.Addr()))})
		if err != nil {
			t.Fatal(err)
		}
		var oob []byte
		if len(c.fds) > 0 {
			oob = unix.UnixRights(c.fds...)
		}
		if _, _, err := u.WriteMsgUnix(c.b, oob, nil); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, answerLen)
		u.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := io.ReadFull(u, b); err != nil || b[0] == granted || !strings.Contains(string(b[2:]), c.want) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		u.Close()
	}
	if PathOf(s).SharedMemory {
		t.Error("shared after all")
	}
}

func TestOwnerOf(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::]:0", "[::1]:0"} {
		l := ownListener(t, at, Tuning{SameHost: samehost.Off})
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addrPort(l.Addr()).Port())
		if strings.HasPrefix(at, "[::1]") {
			to = addrPort(l.Addr())
		}
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		near, from := c.(*conn).s.fd, addrPort(c.LocalAddr())
		if _, err := ownerOf(near, to, from); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: not accepted, but owned: %v", at, err)
		}
		s := acceptFrom(t, l, c)
		defer s.Close()
		byProc := func(_ int, a, b netip.AddrPort) (uint32, error) { return ownerByProc(a, b) }
		for _, f := range []func(near int, a, b netip.AddrPort) (uint32, error){ownerOf, ownerByDiag, byProc} {
			for _, ends := range [][2]netip.AddrPort{{to, from}, {from, to}} {
				if uid, err := f(near, ends[0], ends[1]); err != nil || int(uid) != os.Geteuid() {
					t.Errorf("%s, %v: %d, %v", at, ends, uid, err)
				}
			}
			if _, err := f(near, netip.AddrPortFrom(to.Addr(), from.Port()), from); err == nil {
				t.Errorf("%s: a socket that is not there has an owner", at)
			}
		}
	}
}

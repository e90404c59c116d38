package sock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// otherUser is a number that no process has as its user, and that is not OverflowUID.
const otherUser = 62345

// onThread calls set and then f in a new thread, which ends after f, so that set may change the
// state of that thread. If set fails, f is not called. The result of set is sent to the channel.
func onThread(set func() error, f func()) (done chan error) {
	done = make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread would not end
			err := <-onThread(set, f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err := set()
		if err == nil {
			f()
		}
		done <- err
	}()
	return done
}

// asOther changes the user of the calling thread, and of no other thread.
func asOther() error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, otherUser, otherUser, otherUser); e != 0 {
		return e
	}
	return nil
}

// newNamespace moves the calling thread to a new network namespace.
func newNamespace() error { return unix.Unshare(unix.CLONE_NEWNET) }

// needNamespaces skips the test if this process can make no network namespaces. Even root may lack
// the right, for example in a container.
func needNamespaces(t *testing.T) {
	t.Helper()
	if err := <-onThread(newNamespace, func() {}); err != nil {
		t.Skip("SKIPPED: this process can make no network namespaces:", err)
	}
}

// TestOtherUsers: shared memory is refused if the rendezvous or the TCP connection belongs to
// another user.
func TestOtherUsers(t *testing.T) {
	if err := <-onThread(asOther, func() {}); err != nil {
		t.Skip("SKIPPED: this process can't act as another user:", err)
	}
	dial := func(to net.Addr) net.Conn {
		t.Helper()
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	refused := func(c net.Conn, want string) {
		t.Helper()
		if err := ShareMemory(t.Context(), c, samehost.Require, ""); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	t.Run("squatted name", func(t *testing.T) {
		l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Off})
		fd := -1
		must(t, onThread(asOther, func() {
			fd, _ = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: meetingName(addrPort(l.Addr()))}); err != nil {
				t.Error(err)
			}
			if err := unix.Listen(fd, 10); err != nil {
				t.Error(err)
			}
		}))
		defer unix.Close(fd)
		refused(dial(l.Addr()), whyOtherUser)
	})
	t.Run("connection of another user", func(t *testing.T) {
		nl, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer nl.Close()
		v := openRendezvous(addrPort(nl.Addr()), "")
		defer v.close()
		c := dial(nl.Addr())
		var accepted net.Conn
		must(t, onThread(asOther, func() { // the socket belongs to the user of the accepting thread
			if accepted, err = nl.Accept(); err != nil {
				t.Error(err)
			}
		}))
		defer accepted.Close()
		o := Own(accepted).(*conn)
		defer o.Close()
		v.add(o)
		v.hear()
		// The listening side finds that the dialer's socket belongs to this user, and grants.
		refused(c, fmt.Sprintf("the TCP connection is of user %d", otherUser))
		if p := PathOf(o); p.SharedMemory {
			t.Error(p)
		}
	})
}

// serverAddress is the address of the first of two network namespaces.
const serverAddress = "192.0.2.1"

// inNamespaces calls server, and then client, in two network namespaces that are linked like the
// namespaces of containers. server sends its address to the channel, and client receives it as
// argument.
func inNamespaces(t *testing.T, server func(at chan<- string), client func(at string)) {
	t.Helper()
	needNamespaces(t)
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("SKIPPED: there is no command ip: ", err)
	}
	run := func(args string) {
		if out, err := exec.Command(ip, strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v: %s", args, err, out)
		}
	}
	other, linked, at := make(chan int, 1), make(chan bool, 1), make(chan string, 1)
	dials := onThread(newNamespace, func() {
		other <- unix.Gettid()
		<-linked
		run("addr add 192.0.2.2/24 dev vb")
		run("link set dev vb up")
		client(<-at)
	})
	listens := onThread(newNamespace, func() {
		run(fmt.Sprintf("link add name va type veth peer name vb netns %d", <-other))
		run("addr add " + serverAddress + "/24 dev va")
		run("link set dev va up")
		linked <- true
		server(at)
	})
	must(t, dials)
	must(t, listens)
}

// shortDir returns a new directory for sockets. The path of a socket has at most 107 bytes, which
// TempDir would exceed, because its path contains the name of the test.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestOtherNamespace: processes in two network namespaces of one host, as in containers, use TCP
// and report the reason, unless they share a directory to meet in.
func TestOtherNamespace(t *testing.T) {
	for _, c := range []struct {
		name    string
		listens string // the address of the listener
		// Directories: "" for none, "own", "open" (other users may change it), "gone".
		server, client string
		want           samehost.Path // the client's path
	}{
		{"no directory", serverAddress, "", "", samehost.Path{Why: whyOtherHost}},
		{"the client's alone", serverAddress, "", "own", samehost.Path{Why: whyNoMeeting}},
		{"the server's alone", serverAddress, "own", "", samehost.Path{Why: whyOtherHost}},
		{"both", serverAddress, "own", "own", samehost.Path{SharedMemory: true}},
		{"both, any address", "0.0.0.0", "own", "own", samehost.Path{SharedMemory: true}},
		{"both, any address of either family", "[::]", "own", "own", samehost.Path{SharedMemory: true}},
		{"one that others may change", serverAddress, "open", "open", samehost.Path{Why: "other users may change"}},
		{"one that is not there", serverAddress, "gone", "gone", samehost.Path{Why: "no such file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dirs := map[string]string{"": "", "own": shortDir(t), "open": shortDir(t), "gone": "/proc/none"}
			for dir, mode := range map[string]os.FileMode{"own": 0o700, "open": 0o777} {
				if err := os.Chmod(dirs[dir], mode); err != nil {
					t.Fatal(err)
				}
			}
			const hello = "there and back"
			inNamespaces(t, func(at chan<- string) {
				l := ownListener(t, c.listens+":0", Tuning{SameHost: samehost.Auto, SameHostDir: dirs[c.server]})
				at <- netip.AddrPortFrom(netip.MustParseAddr(serverAddress), addrPort(l.Addr()).Port()).String()
				defer time.AfterFunc(testkit.Patience, func() { l.Close() }).Stop()
				s, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				s.SetDeadline(time.Now().Add(testkit.Patience))
				b := make([]byte, len(hello))
				if _, err := io.ReadFull(s, b); err != nil {
					t.Error(err)
				}
				s.Write(b)
				if p := PathOf(s); p.SharedMemory != c.want.SharedMemory {
					t.Error(p)
				}
				s.Read(b)
			}, func(at string) {
				nc, err := Dial(t.Context(), &net.Dialer{Timeout: testkit.Patience}, "tcp", at)
				if err != nil {
					t.Error(err)
					return
				}
				defer nc.Close()
				policy := samehost.Auto
				if c.want.SharedMemory {
					policy = samehost.Require // which waits for the answer of a busy machine
				}
				if err := ShareMemory(t.Context(), nc, policy, dirs[c.client]); err != nil {
					t.Error(err)
				}
				if p := PathOf(nc); p.SharedMemory != c.want.SharedMemory || !strings.Contains(p.Why, c.want.Why) {
					t.Errorf("%v, not %v", p, c.want)
				}
				nc.SetDeadline(time.Now().Add(testkit.Patience))
				nc.Write([]byte(hello))
				b := make([]byte, len(hello))
				if _, err := io.ReadFull(nc, b); err != nil || string(b) != hello {
					t.Errorf("%q, %v", b, err)
				}
			})
		})
	}
}

// TestOwnerElsewhere checks that the owner of a socket in another network namespace is not looked
// up in the namespace of the thread.
func TestOwnerElsewhere(t *testing.T) {
	needNamespaces(t)
	x, y := testkit.TCPPair(t)
	a, b := Own(x).(*conn), Own(y).(*conn)
	defer a.Close()
	defer b.Close()
	local, remote := addrPort(a.remote), addrPort(a.local) // addresses as the other end sees them
	process.diag.Lock()
	process.diag.closeLocked()
	process.diag.Unlock()
	must(t, onThread(newNamespace, func() {
		if uid, err := ownerOf(a.s.fd, local, remote); err == nil {
			t.Errorf("user %d owns it", uid)
		}
	}))
	for range 2 { // first with a new netlink socket, then with the cached one
		if uid, err := ownerOf(a.s.fd, local, remote); err != nil || int(uid) != os.Geteuid() {
			t.Errorf("user %d, %v", uid, err)
		}
	}
	must(t, onThread(newNamespace, func() {
		if _, err := ownerOf(a.s.fd, local, remote); err != nil {
			t.Errorf("by the socket that is kept: %v", err)
		}
	}))
}

// TestMeetingLeftBehind: the name of a dead process's socket in the directory is taken over, and
// the name of a listening socket is not.
func TestMeetingLeftBehind(t *testing.T) {
	name := meetingPath(t.TempDir(), netip.MustParseAddrPort("192.0.2.1:1"))
	fd, err := listenMeeting(name)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := listenMeeting(name); err == nil {
		unix.Close(again)
		t.Error("taken from a process that answers")
	}
	unix.Close(fd)
	if fd, err = listenMeeting(name); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

// TestProof: only the other end of a connection passes as proof, and a connection is reset if it
// may contain bytes that do not belong to the stream.
func TestProof(t *testing.T) {
	pair := func() (a, b *conn) {
		x, y := testkit.TCPPair(t)
		return Own(x).(*conn), Own(y).(*conn)
	}
	a, b := pair()
	c, d := pair()
	defer func() {
		for _, o := range []*conn{a, b, c, d} {
			o.Close()
		}
	}()
	local, remote := addrPort(a.local), addrPort(a.remote)
	if err := prove(a.s.fd, b.s.fd, local, remote); err != nil {
		t.Error(err)
	}
	if err := prove(b.s.fd, a.s.fd, remote, local); err != nil {
		t.Error(err)
	}
	a.Write([]byte("clean"))
	got := make([]byte, 10)
	if n, err := b.Read(got); string(got[:n]) != "clean" {
		t.Errorf("%q, %v", got[:n], err)
	}
	for name, fd := range map[string]int{"none": -1, "itself": a.s.fd, "another connection's": d.s.fd, "a file": 1} {
		err := prove(a.s.fd, fd, local, remote)
		if _, broken := errors.AsType[proofError](err); err == nil || broken {
			t.Errorf("%s: %v", name, err)
		}
	}
	// d is another connection with the same addresses, as another namespace may have.
	err := prove(a.s.fd, d.s.fd, addrPort(d.remote), addrPort(d.local))
	if _, broken := errors.AsType[proofError](err); !broken {
		t.Errorf("another connection with these addresses: %v", err)
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("the connection is in use still")
	}
}

// must waits for the result of onThread and fails the test if it is an error.
func must(t *testing.T, done chan error) {
	t.Helper()
	if err := testkit.Await(t, "the thread", done); err != nil {
		t.Fatal(err)
	}
}

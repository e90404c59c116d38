package link

import (
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestMain runs the tests in a user namespace unless the user is root, so that the tests may create
// network namespaces.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 || os.Getenv("VIADUCT_LINK_TEST") != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "VIADUCT_LINK_TEST=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil { // without user namespaces TestNetwork skips and says why
		os.Exit(m.Run())
	}
	if cmd.Wait() != nil {
		os.Exit(1)
	}
}

var addrs = []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")}

// network makes a network of two ports, or skips the test if namespaces are not allowed.
func network(t *testing.T, mtu int) (n *Network, a, b *Port) {
	t.Helper()
	n = New()
	a, err := n.Add(addrs[0], mtu, 1)
	if err != nil {
		t.Skipf("no network namespace here: %v", err)
	}
	if b, err = n.Add(addrs[1], mtu, 1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, a, b
}

// connect makes a TCP connection from b to a.
func connect(t *testing.T, a, b *Port) (from, to net.Conn) {
	t.Helper()
	var l net.Listener
	if err := a.Do(func() (err error) { l, err = net.Listen("tcp4", "10.77.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := b.Do(func() (err error) {
		from, err = net.DialTimeout("tcp4", l.Addr().String(), testkit.Patience)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{from, to} {
		c.SetDeadline(time.Now().Add(time.Minute))
		t.Cleanup(func() { c.Close() })
	}
	return from, to
}

// move sends n random bytes, and fails the test unless the same bytes arrive.
func move(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	go from.Write(b)
	got := make([]byte, n)
	if _, err := io.ReadFull(to, got); err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(got) != sha256.Sum256(b) {
		t.Fatal("other bytes arrived")
	}
}

// TestNetwork: TCP delivers every byte in order over each fault, and the counters show the fault.
func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		name string
		mtu  int
		f    Fault
		hit  func(Counters) bool
	}{
		{"perfect", 1500, Fault{}, func(c Counters) bool { return c.Packets > 0 && c.Lost == 0 }},
		{"small packets", 576, Fault{}, func(c Counters) bool { return c.Packets > 0 && c.Bytes/c.Packets <= 576 }},
		{"large packets", 9000, Fault{}, func(c Counters) bool { return c.Bytes/c.Packets > 1500 }},
		{"all at once", 1500, Fault{Delay: 5 * time.Millisecond, Jitter: 2 * time.Millisecond, Loss: 0.01, Duplicate: 0.01, Corrupt: 0.01, Reorder: 0.05},
			func(c Counters) bool { return c.Lost > 0 && c.Doubled > 0 && c.Corrupted > 0 && c.Overtaken > 0 }},
		{"slow", 1500, Fault{Rate: 20_000_000}, func(c Counters) bool { return c.Packets > 0 }}, // the test also checks the duration
	} {
		t.Run(c.name, func(t *testing.T) {
			_, a, b := network(t, c.mtu)
			for _, p := range []*Port{a, b} {
				p.SetFault(c.f)
			}
			from, to := connect(t, a, b)
			begin := time.Now()
			move(t, from, to, 1<<20)
			if took := time.Since(begin); c.f.Rate > 0 && took < 400*time.Millisecond {
				t.Errorf("a MiB at 20 Mbit/s took %v", took)
			}
			if n := b.Counters(); !c.hit(n) {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestStates: a connection survives an interruption, a device going down, and an address removed
// and restored. The connection does not survive being forgotten by a tracker.
func TestStates(t *testing.T) {
	n, a, b := network(t, 1500)
	n.Track()
	from, to := connect(t, a, b)
	move(t, from, to, 1000)
	for _, c := range []struct {
		name     string
		off, on  func() error
		duration time.Duration
	}{
		{"hole", func() error { b.SetFault(Fault{Blackhole: true}); return nil }, func() error { b.SetFault(Fault{}); return nil }, 300 * time.Millisecond},
		{"down", func() error { return b.SetUp(false) }, func() error { return b.SetUp(true) }, 300 * time.Millisecond},
		{"address", func() error { return b.SetAddr(netip.MustParseAddr("10.77.0.3")) }, func() error { return b.SetAddr(addrs[1]) }, 300 * time.Millisecond},
	} {
		if err := c.off(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		begin := time.Now()
		time.AfterFunc(c.duration, func() {
			if err := c.on(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		})
		move(t, from, to, 100_000)
		if took := time.Since(begin); took < c.duration {
			t.Errorf("%s: not noticed, it took %v", c.name, took)
		}
	}
	n.Forget()
	from.Write([]byte("x"))
	if k, err := from.Read(make([]byte, 1)); k > 0 || err == nil || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a reset: %d, %v", k, err)
	}
	if b.Counters().Resets == 0 {
		t.Error("no reset was sent")
	}
}

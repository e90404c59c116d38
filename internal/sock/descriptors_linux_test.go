package sock

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// TestNoDescriptors runs out of descriptors at every point of a set-up. Both ends must agree on the
// path of the bytes, the stream must be intact, and nothing of a failed attempt may remain.
func TestNoDescriptors(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	shared := 0
	once := func(free int) {
		c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s := acceptFrom(t, l, c)
		defer s.Close()
		giveBack := exhaust(t, free)
		err = ShareMemory(t.Context(), c, samehost.Auto, "")
		giveBack()
		if err != nil {
			t.Fatalf("%d descriptors: %v", free, err)
		}
		for _, ends := range [][2]net.Conn{{c, s}, {s, c}} {
			want := fmt.Sprint("with ", free)
			if _, err := ends[0].Write([]byte(want)); err != nil {
				t.Fatalf("%d descriptors: %v", free, err)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(ends[1], got); err != nil || string(got) != want {
				t.Fatalf("%d descriptors: %q, %v", free, got, err)
			}
		}
		p, q := PathOf(c), PathOf(s)
		if p.SharedMemory != q.SharedMemory || !p.SharedMemory && (p.Why == "" || q.Why == "") {
			t.Errorf("%d descriptors: %v and %v", free, p, q)
		}
		t.Logf("%d descriptors: %v; %v", free, p, q)
		if p.SharedMemory {
			shared++
		}
		process.shunned.Lock()
		process.shunned.until = nil // set by a dialer whose listener had no descriptor to answer with
		process.shunned.Unlock()
	}
	once(100) // afterwards the process has all descriptors that stay open
	before := testkit.OpenFiles()
	for free := range 20 {
		once(free)
	}
	if shared < 2 || shared == 21 {
		t.Errorf("%d of 21 connections go through shared memory", shared)
	}
	testkit.Eventually(t, "the descriptors are given back", func() bool { return testkit.OpenFiles() <= before })
}

// TestCommitmentWithoutDescriptors: a listener without a descriptor to wait with notices a dialer's
// commitment. Otherwise the dialer alone would use shared memory.
func TestCommitmentWithoutDescriptors(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	a := &asking{c: &conn{s: &Socket{carrier: carrier{fd: fds[0]}}}}
	defer a.c.Close()
	time.AfterFunc(20*time.Millisecond, func() { unix.Write(fds[1], []byte{committed}) })
	defer exhaust(t, 0)()
	if ok, err := a.commitment(true); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
}

// exhaust uses up the descriptors of the process, except for the given number, until its result is
// called.
func exhaust(t *testing.T, free int) (giveBack func()) {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = uint64(testkit.OpenFiles() + free + 100)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	fds := []int{null}
	for {
		fd, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	for range free {
		unix.Close(fds[len(fds)-1])
		fds = fds[:len(fds)-1]
	}
	return func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
	}
}

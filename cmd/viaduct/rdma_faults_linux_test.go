//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMAObjects makes the test binary a program that creates and destroys objects of its RDMA
// device. Each line read from stdin starts the program's next part.
const asRDMAObjects = "VIADUCT_TEST_RDMA_OBJECTS"

func rdmaObjects() error {
	in := bufio.NewReader(os.Stdin)
	next := func(said ...any) error {
		fmt.Println(said...)
		_, err := in.ReadString('\n')
		return err
	}
	h := &rdmaAbuser{}
	var err error
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	clear(h.scratch)
	if h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	answer, half := h.at(0), h.at(len(h.scratch)/2)
	if err := h.command(abi.GetContext, 16, answer); err != nil {
		return err
	}
	if err := h.command(abi.AllocPD, 8, answer); err != nil {
		return err
	}
	pd := h.word(0)
	if err := next("ready"); err != nil {
		return err
	}
	for i := range 200 {
		if err := h.command(abi.CreateCompChannel, 8, answer); err != nil {
			return fmt.Errorf("channel %d: %w", i, err)
		}
		unix.Close(int(h.word(0)))
	}
	if err := next("channels"); err != nil {
		return err
	}
	for i := range 100 {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			err := h.command(abi.RegMR, 20, answer, half, uint64(4096), half, pd, uint32(7), uint64(i))
			if err == nil {
				err = h.command(abi.DeregMR, 0, h.word(0))
			}
			done <- err
		}()
		if err := <-done; err != nil {
			return fmt.Errorf("region %d: %w", i, err)
		}
	}
	used := h.uverbs
	if h.uverbs, err = unix.Dup(used); err != nil { // a descriptor number that no command has used
		return err
	}
	if err := next("regions"); err != nil {
		return err
	}
	alloc := h.command(abi.AllocPD, 8, answer)
	fd, dup := unix.Dup(used)
	if dup == nil {
		unix.Close(fd)
	}
	if err := next("short:", alloc, dup); err != nil {
		return err
	}
	return h.command(abi.AllocPD, 8, answer)
}

// A program's closed objects leave nothing open in the supervisor, even if the kernel does not
// report the close. A supervisor without free descriptors fails commands itself: the kernel would
// write unanswered commands into the rings.
func TestRDMAObjects(t *testing.T) {
	t.Parallel()
	p, _ := start(t, 0, "run", "--rdma", "--", "env", calm, asRDMAObjects+"=1", os.Args[0])
	s := &served{proc: p}
	on := func(want string) {
		t.Helper()
		if got := s.line(); got != want {
			t.Fatalf("said %q, want %q\n%s", got, want, s.stderr())
		}
	}
	on("ready")
	supervisor := s.supervisor()
	before := steady(t, supervisor)
	io.WriteString(s.in, "\n")
	on("channels")
	if n := descriptors(t, supervisor); n > before+40 {
		t.Errorf("%d descriptors, %d before 200 completion channels were made and closed", n, before)
	}
	io.WriteString(s.in, "\n")
	on("regions")
	if n := descriptors(t, supervisor); n > before+80 {
		t.Errorf("%d descriptors, %d before 100 threads have registered memory and ended", n, before)
	}
	end := short(t, supervisor)
	io.WriteString(s.in, "\n")
	on("short: cannot allocate memory cannot allocate memory")
	end()
	io.WriteString(s.in, "\n")
	if code := s.wait(); code != 0 {
		t.Errorf("exit %d; %s", code, s.stderr())
	}
}

// asRDMASignals makes the test binary a program that opens rdma_cm repeatedly in a thread, while
// signals interrupt the thread. At most signalsEach signals interrupt a single open, because the
// kernel repeats an interrupted open, and on a slow machine an open may take longer than the time
// between two signals.
const asRDMASignals = "VIADUCT_TEST_RDMA_SIGNALS"

const signalsEach = 8

func rdmaSignals() error {
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1)
	runtime.LockOSThread()
	thread := unix.Gettid()
	stop, stopped := make(chan struct{}), make(chan struct{})
	var opens atomic.Int64
	go func() {
		defer close(stopped)
		var of int64
		sent := 0
		for pause := time.Duration(0); ; pause = (pause + 7*time.Microsecond) % (300 * time.Microsecond) {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			if n := opens.Load(); n != of {
				of, sent = n, 0
			}
			if sent < signalsEach {
				sent++
				unix.Tgkill(os.Getpid(), thread, unix.SIGUSR1)
			}
		}
	}()
	for range 500 {
		opens.Add(1)
		fd, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	close(stop)
	<-stopped
	for fd := 960; fd < 1020; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			return fmt.Errorf("descriptor %d is open, and no call has returned it", fd)
		}
	}
	return nil
}

// A signal during the opening of a device leaves no descriptor open in the program.
func TestRDMASignals(t *testing.T) {
	t.Parallel()
	goodLong(t, "run", "--rdma", "--", "env", asRDMASignals+"=1", os.Args[0])
}

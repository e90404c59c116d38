//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/sdp"
)

// hostileFor is how long each hostile program runs. A minute finds more faults.
var hostileFor = flag.Duration("hostile", 3*time.Second,
	"how long programs pull descriptors from under their own calls")

// asHostile makes the test binary the hostile Go program. The value is "SECONDS PORT LISTENPORT".
const asHostile = "VIADUCT_TEST_HOSTILE"

// keepInherited keeps descriptors that this process has inherited from the programs of tests, which
// may count their descriptors: the shell that runs go test can leave some open.
func keepInherited() {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if n, err := strconv.Atoi(fd.Name()); err == nil && n > 2 {
			unix.CloseOnExec(n)
		}
	}
}

// asProgram runs the program selected by the environment. Without a selected program, asProgram
// returns false.
func asProgram() bool {
	if arg, ok := os.LookupEnv(asRDMAHostile); ok {
		if err := rdmaHostile(arg); err != nil {
			fmt.Fprintln(os.Stderr, "hostile:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRDMANumbers); ok {
		if err := rdmaNumbers(arg); err != nil {
			fmt.Fprintln(os.Stderr, "numbers:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMALacks); ok {
		if err := rdmaLacks(); err != nil {
			fmt.Fprintln(os.Stderr, "lacks:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMARights); ok {
		if err := rdmaRights(); err != nil {
			fmt.Fprintln(os.Stderr, "rights:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRDMAPaths); ok {
		if err := rdmaPaths(arg); err != nil {
			fmt.Fprintln(os.Stderr, "paths:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRDMAMemory); ok {
		if err := rdmaMemory(arg); err != nil {
			fmt.Fprintln(os.Stderr, "memory:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMASignals); ok {
		if err := rdmaSignals(); err != nil {
			fmt.Fprintln(os.Stderr, "signals:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMAObjects); ok {
		if err := rdmaObjects(); err != nil {
			fmt.Fprintln(os.Stderr, "objects:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMAIoctl); ok {
		if err := rdmaIoctl(); err != nil {
			fmt.Fprintln(os.Stderr, "ioctl:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRDMANeighbour); ok {
		if err := rdmaNeighbour(arg); err != nil {
			fmt.Fprintln(os.Stderr, "neighbour:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRDMAStreams); ok {
		if err := rdmaStreamsMain(arg); err != nil {
			fmt.Fprintln(os.Stderr, "streams:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRXEStreams); ok {
		if err := rxeStreamsMain(arg); err != nil {
			fmt.Fprintln(os.Stderr, "streams:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRXEBlocked); ok {
		if err := rxeBlocked(); err != nil {
			fmt.Fprintln(os.Stderr, "blocked:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if arg, ok := os.LookupEnv(asRDMADuplicates); ok {
		if err := rdmaDuplicates(arg); err != nil {
			fmt.Fprintln(os.Stderr, "duplicates:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMAEvents); ok {
		if err := rdmaEvents(); err != nil {
			fmt.Fprintln(os.Stderr, "events:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, ok := os.LookupEnv(asRDMAFields); ok {
		if err := rdmaFieldsMain(); err != nil {
			fmt.Fprintln(os.Stderr, "fields:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if to, ok := os.LookupEnv(asNames); ok {
		c, err := net.Dial("tcp", to)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(c.LocalAddr(), c.RemoteAddr())
		os.Exit(0)
	}
	arg, ok := os.LookupEnv(asHostile)
	if !ok {
		return false
	}
	if err := hostile(arg); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
	os.Exit(0)
	return true
}

// The descriptor numbers used by all threads.
const hostileLow, hostileHigh = 100, 116

// hostile is a Go program that closes, duplicates and replaces descriptors while other threads make
// calls on the same descriptors. The careful goroutines use the net package, on descriptors of
// their own, and check every byte and address.
func hostile(arg string) error {
	var seconds, port, listenPort int
	if _, err := fmt.Sscan(arg, &seconds, &port, &listenPort); err != nil {
		return err
	}
	to := "127.0.0.1:" + strconv.Itoa(port)
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(listenPort))
	if err != nil {
		return err
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var failure atomic.Pointer[error]
	fail := func(err error) { failure.CompareAndSwap(nil, &err) }
	var rounds, served atomic.Int64
	goesOn := func() bool { // on a busy machine, until something was done
		late := time.Since(end)
		return failure.Load() == nil && (late < 0 || late < time.Minute && (rounds.Load() == 0 || served.Load() == 0))
	}
	var wg sync.WaitGroup
	go func() { // an echo server for the peers
		for {
			c, err := l.Accept()
			if err != nil {
				fail(fmt.Errorf("accept: %w", err))
				return
			}
			served.Add(1)
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	for range 2 {
		wg.Go(func() {
			for goesOn() {
				if err := hostileRound(to); err != nil {
					fail(err)
				}
				rounds.Add(1)
			}
		})
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	number := func() int { return hostileLow + mrand.IntN(hostileHigh-hostileLow) }
	for range 2 {
		wg.Go(func() { // makes calls
			for goesOn() {
				fd := number()
				switch mrand.IntN(6) {
				case 0, 1:
					unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
				case 2:
					unix.Getsockname(fd)
				case 3:
					unix.Getpeername(fd)
				case 4:
					// The descriptor may be a listener, made from a socket the supervisor connects.
					if c, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK); err == nil {
						unix.Close(c)
					}
				case 5:
					unix.Listen(fd, 5)
				}
			}
		})
		wg.Go(func() { // changes descriptors while others call
			for goesOn() {
				switch fd := number(); mrand.IntN(4) {
				case 0:
					unix.Close(fd)
				case 1:
					unix.Dup3(null, fd, 0)
				case 2:
					if from := number(); from != fd {
						unix.Dup3(from, fd, 0)
					}
				case 3:
					if s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err == nil {
						unix.Dup3(s, fd, 0)
						unix.Close(s)
					}
				}
				time.Sleep(20 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	if rounds.Load() == 0 || served.Load() == 0 {
		return fmt.Errorf("nothing was done: %d rounds, %d served", rounds.Load(), served.Load())
	}
	return nil
}

func hostileRound(to string) error {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if got := c.RemoteAddr().String(); got != to {
		return fmt.Errorf("the peer is %s, not %s", got, to)
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	return echoOnce(c)
}

// A Go program changes descriptors during its own calls. The supervisor must survive, and no
// connection may get the descriptor or the bytes of another connection, on either side.
func TestRunHostileGo(t *testing.T) {
	lengthy(t, "6 s")
	t.Parallel()
	to, port := newTarget(t), strconv.Itoa(freePort(t))
	arg := fmt.Sprintf("%d %s %s", int(hostileFor.Seconds()), to.port, port)
	s := startRun(t, []string{"--to", to.rule, "--listen", port}, "env", asHostile+"="+arg, os.Args[0])
	sdpPort := s.sdpPort(port)
	n := 0
	var broken error // of a connection that broke, perhaps because the program was ending
	for over := false; !over; n++ {
		select {
		case <-s.done:
			over = true
			continue
		case <-time.After(time.Millisecond):
		}
		c, err := sdp.Dial("127.0.0.1:"+sdpPort, nil)
		if err != nil {
			continue // the program has just ended
		}
		c.SetDeadline(time.Now().Add(patience))
		err = echoOnce(c)
		c.Close()
		var wrong *wrongBytes
		switch {
		case errors.As(err, &wrong):
			t.Errorf("connection %d to the program: %v", n, err)
		case err == nil && broken != nil:
			t.Errorf("a connection to the program broke, and the program went on: %v", broken)
			broken = nil
		case err != nil:
			broken = fmt.Errorf("connection %d: %w", n, err)
		}
	}
	code, es := s.finish()
	if sum := summaryOf(es); code != 0 || sum["carried"] == 0 || sum["accepted"] == 0 {
		t.Errorf("exit %d; %v\n%s", code, sum, s.stderr())
	}
}

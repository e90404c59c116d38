package sdp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
	"viaduct/samehost"
)

// asWriter is an environment variable. If set, the test binary only writes to the address in the
// variable, closes the connection and exits.
const asWriter = "VIADUCT_SDP_WRITER"

// The program of asWriter makes more writes than the other end has Private Buffers.
const (
	exitWrites = 40
	exitSize   = 100
)

func writerMain(address string) int {
	c, err := Dial(address, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for i := range exitWrites {
		if _, err := c.Write([]byte(strings.Repeat(string(rune('A'+i)), exitSize))); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if err := c.Close(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestCloseAndExit runs a program that exits after Close. A late reader must get all bytes and the
// end of the stream, and no reset. [D-78]
func TestCloseAndExit(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		name string
		late time.Duration
		opt  Options
	}{
		{"at once", 0, Options{}},
		{"late", 300 * time.Millisecond, Options{}},
		{"late, little room", 300 * time.Millisecond, Options{RecvBuffers: 4, RecvBufferSize: 512, NoResize: true, ReceiveBuffer: 1}},
	} {
		t.Run(v.name, func(t *testing.T) {
			l, err := Listen("127.0.0.1:0", &v.opt)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), asWriter+"="+l.Addr().String(), "GORACE=atexit_sleep_ms=0 "+
				os.Getenv("GORACE"))
			ended := make(chan error, 1)
			var said []byte
			go func() {
				var err error
				said, err = cmd.CombinedOutput()
				ended <- err
			}()
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c := nc.(*Conn)
			c.SetDeadline(time.Now().Add(testkit.Patience))
			exited := error(nil)
			select { // a program whose Close does not wait exits during this pause
			case exited = <-ended:
				ended <- exited
			case <-time.After(v.late):
			}
			b, err := io.ReadAll(c)
			if err != nil || len(b) != exitWrites*exitSize {
				t.Errorf("got %d of %d bytes, %v", len(b), exitWrites*exitSize, err)
			}
			if err := <-ended; err != nil {
				t.Errorf("the program: %v: %s", err, said)
			}
			shut(t, c)
		})
	}
}

// TestCloseLate closes a connection whose peer reads nothing. Close must take its full time and
// return an error, and the bytes must still be delivered later.
func TestCloseLate(t *testing.T) { // [D-78]
	const size = 100_000 // more than the other end holds
	a, b := pair(t, Options{SendBuffer: 1 << 20}, Options{RecvBuffers: 4, RecvBufferSize: 512,
		NoResize: true, ReceiveBuffer: 1})
	if a.closeWithin != 10*time.Second {
		t.Errorf("Close waits %v, want 10 s", a.closeWithin)
	}
	a.closeWithin = 50 * time.Millisecond
	if _, err := a.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err := a.Close()
	if !os.IsTimeout(err) || time.Since(start) < a.closeWithin {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	if p, err := io.ReadAll(b); len(p) != size || err != nil {
		t.Errorf("%d bytes, %v", len(p), err)
	}
	shutOne(t, b)
	<-a.Done()
}

// TestCloseReset resets a connection with bytes TCP has taken and cannot deliver. Close must return
// an error. [SDP-8.2.1-5] [SDP-8.2.1-7]
func TestCloseReset(t *testing.T) {
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	near := make(chan *net.TCPConn, 1)
	stall := make(chan struct{}) // the relay stops reading when this is closed
	done := make(chan struct{})
	go func() {
		defer close(done)
		in, err := relay.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer out.Close()
		in.(*net.TCPConn).SetReadBuffer(4096)
		near <- in.(*net.TCPConn)
		go io.Copy(in, out)
		b := make([]byte, 1<<16)
		for {
			select {
			case <-stall:
				return
			default:
			}
			in.SetReadDeadline(time.Now().Add(time.Millisecond))
			n, _ := in.Read(b)
			out.Write(b[:n])
		}
	}()
	got := make(chan *Conn, 1)
	go func() {
		c, err := l.AcceptConn(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	a, err := Dial(relay.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := <-got
	in := <-near
	close(stall)
	<-done
	a.SetWriteBuffer(1 << 20)
	if _, err := a.Write(make([]byte, 1<<20)); err != nil { // more than the relay's socket holds
		t.Fatal(err)
	}
	go func() {
		a.mu.Lock() // Close has begun once it has set closed
		for !a.closed {
			a.mu.Unlock()
			time.Sleep(time.Millisecond)
			a.mu.Lock()
		}
		a.mu.Unlock()
		in.SetLinger(0)
		in.Close()
	}()
	if err := a.Close(); !errors.Is(err, ErrReset) {
		t.Errorf("close: %v", err)
	}
	b.Abort()
	<-a.Done()
	<-b.Done()
}

// TestFINAlone ends the peer's stream without a DisConn, as the death of the peer's process does. A
// waiting Read must end. [SDP-8.2.2-4] [SDP-8.2.1-7]
func TestFINAlone(t *testing.T) {
	for _, after := range []time.Duration{0, 20 * time.Millisecond} { // the second Read sleeps by then
		a, b := pair(t, Options{}, Options{})
		if _, err := a.Write([]byte("begun")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, 1))
			read <- err
		}()
		time.Sleep(after)
		if err := a.qp.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-read:
			if !errors.Is(err, ErrReset) {
				t.Errorf("the Read ends with %v", err)
			}
		case <-time.After(testkit.Patience):
			t.Error("the Read does not end")
		}
		a.SetLinger(0)
		a.Close()
		b.Close()
		<-a.Done()
		<-b.Done()
	}
}

// TestEndsBehindDisConn ends the connection in several ways after the peer's DisConn.
func TestEndsBehindDisConn(t *testing.T) {
	// A reset after the peer's program has exited is graceful. [D-48]
	t.Run("SDP-8.2.1-12", func(t *testing.T) {
		w, c := connectWire(t, Options{})
		w.send(sdpwire.Message{MID: sdpwire.Data}, "all")
		w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
		for c.Stats().RecvMessages < 2 {
			time.Sleep(time.Millisecond)
		}
		w.close()
		<-c.Done()
		if b, err := io.ReadAll(c); string(b) != "all" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Errorf("nothing was left to send: %v", err)
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, ErrReset) {
			t.Errorf("a write on a dead connection: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("nothing was left to send: %v", err)
		}
	})
	for _, own := range []bool{false, true} { // whether our DisConn was sent
		// An AbortConn is not graceful. [SDP-8.2.1-22] [SDP-8.2.1-12]
		t.Run("SDP-8.2.2-4", func(t *testing.T) {
			w, c := connectWire(t, Options{})
			defer w.close()
			if own {
				if err := c.CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			// Both messages leave together, because the stream ends two seconds after the DisConn.
			w.more = true
			w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
			w.more = false
			w.sendOp(sdpwire.Message{MID: sdpwire.AbortConn}, "", iwarp.OpSendSE, 0)
			if own {
				w.qp.CloseWrite()
			}
			<-c.Done()
			if err := c.CloseWrite(); !errors.Is(err, ErrReset) {
				t.Errorf("CloseWrite: %v", err)
			}
			if err := c.Close(); !errors.Is(err, ErrReset) {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// TestCloseHalf: Close returns soon if the peer sends nothing. Close waits until the peer's TCP has
// acknowledged the DisConn, and TCP would delay each acknowledgement by 40 ms. A single Close that
// takes less shows that the acknowledgement is not delayed. On a busy machine others may take more.
func TestCloseHalf(t *testing.T) {
	best := time.Hour
	for range 100 {
		if best = min(best, closeHalf(t)); best < 20*time.Millisecond {
			return
		}
	}
	t.Errorf("the fastest Close took %v", best)
}

// closeHalf returns how long the Close of an end takes, while the other end reads.
func closeHalf(t *testing.T) time.Duration {
	t.Helper()
	a, b := pair(t, Options{SameHost: samehost.Off}, Options{})
	p := make([]byte, 1)
	for range 3 {
		for _, c := range []*Conn{a, b} {
			other := a
			if c == a {
				other = b
			}
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
			if _, err := other.Read(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.Read(p)
		ended <- err
	}()
	start := time.Now()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	if err := <-ended; err != io.EOF {
		t.Fatal(err)
	}
	shut(t, b)
	return took
}

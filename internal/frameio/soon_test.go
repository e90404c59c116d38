package frameio

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// Who starts a connection by polling receives by that alone, until Unpoll:
// then the passive goroutine does.
func TestStartPolled(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		first := b.expect(t, [][]byte{{1}})
		b.c.StartPolled([]byte{0, 0, 0, 1, 1}) // a frame that came before
		for done := false; !done; {
			b.c.Poll()
			select {
			case <-first:
				done = true
			default:
			}
		}
		polled := b.expect(t, [][]byte{{2, 3}})
		a.post([]byte{2, 3})
		a.c.Kick()
		for done := false; !done; {
			b.c.Poll()
			select {
			case <-polled:
				done = true
			default:
			}
		}
		b.c.Unpoll()
		for _, p := range [][]byte{{4}, make([]byte, 70000)} {
			alone := b.expect(t, [][]byte{p})
			a.post(p)
			a.c.Kick()
			await(t, "a frame without polling", alone)
		}
	})
}

// The end of a connection that is polled, and was never left, is told and takes
// everything along.
func TestEndPolled(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		b.c.StartPolled(nil)
		a.c.Shutdown()
		done := make(chan error, 1)
		go func() { done <- b.c.CloseAfter(patience) }()
		await(t, "CloseAfter hears of the peer's end", done)
	})
}

// ReadSoon reads what is there, what comes at once, what comes late, and the
// end; and deadlines hold.
func TestReadSoon(t *testing.T) {
	for _, pair := range []func(testing.TB) (a, b net.Conn){tcpPair, ownedPair, kinds[len(kinds)-1].pair} {
		x, y := pair(t)
		buf := make([]byte, 10)
		read := func(want string) {
			t.Helper()
			if n, err := ReadSoon(y, buf); err != nil || string(buf[:n]) != want {
				t.Errorf("%q, %v; want %q", buf[:n], err, want)
			}
		}
		go x.Write([]byte("soon"))
		read("soon")
		go func() {
			time.Sleep(10 * soon)
			x.Write([]byte("late"))
		}()
		read("late")
		y.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if n, err := ReadSoon(y, buf); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v after the deadline", n, err)
		}
		y.SetReadDeadline(time.Time{})
		x.Close()
		if n, err := ReadSoon(y, buf); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v at the end", n, err)
		}
		y.Close()
	}
}

// TestSoonInVain: who has looked in vain again and again looks seldom, until it
// was of use once more.
func TestSoonInVain(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("SKIPPED: nobody looks where there is one processor")
	}
	looks.Done(true)
	defer looks.Done(true)
	const calls = 32
	count := func() (n int) { // of so many calls
		for range calls {
			tries := 0
			if Soon(func() bool { tries++; return false }) {
				t.Fatal("done, although it never is")
			}
			if tries > 1 {
				n++
			}
		}
		return n
	}
	for range 10 {
		Soon(func() bool { return false })
	}
	if n := count(); n < 1 || n > calls/8 {
		t.Errorf("%d of %d looked", n, calls)
	}
	for of, tries := false, 0; !of; of = tries == 2 { // the second try is not in vain
		tries = 0
		Soon(func() bool { tries++; return tries == 2 })
	}
	if n := count(); n <= calls/8 {
		t.Errorf("%d of %d looked after one was of use", n, calls)
	}
}

package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/testkit"
)

// TestReadSoon: ReadSoon reads present bytes, bytes that arrive at once and bytes that arrive late,
// finds the end of the stream, and observes deadlines.
func TestReadSoon(t *testing.T) {
	for _, pair := range []func(testing.TB) (a, b net.Conn){testkit.TCPPair, ownedPair, wrappedPair} {
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
			time.Sleep(10 * budget.Answer.Time)
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

// TestSoonInVain: Soon polls rarely after polling has failed repeatedly, until polling has
// succeeded several times.
func TestSoonInVain(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("SKIPPED: nothing polls where there is one processor")
	}
	answers.Reset()
	defer answers.Reset()
	const calls = 32
	count := func() (n int) { // returns how many of the calls have polled
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
		t.Errorf("%d of %d polled", n, calls)
	}
	for of, tries := 0, 0; of < 8; { // the second try succeeds
		tries = 0
		if Soon(func() bool { tries++; return tries == 2 }) {
			of++
		}
	}
	if n := count(); n <= calls/8 {
		t.Errorf("%d of %d polled after it was of use", n, calls)
	}
}

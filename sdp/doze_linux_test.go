package sdp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// onOne makes calls sleep without polling first, as calls do on one processor.
func onOne(t *testing.T) { t.Cleanup(attend.AssumeProcessors(1)) }

// echo sends back all bytes read, after a pause for every eighth message, until the end of the
// stream.
func echo(c net.Conn) {
	b := make([]byte, 4096)
	for i := 0; ; i++ {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if i%8 == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

// TestDozingReader: a reader asleep on the socket is woken by arrivals, by a deadline, by a changed
// deadline, by completions of other calls, and by the end.
func TestDozingReader(t *testing.T) {
	onOne(t)
	a, b := pair(t, Options{}, Options{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer shut(t, a, b) // closing the connection ends echo
	wg.Go(func() { echo(b) })
	buf := make([]byte, 4096)
	ask := func(n int) {
		t.Helper()
		if _, err := a.Write(buf[:n]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(a, buf[:n]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		ask(1 + i%2000)
	}
	for i := range 60 {
		ask(8)
		// The test has not read the answer to this message.
		start := time.Now()
		switch i % 3 {
		case 0:
			a.SetReadDeadline(start.Add(time.Duration(i) * 100 * time.Microsecond))
		case 1:
			wg.Go(func() { time.Sleep(time.Millisecond / 4); a.SetReadDeadline(time.Unix(1, 0)) })
		case 2: // another call sends a message whose answer ends the read
			wg.Go(func() { time.Sleep(time.Millisecond / 4); a.Write([]byte{1}) })
		}
		n, err := a.Read(buf)
		switch {
		case i%3 == 2:
			if n != 1 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatalf("case %d: %d bytes, %v", i%3, n, err)
		}
		if d := time.Since(start); d > testkit.Patience/2 {
			t.Errorf("case %d took %v", i%3, d)
		}
		a.SetReadDeadline(time.Time{})
	}
}

// TestDozingReaderEnds: a read asleep on the socket ends when either end calls Close or CloseRead.
func TestDozingReaderEnds(t *testing.T) {
	onOne(t)
	for i := range 24 {
		a, b := pair(t, Options{}, Options{})
		done := make(chan error, 1)
		go func() {
			buf := make([]byte, 10)
			a.Write(buf)
			io.ReadFull(b, buf)
			b.Write(buf)
			io.ReadFull(a, buf)
			a.Write(buf)
			_, err := a.Read(buf)
			done <- err
		}()
		time.Sleep(time.Duration(i) * 50 * time.Microsecond)
		switch i % 4 {
		case 0:
			a.Close()
		case 1:
			b.Close()
		case 2:
			a.CloseRead()
		case 3:
			b.Abort()
		}
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("case %d: no error", i%4)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("case %d: still reading", i%4)
		}
		shut(t, a, b)
	}
}

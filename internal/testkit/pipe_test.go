package testkit

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

func TestMain(m *testing.M) { Main(m) }

func TestConnContract(t *testing.T) {
	for _, tc := range []struct {
		name   string
		window int
		faults []Fault
	}{
		{"plain", DefaultWindow, nil},
		{"tiny window", 61, nil},
		{"split", DefaultWindow, []Fault{SplitReads(1)}},
		{"small reads", 16 << 10, []Fault{MaxRead(17)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := PipeSize(tc.window)
				a.Fault(tc.faults...)
				b.Fault(tc.faults...)
				return a, b, func() { a.Close(); b.Close() }, nil
			})
		})
	}
}

// pattern returns n bytes, each different from the byte before and after.
func pattern(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestCutAfter(t *testing.T) {
	a, b := Pipe()
	a.Fault(CutAfter(10))
	data := pattern(25)
	for i := 0; i < 25; i += 5 {
		if n, err := a.Write(data[i : i+5]); n != 5 || err != nil {
			t.Fatalf("Write = %d, %v; a cut is not the writer's business", n, err)
		}
	}
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, data[:10]) {
		t.Errorf("read % x, %v; want % x", got, err, data[:10])
	}
	if a.Sent() != 25 {
		t.Errorf("Sent = %d, want 25", a.Sent())
	}
}

func TestCutAfterZero(t *testing.T) {
	a, b := Pipe()
	a.Fault(CutAfter(0))
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read = %d, %v, want EOF", n, err)
	}
}

func TestResetAfter(t *testing.T) {
	a, b := Pipe()
	a.Fault(ResetAfter(3))
	a.Write([]byte{1, 2, 3})
	if _, err := b.Read(make([]byte, 3)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read after reset: %v", err)
	}
	if _, err := a.Write([]byte{4}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Write after reset: %v", err)
	}
}

func TestStallAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		a.Fault(StallAfter(4))
		a.Write([]byte{1, 2, 3, 4, 5, 6})
		var buf [8]byte
		if n, err := b.Read(buf[:]); n != 4 || err != nil {
			t.Fatalf("Read = %d, %v, want 4", n, err)
		}
		b.SetReadDeadline(time.Now().Add(time.Hour))
		if n, err := b.Read(buf[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Read of stalled bytes = %d, %v", n, err)
		}
		b.SetReadDeadline(time.Time{})
		go func() {
			time.Sleep(time.Minute)
			a.Resume()
		}()
		if n, err := b.Read(buf[:]); n != 2 || err != nil || buf[0] != 5 {
			t.Fatalf("Read after Resume = %d, %v", n, err)
		}
	})
}

func TestStalledEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		a.Fault(StallAfter(1))
		a.Write([]byte{1, 2})
		a.CloseWrite()
		b.Read(make([]byte, 1))
		b.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("end of stream overtook a stalled byte: %v", err)
		}
	})
}

func TestCorruptAt(t *testing.T) {
	a, b := Pipe()
	a.Fault(CorruptAt(2, 0x80), CorruptAt(5, 1))
	a.Write([]byte{0, 0, 0})
	a.Write([]byte{0, 0, 0})
	got := make([]byte, 6)
	io.ReadFull(b, got)
	EqualBytes(t, got, []byte{0, 0, 0x80, 0, 0, 1})
}

func TestSplitReads(t *testing.T) {
	a, b := Pipe()
	a.Fault(SplitReads(7))
	data := pattern(100_000)
	a.Write(data)
	a.CloseWrite()
	var got []byte
	sizes := make(map[int]bool)
	buf := make([]byte, 4096)
	for {
		n, err := b.Read(buf)
		got = append(got, buf[:n]...)
		sizes[n] = true
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	EqualBytes(t, got, data)
	if len(sizes) < 20 || !sizes[1] {
		t.Errorf("pieces of sizes %v: not split enough", sizes)
	}
}

func TestHalfClose(t *testing.T) {
	a, b := Pipe()
	a.Write([]byte("hello"))
	a.CloseWrite()
	if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Write after CloseWrite: %v", err)
	}
	if got, err := io.ReadAll(b); string(got) != "hello" || err != nil {
		t.Errorf("peer read %q, %v", got, err)
	}
	b.Write([]byte("still open"))
	got := make([]byte, 10)
	if _, err := io.ReadFull(a, got); err != nil || string(got) != "still open" {
		t.Errorf("other direction: %q, %v", got, err)
	}
	a.CloseRead()
	if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Write to a peer that shut its reading side: %v", err)
	}
	if _, err := a.Read(got); err != io.EOF {
		t.Errorf("Read after CloseRead: %v", err)
	}
	a.Close()
	if _, err := a.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	b.Close()
}

func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := PipeSize(10)
		a.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := a.Write(make([]byte, 15)); n != 10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write into a full window = %d, %v", n, err)
		}
		go func() {
			time.Sleep(time.Second)
			b.Read(make([]byte, 5))
		}()
		a.SetWriteDeadline(time.Time{})
		if n, err := a.Write(make([]byte, 5)); n != 5 || err != nil {
			t.Errorf("Write after the peer read = %d, %v", n, err)
		}
		b.Reset()
		if _, err := a.Write([]byte{1}); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Write after the peer's reset: %v", err)
		}
	})
}

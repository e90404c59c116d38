package sdp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/testkit"

	"viaduct/internal/wire/sdpwire"
)

// TestSDP_8_1_2_shortHello: a connection that ends before the first 18 bytes no longer counts as
// pending, however long a Hello may take.
func TestSDP_8_1_2_shortHello(t *testing.T) {
	lc := ListenConfig{Options: Options{SetupTimeout: time.Hour}}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for n := range sniffLen {
		t.Run("SDP-8.1.2-1", func(t *testing.T) { // [SDP-8.1.2-2] [D-17]
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(testkit.Patience))
			if _, err := nc.Write([]byte(mpaKey + "\x00\x02")[:n]); err != nil {
				t.Fatal(err)
			}
			nc.(*net.TCPConn).CloseWrite()
			if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes and a FIN: the listener still waits", n)
			}
		})
	}
	for end := time.Now().Add(testkit.Patience); l.Failed() < sniffLen && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // the listener counts the end shortly after it happens
	}
	if l.Refused() != 0 || l.Failed() != sniffLen {
		t.Errorf("%d refused, %d failed, want 0 and %d", l.Refused(), l.Failed(), sniffLen)
	}
}

// TestSniffSleeps: a listener wakes once for each arrival from a peer whose first bytes come
// slowly, and sleeps between arrivals.
func TestSniffSleeps(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if runtime.GOOS != "linux" {
		b = peekable(b)
	}
	const text = "MPA ID"
	seen, looks := make(chan int, len(text)), 0
	got := make(chan error, 1)
	go func() {
		p, err := sniff(context.Background(), b, len(text), func(p []byte) bool {
			if looks++; len(p) > 0 {
				select {
				case seen <- len(p):
				default:
				}
			}
			return false
		}, time.Now().Add(testkit.Patience))
		if err == nil && string(p) != text {
			err = errors.New("got " + string(p))
		}
		got <- err
	}()
	for i := range len(text) - 1 {
		if _, err := a.Write([]byte(text[i : i+1])); err != nil {
			t.Fatal(err)
		}
		for n := 0; n <= i; {
			n = <-seen
		}
		time.Sleep(20 * time.Millisecond) // no byte arrives during the sleep
	}
	if _, err := a.Write([]byte(text[len(text)-1:])); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if looks > len(text)+1 {
		t.Errorf("looked %d times at %d arrivals", looks, len(text))
	}
}

// TestD17_oneLimit: a peer that sends single bytes has ten seconds for all bytes, whether the Hello
// is raw or private data, and whatever part of the Hello has arrived.
func TestD17_oneLimit(t *testing.T) {
	request := append([]byte(mpaKey), 0x40, 2, 0, 36) // CRC, revision 2, private data
	request = append(request, make([]byte, 4)...)
	hello := goodHello.Append(nil, sdpwire.Figure)
	for _, v := range []struct {
		name string
		wait time.Duration // pause before once, which is sent in one piece
		once []byte
		slow []byte
	}{
		{"private", 0, nil, append(append([]byte(nil), request...), hello...)},
		{"raw", 0, nil, append(append([]byte(nil), hello...), request...)},
		{"Request behind a raw Hello", 5 * time.Second, hello, request},
	} {
		t.Run(v.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer, nc := net.Pipe()
				opt, err := (&Options{}).complete()
				if err != nil {
					t.Fatal(err)
				}
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					defer peer.Close()
					time.Sleep(v.wait)
					if _, err := peer.Write(v.once); err != nil {
						return
					}
					for i := range v.slow {
						time.Sleep(500 * time.Millisecond) // so the first 18 bytes take 9 s
						if _, err := peer.Write(v.slow[i : i+1]); err != nil {
							return
						}
					}
				}()
				begin := time.Now()
				_, _, _, err = accept(t.Context(), peekable(nc), opt, nil,
					func(*setup, greeting) Reason { return ReasonUnknown })
				if took := time.Since(begin); err == nil || took != 10*time.Second {
					t.Errorf("ended after %v with %v, want 10 s", took, err)
				}
				<-gone // the listener has closed the connection
			})
		})
	}
}

package sdp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// trickle relays a connection to addr. It forwards the bytes in pieces of any size and with pauses,
// and returns the answers unchanged. It returns the address of the relay.
func trickle(t *testing.T, addr string, seed uint64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		in, err := l.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer out.Close()
		go io.Copy(in, out)
		rnd := rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, 40<<10)
		for {
			n, err := in.Read(buf[:1+rnd.IntN(len(buf))])
			if err != nil {
				return
			}
			if _, err := out.Write(buf[:n]); err != nil {
				return
			}
			if rnd.IntN(4) > 0 {
				time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond)
			}
		}
	}()
	return l.Addr().String()
}

// TestReadGivesBack ends reads in the middle of a message. Afterwards the connection must not use
// the buffer of the read, and must lose no byte of the message. [SDP-4.1-1] [D-40]
func TestReadGivesBack(t *testing.T) {
	for _, crc := range []bool{true, false} {
		l, err := Listen("127.0.0.1:0", &Options{NoCRC: !crc})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		type accepted struct {
			c   net.Conn
			err error
		}
		ch := make(chan accepted, 1)
		go func() {
			c, err := l.Accept()
			ch <- accepted{c, err}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		w, err := (&Dialer{Options: Options{NoCRC: !crc, SendPolicy: PinBuffered}}).DialContext(ctx,
			"tcp", trickle(t, l.Addr().String(), 7))
		if err != nil {
			t.Fatal(err)
		}
		a := <-ch
		if a.err != nil {
			t.Fatal(a.err)
		}
		r := a.c.(*Conn)
		defer shut(t, w.(*Conn), r)
		want := make([]byte, 6<<20)
		for i := range want {
			want[i] = byte(i>>16 ^ i>>8 ^ i)
		}
		sent := make(chan error, 1)
		go func() {
			w.SetDeadline(time.Now().Add(testkit.Patience))
			p := want
			for len(p) > 0 {
				n, err := w.Write(p[:min(len(p), 100_000)])
				if err != nil {
					sent <- err
					return
				}
				p = p[n:]
			}
			sent <- w.(*Conn).CloseWrite()
		}()
		rnd := rand.New(rand.NewPCG(3, 4))
		var got []byte
		late := 0
		buf := make([]byte, 300<<10)
		after := make([]byte, len(buf))
		for end := time.Now().Add(testkit.Patience); ; {
			if time.Now().After(end) {
				t.Fatalf("%d bytes in %v", len(got), testkit.Patience)
			}
			r.SetReadDeadline(time.Now().Add(time.Duration(rnd.IntN(1000>>rnd.IntN(5))) * time.Microsecond))
			n, err := r.Read(buf[:1+rnd.IntN(len(buf))])
			got = append(got, buf[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			if err == nil {
				continue
			}
			late++
			copy(after, buf)
			time.Sleep(time.Duration(rnd.IntN(400)) * time.Microsecond)
			if !bytes.Equal(after, buf) {
				t.Fatal("a buffer changed after its read had ended")
			}
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("CRC %t: %d bytes came, of %d, or others", crc, len(got), len(want))
		}
		if late < 5 {
			t.Errorf("only %d reads ran out of time", late)
		}
	}
}

package iwarp

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// TestRemoteAddr checks that an address has 12 bytes, that ParseRemoteAddr reads what Append
// writes, and that it ignores later bytes and refuses a shorter input.
func TestRemoteAddr(t *testing.T) {
	for a, want := range map[RemoteAddr]string{
		{}:                               "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		{0x01020304, 0x05060708090a0b0c}: "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c",
	} {
		b := a.Append([]byte("x"))[1:]
		if string(b) != want || len(b) != RemoteAddrLen {
			t.Errorf("%+v: % x", a, b)
		}
		if got, err := ParseRemoteAddr(append(b, 9)); err != nil || got != a {
			t.Errorf("%+v became %+v, %v", a, got, err)
		}
		for n := range b {
			if _, err := ParseRemoteAddr(b[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
	}
}

// TestFlushCause checks the causes of flushed receives: io.EOF if the peer has closed its direction
// in order, while the stream continues, and ErrClosed if this side has closed the stream.
func TestFlushCause(t *testing.T) {
	a, b := connect(t, nil, nil)
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}}); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c, err := b.RecvCQ().Wait(ctxt(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Err(); c.Status != StatusFlushed || !errors.Is(err, ErrFlushed) ||
		!errors.Is(err, io.EOF) || b.Err() != nil {
		t.Errorf("%v: %v, stream %v", c.Status, err, b.Err())
	}

	a, b = connect(t, nil, nil)
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}}); err != nil {
		t.Fatal(err)
	}
	b.Abort()
	if c, err = b.RecvCQ().Wait(ctxt(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Err(); !errors.Is(err, ErrFlushed) || errors.Is(err, io.EOF) {
		t.Errorf("after Abort: %v", err)
	}
	a.Abort()
}

// TestRemote checks that a peer can write to the address Remote returns.
func TestRemote(t *testing.T) {
	a, b := connect(t, nil, nil)
	mr, err := b.Register(make([]byte, 16), RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	at, err := ParseRemoteAddr(mr.Remote(4).Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PostRecv(RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Post(SendWR{Op: OpWrite, SG: []SGE{Buf([]byte("abcd"))}, Remote: at.Add(2)}); err != nil {
		t.Fatal(err)
	}
	if err := a.Post(SendWR{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.RecvCQ().Wait(ctxt(t)); err != nil {
		t.Fatal(err)
	}
	mr.Close()
	if want := "\x00\x00\x00\x00\x00\x00abcd\x00\x00\x00\x00\x00\x00"; !bytes.Equal(mr.Bytes(), []byte(want)) {
		t.Errorf("%q", mr.Bytes())
	}
}

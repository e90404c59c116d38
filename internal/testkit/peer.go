package testkit

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// PeerPatience is the time a [Peer] waits for expected bytes before failing the test. Only a
// failing test waits so long.
const PeerPatience = Patience

// A Peer plays the other side of a protocol under test from a script: it sends bytes, expects
// bytes, and expects silence. The methods report a failure at the line of the script.
type Peer struct {
	net.Conn
	t testing.TB
}

// NewPeer returns a Peer on c. At the end of the test, c is closed.
func NewPeer(t testing.TB, c net.Conn) *Peer {
	t.Cleanup(func() { c.Close() })
	return &Peer{Conn: c, t: t}
}

// Send sends the bytes spelled by hex, see [Hex], and fails the test on an error.
func (p *Peer) Send(hex string) {
	p.t.Helper()
	p.SendBytes(Hex(hex))
}

// SendBytes sends b.
func (p *Peer) SendBytes(b []byte) {
	p.t.Helper()
	p.SetWriteDeadline(time.Now().Add(PeerPatience))
	if _, err := p.Write(b); err != nil {
		p.t.Fatalf("peer: sending % x: %v", b, err)
	}
}

// Expect reads as many bytes as hex spells and fails the test on a difference.
func (p *Peer) Expect(hex string) {
	p.t.Helper()
	want := Hex(hex)
	got := p.Next(len(want))
	EqualBytes(p.t, got, want)
	if p.t.Failed() {
		p.t.FailNow()
	}
}

// Next reads and returns exactly n bytes.
func (p *Peer) Next(n int) []byte {
	p.t.Helper()
	b := make([]byte, n)
	p.SetReadDeadline(time.Now().Add(PeerPatience))
	if m, err := io.ReadFull(p, b); err != nil {
		p.t.Fatalf("peer: expected %d bytes, got % x and then %v", n, b[:m], err)
	}
	return b
}

// ExpectSilence fails the test if a byte or the end of the stream arrives within d. Inside a
// synctest bubble this takes no real time.
func (p *Peer) ExpectSilence(d time.Duration) {
	p.t.Helper()
	var b [64]byte
	p.SetReadDeadline(time.Now().Add(d))
	n, err := p.Read(b[:])
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("peer: expected silence, got % x and %v", b[:n], err)
	}
}

// ExpectEnd fails the test unless the stream ends here. ExpectEnd returns true for a reset and
// false for an orderly close.
func (p *Peer) ExpectEnd() (reset bool) {
	p.t.Helper()
	var b [64]byte
	p.SetReadDeadline(time.Now().Add(PeerPatience))
	n, err := p.Read(b[:])
	if n > 0 || err == nil {
		p.t.Fatalf("peer: expected the end of the stream, got % x", b[:n])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("peer: expected the end of the stream, it stayed open")
	}
	return !errors.Is(err, io.EOF)
}

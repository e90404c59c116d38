package iwarp

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

func TestMain(m *testing.M) {
	terminateTimeout = patience // a peer must make room for the Terminate in this time
	testkit.Main(m)
}

// A peer is the other side of a stream, controlled by the test. It puts the test's segments, valid
// or not, into FPDUs, and returns the answers.
type peer struct {
	t   testing.TB
	c   net.Conn
	enc mpa.Encoder
	dec mpa.Decoder
	buf []byte
}

const patience = testkit.Patience

// bubbles holds the names of tests that run in a synctest bubble, where sockets cannot be used.
// Their peers are connected by a stream in memory.
var bubbles sync.Map

// inBubble runs a test in a bubble, where time passes only while all goroutines are blocked. So
// waiting there takes no real time, and a test can be sure that nothing will arrive.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	bubbles.Store(t.Name(), true)
	defer bubbles.Delete(t.Name())
	defer sock.TryOnce()()
	synctest.Test(t, f)
}

// runInBubble runs f as a subtest in a bubble.
func runInBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { inBubble(t, f) })
}

// peerPair returns a connection between a peer and the end under test.
func peerPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	if _, ok := bubbles.Load(t.Name()); ok {
		return testkit.Pipe()
	}
	return testkit.TCPPair(t)
}

// newPeer returns the peer of a queue pair that begin, which is Client or Server, starts with cfg.
// ready waits for the start-up and returns the queue pair.
func newPeer(t testing.TB, begin func(context.Context, net.Conn, *Config) (*QueuePair, error), cfg *Config) (p *peer, ready func() *QueuePair) {
	t.Helper()
	a, b := peerPair(t)
	t.Cleanup(func() { a.Close() })
	if b, ok := b.(*net.TCPConn); ok {
		b.SetWriteBuffer(128 << 10) // less than the messages that are to fill the socket
	}
	type result struct {
		q   *QueuePair
		err error
	}
	ch := make(chan result, 1)
	go func() {
		q, err := begin(ctxt(t), b, cfg)
		ch <- result{q, err}
	}()
	return &peer{t: t, c: a}, func() *QueuePair {
		t.Helper()
		r := <-ch
		if r.err != nil {
			t.Fatal(r.err)
		}
		t.Cleanup(func() { a.Close(); r.q.Abort(); r.q.Close() })
		return r.q
	}
}

// asInitiator makes q a Responder with configuration cfg, and p the Initiator. p has sent a
// zero-length Write, so that q may send.
func asInitiator(t testing.TB, cfg *Config) (*peer, *QueuePair) {
	t.Helper()
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil)) // [DDP-5.2-10]
	return p, q
}

// asSilentInitiator does the same as asInitiator with the depths and model in e, but p has sent no
// FPDU.
func asSilentInitiator(t testing.TB, cfg *Config, e mpa.Enhanced, markers bool) (*peer, *QueuePair) {
	t.Helper()
	p, ready := newPeer(t, Server, cfg)
	crc := cfg == nil || cfg.Device == nil || !cfg.Device.cfg.NoCRC
	p.raw(mpa.Frame{Kind: mpa.Request, Rev: 2, CRC: crc, Markers: markers, Enhanced: true, Conn: e}.Append(nil))
	f := p.frame()
	p.enc = mpa.Encoder{CRC: crc, Markers: f.Markers}
	p.dec = mpa.Decoder{CRC: crc, Markers: markers}
	return p, ready()
}

// asResponder makes q an Initiator with configuration cfg, and p the Responder. p has received the
// ready message.
func asResponder(t testing.TB, cfg *Config) (*peer, *QueuePair) {
	t.Helper()
	c := cfg.clone()
	c.Interop.NoNudge = true // on a slow machine, a nudge could be sent at any moment
	p, q := asResponderWith(t, c, usualReply)
	u := p.next()
	if got := hex.EncodeToString(u); got != "c140000000010000000000000000" {
		t.Fatalf("ready message %s", got)
	}
	return p, q
}

var usualReply = mpa.Frame{Kind: mpa.Reply, Rev: 2, CRC: true, Enhanced: true,
	Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}}

// asResponderWith does the same as asResponder with another Reply, but p has received no FPDU.
func asResponderWith(t testing.TB, cfg *Config, reply mpa.Frame) (*peer, *QueuePair) {
	t.Helper()
	p, ready := newPeer(t, Client, cfg)
	f := p.frame()
	p.raw(reply.Append(nil))
	p.enc = mpa.Encoder{CRC: f.CRC || reply.CRC, Markers: f.Markers}
	p.dec = mpa.Decoder{CRC: f.CRC || reply.CRC, Markers: reply.Markers}
	return p, ready()
}

func (p *peer) raw(b []byte) {
	p.t.Helper()
	p.c.SetWriteDeadline(time.Now().Add(patience))
	if _, err := p.c.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// more waits until bytes arrive, for patience at most, and appends them to p.buf.
func (p *peer) more() error {
	var b [64 << 10]byte
	p.c.SetReadDeadline(time.Now().Add(patience))
	n, err := p.c.Read(b[:])
	p.buf = append(p.buf, b[:n]...)
	return err
}

// frame reads and returns a start-up frame.
func (p *peer) frame() mpa.Frame {
	p.t.Helper()
	for {
		f, n, err := mpa.ParseFrame(p.buf)
		if err == nil {
			f.Private = bytes.Clone(f.Private)
			p.buf = p.buf[n:]
			return f
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			p.t.Fatal(err)
		}
		if err := p.more(); err != nil {
			p.t.Fatal(err)
		}
	}
}

// ulpdu sends each of us in an FPDU.
func (p *peer) ulpdu(us ...[]byte) {
	p.t.Helper()
	var b []byte
	for _, u := range us {
		b = p.enc.Append(b, u)
	}
	p.raw(b)
}

// next returns the next ULPDU. It fails the test if there is none.
func (p *peer) next() []byte {
	p.t.Helper()
	u, err := p.tryNext()
	if err != nil {
		p.t.Fatalf("expected an FPDU: %v", err)
	}
	return u
}

func (p *peer) tryNext() ([]byte, error) {
	for {
		u, n, err := p.dec.Next(p.buf)
		if err != nil {
			p.t.Fatal(err)
		}
		if n > 0 {
			u = bytes.Clone(u)
			p.buf = p.buf[n:]
			return u, nil
		}
		if err := p.more(); err != nil {
			return nil, err
		}
	}
}

// silence fails the test if anything arrives within five seconds. It is for tests in a bubble,
// where that takes no real time.
func (p *peer) silence() {
	p.t.Helper()
	if _, ok := bubbles.Load(p.t.Name()); !ok {
		p.t.Fatal("silence can only be heard in a bubble")
	}
	if len(p.buf) > 0 {
		p.t.Fatalf("expected silence, have %x", p.buf)
	}
	var b [1]byte
	p.c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := p.c.Read(b[:]); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("expected silence, got %d bytes, %v", n, err)
	}
}

// terminate expects that the next FPDU is a Terminate with the RDMAP header want, and that FIN
// follows, not RST. [RDMAP-5.4-8] [RDMAP-6.2.1-4] [DDP-6.2.2-4]
func (p *peer) terminate(want []byte) {
	p.t.Helper()
	u := p.next()
	const head = "41470000000000000002" + "00000001" + "00000000" // QN 2, MSN 1, MO 0
	if got := hex.EncodeToString(u); got != head+hex.EncodeToString(want) {
		p.t.Fatalf("Terminate\n got %s\nwant %s%x", got, head, want)
	}
	p.fin()
}

// fin expects the orderly end of the stream, and closes the connection.
func (p *peer) fin() {
	p.t.Helper()
	if u, err := p.tryNext(); err != io.EOF {
		p.t.Fatalf("expected FIN, got %x, %v", u, err)
	}
	p.c.Close()
}

// ended waits for the end of q and returns its reason.
func ended(t testing.TB, q *QueuePair) error {
	t.Helper()
	select {
	case <-q.Ended():
	case <-time.After(patience):
		t.Fatal("stream did not end")
	}
	return q.Err()
}

func wantTerminate(t testing.TB, err error, remote bool, layer, typ, code uint8) *TerminateError {
	t.Helper()
	e, ok := errors.AsType[*TerminateError](err)
	if !ok || e.Remote != remote || e.Layer != layer || e.Type != typ || e.Code != code {
		t.Fatalf("error %v (%T), want Terminate %d/%d/%02x, remote %t", err, err, layer, typ, code, remote)
	}
	return e
}

// seg returns an Untagged ULPDU.
func seg(o rdmap.Opcode, qn uint32, msn ddp.MSN, mo uint32, last bool, body []byte) []byte {
	h := o.UntaggedHeader(msn, mo, last, 0)
	h.QN = qn
	return append(h.Append(nil), body...)
}

// tag returns a Tagged ULPDU.
func tag(o rdmap.Opcode, stag uint32, to uint64, last bool, body []byte) []byte {
	return append(o.TaggedHeader(stag, to, last).Append(nil), body...)
}

func readReq(msn ddp.MSN, r rdmap.ReadRequest) []byte {
	return seg(rdmap.ReadRequestOp, 1, msn, 0, true, r.Append(nil))
}

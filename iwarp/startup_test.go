package iwarp

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

const (
	requestHex = "4d504120494420526571204672616d65"
	replyHex   = "4d504120494420526570204672616d65"
)

// readAll reads until the end of c. It returns the bytes, and the error at the end.
func readAll(t *testing.T, c net.Conn) ([]byte, error) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("connection stayed open")
	}
	return b, err
}

// TestFirstBytes checks the first frames of an Initiator and a Responder, by default and with
// several configurations. [MPA-7.1.2-1] [MPA-4.4-2] [MPA-4.4-3] [MPA-1.2-2] [MPA-7.1-3] [MPA2-5-1]
// [DDP-3-7] [I-01] [I-05] [I-06]
func TestFirstBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  *Config
		hex  string
	}{
		{"default", nil, "50020004" + "8010c010"},
		{"client-server", &Config{Interop: Interop{ClientServer: true}}, "50020004" + "00100010"},
		{"plain", &Config{Interop: Interop{Plain: true}}, "40010000"}, // [MPA2-10-3]
		{"CRC off by the administrator", &Config{Device: NewDevice(DeviceConfig{NoCRC: true})}, "10020004" + "8010c010"},
		{"markers and private data", &Config{Interop: Interop{Markers: true}, Private: []byte{1, 2}}, "d0020006" + "8010c010" + "0102"}, // [MPA-7.1.2-2]
		{"depths settled by the ULP", &Config{Interop: Interop{ULPDepth: true}}, "50020004" + "bfffffff"},
		{"no reads", &Config{IRD: -1, ORD: -1}, "50020004" + "8000c000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := testkit.TCPPair(t)
			defer a.Close()
			ctx, cancel := context.WithCancel(context.Background())
			got := make(chan error, 1)
			go func() {
				_, err := Client(ctx, b, c.cfg)
				got <- err
			}()
			want, _ := hex.DecodeString(requestHex + c.hex)
			buf := make([]byte, len(want))
			if _, err := io.ReadFull(a, buf); err != nil || !bytes.Equal(buf, want) {
				t.Errorf("Request %x, %v; want %x", buf, err, want)
			}
			a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if n, _ := a.Read(buf); n > 0 { // nothing may follow [MPA-7.1.2-11] [I-11]
				t.Errorf("%d bytes behind the Request", n)
			}
			cancel()
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
}

// TestMalformedRequest checks that the Responder closes without an answer, and returns an error
// that names the reason. [MPA-7.1.2-3] [MPA-7.1.2-4] [MPA-7.1.2-16] [MPA-7.1.2-22] [MPA-8-6]
// [MPA-7.1.1-2] [MPA-7.1.1-17] [MPA-7.1.1-20] [MPA-7.1.2-24] [MPA-C-2] [I-11]
func TestMalformedRequest(t *testing.T) {
	for _, c := range []struct{ name, hex string }{
		{"key", "4d504120494420526571204672616d66" + "40010000"},
		{"other protocol", hex.EncodeToString([]byte("GET / HTTP/1.1\r\n\r\n"))},
		{"a Reply", replyHex + "40010000"},
		{"revision 0", requestHex + "c0000000"},
		{"revision 3", requestHex + "40030000"},
		{"revision 255", requestHex + "40ff0000"},
		{"private data of 513", requestHex + "40010201"},
		{"private data of 65535", requestHex + "4001ffff"},
		{"enhanced without the block", requestHex + "50020003" + "000000"},
		{"bytes behind", requestHex + "40010000" + "00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := testkit.TCPPair(t)
			defer a.Close()
			got := make(chan error, 1)
			go func() {
				_, err := Server(ctxt(t), b, nil)
				got <- err
			}()
			wire, _ := hex.DecodeString(c.hex)
			a.Write(wire)
			if b, _ := readAll(t, a); len(b) > 0 {
				t.Errorf("answer %x", b)
			}
			if e, ok := errors.AsType[*mpa.Error](<-got); !ok || e.Code != mpa.CodeFrame {
				t.Errorf("error %v", e)
			}
		})
	}
	t.Run("cut short", func(t *testing.T) { // [MPA-7.1.1-20]
		a, b := testkit.TCPPair(t)
		wire, _ := hex.DecodeString(requestHex + "40010008" + "0102")
		a.Write(wire)
		a.(*net.TCPConn).CloseWrite()
		_, err := Server(ctxt(t), b, nil)
		if e, ok := errors.AsType[*mpa.Error](err); !ok || e.Code != mpa.CodeClosed ||
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v", err)
		}
		a.Close()
	})
}

// TestMalformedReply checks that the Initiator closes without an answer, and returns an error that
// names the reason. [MPA-7.1.2-12] [MPA-7.1.2-16] [MPA-7.1.1-4] [MPA-7.1.2-20] [MPA-8-6] [I-04]
// [I-38]
func TestMalformedReply(t *testing.T) {
	for _, c := range []struct{ name, hex string }{
		{"key", "4d504120494420526570204672616d66" + "5002000480108010"},
		{"a Request", requestHex + "5002000480108010"},
		{"revision 1", replyHex + "40010000"},
		{"revision 3", replyHex + "5003000480108010"},
		{"not enhanced", replyHex + "40020000"},
		{"private data of 513", replyHex + "50020201"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := testkit.TCPPair(t)
			defer a.Close()
			got := make(chan error, 1)
			go func() {
				_, err := Client(ctxt(t), b, nil)
				got <- err
			}()
			io.ReadFull(a, make([]byte, 24))
			wire, _ := hex.DecodeString(c.hex)
			a.Write(wire)
			if b, _ := readAll(t, a); len(b) > 0 {
				t.Errorf("answer %x", b)
			}
			if e, ok := errors.AsType[*mpa.Error](<-got); !ok || e.Code != mpa.CodeFrame {
				t.Errorf("error %v", e)
			}
		})
	}
}

// TestStartupTerminates checks that the first FPDU of an Initiator is a Terminate if it cannot
// agree to a valid Reply. [MPA2-8-1] [MPA2-9.1-9] [MPA2-9.1-12] [MPA2-9.1-13] [MPA2-9.2-11]
// [MPA2-9.2-12] [I-38]
func TestStartupTerminates(t *testing.T) {
	for _, c := range []struct {
		name string
		e    mpa.Enhanced
		code uint8
	}{
		{"ORD above our maximum", mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 16000}, 6},
		{"RTR not offered", mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRSend, IRD: 1}, 7},
		{"no RTR", mpa.Enhanced{PeerToPeer: true, IRD: 1}, 7},
		{"read RTR without depth", mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRRead}, 7},
	} {
		for _, markers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/markers=%t", c.name, markers), func(t *testing.T) {
				a, b := testkit.TCPPair(t)
				p := &peer{t: t, c: a, dec: mpa.Decoder{CRC: true, Markers: markers}}
				got := make(chan error, 1)
				var log bytes.Buffer
				go func() {
					_, err := Client(ctxt(t), b, &Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
					got <- err
				}()
				p.frame()
				p.raw(mpa.Frame{Kind: mpa.Reply, Rev: 2, Markers: markers, Enhanced: true, Conn: c.e}.Append(nil))
				p.terminate([]byte{0x20, c.code, 0, 0})
				wantTerminate(t, <-got, false, 2, 0, c.code)
				if strings.Contains(log.String(), "stream up") || !strings.Contains(log.String(), "terminate sent") {
					t.Errorf("it is told that %s", log.String())
				}
			})
		}
	}
}

// TestFailedStartLogs checks that the log has the peer's address if the start of an Initiator fails
// before the stream is up.
func TestFailedStartLogs(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare error
		reply   mpa.Frame
	}{
		{"Prepare fails", errors.New("not prepared"), mpa.Frame{}},
		{"the peer rejects", nil, mpa.Frame{Kind: mpa.Reply, Rev: 2, Reject: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := testkit.TCPPair(t)
			p := &peer{t: t, c: a}
			var log bytes.Buffer
			got := make(chan error, 1)
			go func() {
				_, err := Client(ctxt(t), b, &Config{Logger: slog.New(slog.NewTextHandler(&log, nil)),
					Prepare: func(*QueuePair) error { return c.prepare }})
				got <- err
			}()
			if c.prepare == nil {
				p.frame()
				p.raw(c.reply.Append(nil))
			}
			if err := <-got; err == nil || !strings.Contains(log.String(), "remote="+b.RemoteAddr().String()) {
				t.Errorf("%v; the log has %q", err, log.String())
			}
		})
	}
}

// TestFirstFPDU checks that a Responder sends nothing before it has received one valid FPDU, and
// accepts any valid FPDU as the first. [MPA-7.1.2-15] [MPA-7.1.2-10] [MPA-7.1-6] [DDP-6.1-1] [I-21]
func TestFirstFPDU(t *testing.T) {
	enhanced := mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite | mpa.RTRRead | mpa.RTRSend, IRD: 1, ORD: 1}
	for _, c := range []struct {
		name string
		u    []byte
		recv int // number of receives that are used up
		next string
	}{
		{"write", tag(rdmap.Write, 1, 0, true, nil), 0, "4143"},
		{"read", readReq(1, rdmap.ReadRequest{SinkSTag: 7, SinkTO: 8}), 0, "c142"},
		{"a Send as first message", seg(rdmap.Send, 0, 1, 0, true, []byte("hi")), 1, "4143"},
	} {
		runInBubble(t, c.name, func(t *testing.T) {
			p, q := asSilentInitiator(t, &Config{Prepare: func(q *QueuePair) error {
				return q.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}})
			}}, enhanced, false)
			if err := q.Post(SendWR{SG: []SGE{Buf([]byte("early"))}}); err != nil {
				t.Fatal(err)
			}
			p.silence()
			p.ulpdu(c.u)
			if u := p.next(); hex.EncodeToString(u[:2]) != c.next {
				t.Errorf("first FPDU of the Responder: %x", u)
			}
			if got := 1 - q.recvs.rq.wait.Len(); got != c.recv {
				t.Errorf("%d receives used up, want %d", got, c.recv)
			}
		})
	}
	t.Run("bad CRC", func(t *testing.T) { // allows nothing to be sent, not even a Terminate [I-38]
		p, q := asSilentInitiator(t, nil, enhanced, false)
		q.Post(SendWR{})
		b := p.enc.Append(nil, tag(rdmap.Write, 1, 0, true, nil))
		b[len(b)-1] ^= 1
		p.raw(b)
		p.fin()
		wantTerminate(t, ended(t, q), false, 2, 0, 2)
	})
	t.Run("Terminate of a failed start-up, without CRC", func(t *testing.T) { // [I-31]
		p, q := asSilentInitiator(t, nil, enhanced, false)
		var enc mpa.Encoder
		p.raw(enc.Append(nil, seg(rdmap.TerminateOp, 2, 1, 0, true, []byte{0x02, 7, 0, 0})))
		p.fin()
		err := ended(t, q)
		wantTerminate(t, err, false, 2, 0, 2)
		if want := "looks like a Terminate"; !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("error %q does not say %q", err, want)
		}
	})
	t.Run("valid FPDU, invalid DDP", func(t *testing.T) { // [I-38]
		p, q := asSilentInitiator(t, nil, enhanced, false)
		bad := seg(rdmap.Send, 9, 1, 0, true, nil)
		p.ulpdu(bad)
		p.terminate(append([]byte{0x12, 1, 0xc0, 0, 0, 18}, bad...))
		wantTerminate(t, ended(t, q), false, 1, 2, 1)
	})
	t.Run("none within the time", func(t *testing.T) { // [I-14]
		_, q := asSilentInitiator(t, &Config{Responder: ResponderConfig{FirstFPDUTimeout: 50 * time.Millisecond}}, enhanced, false)
		if err := ended(t, q); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("early responder", func(t *testing.T) { // [MPA-7.1.2-15] lifted [I-77]
		p, q := asSilentInitiator(t, &Config{Interop: Interop{EarlyResponder: true}}, mpa.Enhanced{}, false)
		q.Post(SendWR{SG: []SGE{Buf([]byte("x"))}})
		if u := p.next(); string(u[18:]) != "x" {
			t.Errorf("%x", u)
		}
	})
	t.Run("send RTR", func(t *testing.T) { // the ready message uses MSN 1 and no receive [I-08]
		p, q := asSilentInitiator(t, nil, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRSend}, false)
		sink := make([]byte, 8)
		q.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})
		p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil), seg(rdmap.Send, 0, 2, 0, true, []byte("two")))
		if c := wantOK(t, q.RecvCQ()); c.Len != 3 || string(sink[:3]) != "two" {
			t.Errorf("%+v", c)
		}
	})
}

// TestInitiatorFirstFPDU checks that the first FPDU an Initiator receives has no special meaning: a
// zero-length Send takes a receive. [MPA-7.1.2-15] [I-08] [I-21]
func TestInitiatorFirstFPDU(t *testing.T) {
	for _, rtr := range []mpa.RTR{mpa.RTRWrite, mpa.RTRSend} {
		reply := usualReply
		reply.Conn.RTR = rtr
		p, q := asResponderWith(t, &Config{rtr: rtr, Interop: Interop{NoNudge: true}}, reply)
		p.next()
		q.PostRecv(RecvWR{ID: 5})
		p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
		if c := wantOK(t, q.RecvCQ()); c.ID != 5 || c.Len != 0 {
			t.Errorf("%v: %+v", rtr, c)
		}
	}
}

// TestReadyMessages checks that the Initiator sends the agreed ready message before all posted
// requests. [MPA2-5-2] [MPA2-9.2-10] [MPA2-9.3-1]
func TestReadyMessages(t *testing.T) {
	for _, c := range []struct {
		offer, answer mpa.RTR
		want          string
		next          string // MSN of the Send that was posted early
	}{
		{0, mpa.RTRWrite, "c140000000010000000000000000", "00000001"},
		{0, mpa.RTRRead, "414100000000" + "00000001" + "00000001" + "00000000" + "00000000" + "0000000000000000" + "00000000" + "00000001" + "0000000000000000", "00000001"},
		{mpa.RTRSend, mpa.RTRSend, "414300000000" + "00000000" + "00000001" + "00000000", "00000002"},
	} {
		runInBubble(t, c.answer.String(), func(t *testing.T) {
			p, q := asResponderWith(t, &Config{rtr: c.offer, Interop: Interop{NoNudge: true},
				Prepare: func(q *QueuePair) error { return q.Post(SendWR{}) }},
				mpa.Frame{Kind: mpa.Reply, Rev: 2, CRC: true, Enhanced: true,
					Conn: mpa.Enhanced{PeerToPeer: true, RTR: c.answer, IRD: 2}})
			if got := hex.EncodeToString(p.next()); got != c.want {
				t.Errorf("ready message %s, want %s", got, c.want)
			}
			if u := p.next(); hex.EncodeToString(u[10:14]) != c.next {
				t.Errorf("Send %x, want MSN %s", u, c.next)
			}
			// The ready message has used MSN 1 and a slot, and has no completion.
			if c.answer == mpa.RTRRead {
				q.Post(SendWR{Op: OpRead, Remote: RemoteAddr{STag: 9}, SG: []SGE{Buf(make([]byte, 4))}})
				q.Post(SendWR{Op: OpRead, Remote: RemoteAddr{STag: 9}, SG: []SGE{Buf(make([]byte, 4))}})
				if u := p.next(); hex.EncodeToString(u[10:14]) != "00000002" {
					t.Errorf("first Read %x", u)
				}
				p.silence() // ORD is 2, which the ready message and one Read use up
				p.ulpdu(tag(rdmap.ReadResponse, 0, 0, true, nil))
				if u := p.next(); hex.EncodeToString(u[10:14]) != "00000003" {
					t.Errorf("second Read %x", u)
				}
			}
		})
	}
}

// TestNudge checks that an unanswered first FPDU is followed by a zero-length Write, three times at
// most, and an answered one by none. [I-10] [RDMAP-5.1-8]
func TestNudge(t *testing.T) { inBubble(t, testNudge) }

func testNudge(t *testing.T) {
	const empty = "c140000000010000000000000000"
	p, _ := asResponderWith(t, nil, usualReply)
	var first time.Time
	for i, at := range []time.Duration{0, 20, 120, 620} {
		if got := hex.EncodeToString(p.next()); got != empty {
			t.Errorf("FPDU %s", got)
		}
		if i == 0 {
			first = time.Now()
		}
		if d := time.Since(first); d != at*time.Millisecond {
			t.Errorf("nudge %d after %v, want %d ms", i, d, at)
		}
	}
	p.silence()
	p, _ = asResponderWith(t, &Config{Interop: Interop{NoNudge: true}}, usualReply)
	p.next()
	p.silence()
	p, _ = asResponderWith(t, &Config{Prepare: func(q *QueuePair) error { return q.Post(SendWR{}) }}, usualReply)
	// The messages must arrive in this order, however many were sent at once.
	for _, want := range []string{empty[:4], "4143", empty[:4]} {
		if got := hex.EncodeToString(p.next()[:2]); got != want {
			t.Errorf("FPDU %s, want %s", got, want)
		}
	}
}

func TestFirstFPDUDelay(t *testing.T) {
	const d = 60 * time.Millisecond
	start := time.Now()
	p, _ := asResponderWith(t, &Config{Interop: Interop{FirstFPDUDelay: d}}, mpa.Frame{Kind: mpa.Reply, Rev: 2, CRC: true, Enhanced: true,
		Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite}})
	p.next()
	if time.Since(start) < d {
		t.Error("first FPDU came at once")
	}
}

// TestUntunable checks that a connection whose options cannot be set as configured is not used, and
// is closed. [MPA-5.1-3] [DDP-A-1]
func TestUntunable(t *testing.T) {
	for name, begin := range map[string]func(context.Context, net.Conn, *Config) (*QueuePair, error){"Client": Client, "Server": Server} {
		a, b := testkit.TCPPair(t)
		if _, err := begin(ctxt(t), b, &Config{Congestion: "no such algorithm"}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if b, _ := readAll(t, a); len(b) > 0 {
			t.Errorf("%s: %x was sent", name, b)
		}
		a.Close()
	}
}

// TestReceiveWindow checks that a peer may have many unread segments outstanding: the receive
// buffer is as large as the system makes it.
func TestReceiveWindow(t *testing.T) {
	t.Run("DDP-A-1", func(t *testing.T) {
		const segments, size = 32, 1460
		a, b := testkit.TCPPair(t)
		defer a.Close()
		a.(*net.TCPConn).SetWriteBuffer(4096) // so that the receiver holds the segments
		a.SetWriteDeadline(time.Now().Add(patience))
		if _, err := a.Write(mpa.Frame{Kind: mpa.Request, Rev: 2, CRC: true, Enhanced: true, Conn: mpa.Enhanced{IRD: 16, ORD: 16}}.Append(nil)); err != nil {
			t.Fatal(err)
		}
		r, err := ReadRequest(ctxt(t), b, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Reject(nil)
		for taken := 0; taken < segments*size; {
			n, err := a.Write(make([]byte, size))
			if taken += n; err != nil {
				t.Fatalf("%d bytes outstanding, want %d: %v", taken, segments*size, err)
			}
		}
	})
}

func rejectKeep(r *Request, private []byte) error {
	_, err := r.RejectKeep(private)
	return err
}

var errBroken = errors.New("broken")

// A brokenConn fails writes if broken is true, and records that it was closed.
type brokenConn struct {
	net.Conn
	broken bool
	closed atomic.Bool
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.broken {
		return 0, errBroken
	}
	return c.Conn.Write(p)
}

func (c *brokenConn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

func (c *brokenConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// TestAcceptLost: if the Reply cannot be sent, Accept returns the error, and nothing is left of the
// stream. [MPA-7.1.2-8] [MPA-7.1.2-15]
func TestAcceptLost(t *testing.T) {
	a, b := testkit.TCPPair(t)
	dial := make(chan error, 1)
	go func() {
		_, err := Client(ctxt(t), a, nil)
		dial <- err
	}()
	dev := NewDevice(DeviceConfig{})
	r, err := ReadRequest(ctxt(t), b, nil, &Config{Device: dev})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(dev.Streams()); n != 1 {
		t.Fatalf("%d streams before Accept", n)
	}
	r.nc.Close()
	if q, err := r.Accept(nil); q != nil || err == nil {
		t.Fatalf("accepted, error %v", err)
	}
	if n := len(dev.Streams()); n != 0 {
		t.Errorf("%d streams are left", n)
	}
	if err := <-dial; err == nil {
		t.Error("the other end connected")
	}
}

// TestReject tests a rejection by the ULP, with private data and depths, and whether the TCP
// connection is closed or kept. [MPA-7.1.2-5] [MPA-7.1.2-6] [MPA-7.1.2-7] [MPA-7.1.2-13]
// [MPA-7.1.2-18] [MPA-7.1.4.2-1] [MPA2-9.1-14] [MPA2-10-1] [I-15] [I-16]
func TestReject(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%t", keep), func(t *testing.T) {
			a, b := testkit.TCPPair(t)
			got := make(chan error, 1)
			go func() {
				_, err := Client(ctxt(t), a, &Config{Initiator: InitiatorConfig{KeepConn: keep}, Private: []byte("please")})
				got <- err
			}()
			r, err := ReadRequest(ctxt(t), b, nil, &Config{Responder: ResponderConfig{MinORD: 5}})
			if err != nil {
				t.Fatal(err)
			}
			if p := r.QueuePair().Params(); string(r.Private()) != "please" || p.PeerIRD != 16 || p.PeerORD != 16 || p.Rev != 2 || r.RemoteAddr() == nil { // [MPA2-9.1-4]
				t.Errorf("Request %+v", p)
			}
			if err := r.Reject(make([]byte, 300)); !errors.Is(err, mpa.ErrPrivateTooLong) {
				t.Errorf("long reason: %v", err)
			}
			var bare net.Conn
			if keep {
				if _, err := r.RejectKeep(make([]byte, 300)); !errors.Is(err, mpa.ErrPrivateTooLong) {
					t.Errorf("long reason, connection kept: %v", err)
				}
				if bare, err = r.RejectKeep([]byte("no")); err != nil {
					t.Fatal(err)
				}
			} else if err := r.Reject([]byte("no")); err != nil {
				t.Fatal(err)
			}
			err = <-got
			re, ok := errors.AsType[*RejectedError](err)
			if !ok || string(re.Private) != "no" || re.ORD != 16 || (re.Conn != nil) != keep || re.Error() == "" {
				t.Fatalf("%#v", err)
			}
			if keep { // plain TCP continues in both directions
				defer re.Conn.Close()
				defer bare.Close()
				for _, c := range [][2]net.Conn{{bare, re.Conn}, {re.Conn, bare}} {
					c[0].Write([]byte("tcp"))
					buf := make([]byte, 3)
					if _, err := io.ReadFull(c[1], buf); err != nil || string(buf) != "tcp" {
						t.Errorf("%q, %v", buf, err)
					}
				}
			}
		})
	}
	for _, c := range []struct {
		name    string
		reject  func(r *Request, private []byte) error
		private int
		broken  bool
		want    error
		closed  bool // whether the connection is closed
		over    bool // whether the future stream has ended
	}{
		{"closes", (*Request).Reject, 2, false, nil, true, true},
		{"closes what is lost", (*Request).Reject, 2, true, errBroken, true, true},
		{"stays open", (*Request).Reject, 300, false, mpa.ErrPrivateTooLong, false, false},
		{"is kept", rejectKeep, 2, false, nil, false, true},
		{"closes what is lost and was to be kept", rejectKeep, 2, true, errBroken, true, true},
		{"stays open, to be kept", rejectKeep, 300, false, mpa.ErrPrivateTooLong, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := NewDevice(DeviceConfig{})
			a, b := testkit.TCPPair(t)
			defer a.Close()
			defer b.Close()
			go func() { // the peer also closes after the rejection
				a.Write(mpa.Frame{Kind: mpa.Request, Rev: 2, Enhanced: true}.Append(nil))
				io.Copy(io.Discard, a)
				a.Close()
			}()
			wrapped := &brokenConn{Conn: b, broken: c.broken}
			r, err := ReadRequest(ctxt(t), b, nil,
				&Config{Device: dev, WrapConn: func(net.Conn) net.Conn { return wrapped }})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.reject(r, make([]byte, c.private)); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if over := r.QueuePair().Err() != nil; wrapped.closed.Load() != c.closed ||
				over != c.over || over != (len(dev.Streams()) == 0) {
				t.Errorf("closed %t, over %t: %v, %d streams", wrapped.closed.Load(), over,
					r.QueuePair().Err(), len(dev.Streams()))
			}
			if !c.over {
				r.Reject(nil)
			}
		})
	}
	t.Run("too few reads", func(t *testing.T) { // [MPA2-9.1-8] [I-17]
		a, b := testkit.TCPPair(t)
		got := make(chan error, 1)
		go func() {
			_, err := Client(ctxt(t), a, &Config{IRD: 3})
			got <- err
		}()
		_, err := Server(ctxt(t), b, &Config{Responder: ResponderConfig{MinORD: 4}})
		if e, ok := errors.AsType[*mpa.Error](err); !ok || e.Code != mpa.CodeInsufficientIRD {
			t.Error(err)
		}
		if re, ok := errors.AsType[*RejectedError](<-got); !ok || re.ORD < 4 {
			t.Errorf("%+v", re)
		}
	})
}

// TestPrivateData sends private data in both directions, in all lengths where the behavior
// changes. [MPA-7.1.1-19] [MPA-7.1.1-21] [MPA-7.1.1-22] [MPA-7.1.2-9] [MPA-7.1.2-17] [I-12]
func TestPrivateData(t *testing.T) {
	for _, c := range []struct {
		n, max int
		plain  bool
	}{{0, 0, false}, {1, 0, false}, {252, 0, false}, {256, 0, true}, {508, 512, false}, {512, 512, true}} {
		want := pattern(c.n, 3)
		a, b := connect(t, &Config{Private: want, Interop: Interop{MaxPrivate: c.max, Plain: c.plain}},
			&Config{Private: want, Interop: Interop{MaxPrivate: c.max}})
		if !bytes.Equal(a.PeerPrivate(), want) || !bytes.Equal(b.PeerPrivate(), want) {
			t.Errorf("%d bytes: %x, %x", c.n, a.PeerPrivate(), b.PeerPrivate())
		}
	}
	a, b := testkit.TCPPair(t)
	defer b.Close()
	if _, err := Client(ctxt(t), a, &Config{Private: make([]byte, 253)}); !errors.Is(err, mpa.ErrPrivateTooLong) {
		t.Error(err)
	}
	if b, _ := readAll(t, b); len(b) > 0 { // nothing was sent
		t.Errorf("%x", b)
	}
}

// TestDepths checks the depths on which both sides agree, as IRD and ORD return them. [MPA2-9.1-4]
// [MPA2-9.1-10] [MPA2-9.1-11] [RDMAP-6.1-4] [I-18] [I-19]
func TestDepths(t *testing.T) {
	for _, c := range []struct {
		ci, cr                 Config
		iIRD, iORD, rIRD, rORD int
	}{
		{Config{}, Config{}, 16, 16, 16, 16},
		{Config{IRD: 3, ORD: 5}, Config{IRD: 7, ORD: 2}, 3, 5, 5, 2},
		{Config{ORD: 500}, Config{}, 16, 128, 128, 16},
		{Config{Interop: Interop{Plain: true}}, Config{}, 16, 1, 16, 1},
		{Config{Interop: Interop{ULPDepth: true}, IRD: 4, ORD: 6}, Config{IRD: 8, ORD: 9}, 4, 6, 8, 9}, // [MPA2-9.1-15] [MPA2-9.1-17]
	} {
		a, b := connect(t, &c.ci, &c.cr)
		if a.IRD() != c.iIRD || a.ORD() != c.iORD || b.IRD() != c.rIRD || b.ORD() != c.rORD {
			t.Errorf("%+v %+v: %d/%d, %d/%d", c.ci.IRD, c.cr.IRD, a.IRD(), a.ORD(), b.IRD(), b.ORD())
		}
		if p := b.Params(); !c.ci.Interop.Plain && !c.ci.Interop.ULPDepth && (int(p.PeerIRD) != a.IRD() || p.PeerORD != c.ci.ord()) {
			t.Errorf("peer's depths %d, %d", p.PeerIRD, p.PeerORD)
		}
	}
	a, _ := connect(t, &Config{Interop: Interop{Plain: true}}, nil)
	if err := a.SetORD(16); err != nil || a.ORD() != 16 {
		t.Error(err)
	}
	if err := a.SetORD(17); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := a.SetIRD(3); err != nil || a.IRD() != 3 {
		t.Error(err)
	}
	if err := a.SetIRD(1000); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	a, _ = connect(t, &Config{rtr: mpa.RTRWrite}, &Config{MaxIRD: -1, IRD: -1})
	if err := a.Post(SendWR{Op: OpRead}); a.ORD() != 0 || !errors.Is(err, ErrNoReads) {
		t.Error(a.ORD(), err)
	}
}

// TestLateStart starts MPA on a connection that has carried other data, with the TCP server as
// Initiator, and with bytes of the Request the caller has read already. [MPA-7.1-1] [MPA-7.1-4]
// [MPA-7.1-7] [MPA-7.1.5-1] [I-74]
func TestLateStart(t *testing.T) {
	a, b := testkit.TCPPair(t) // b is the TCP server
	for _, c := range [][2]net.Conn{{a, b}, {b, a}} {
		c[0].Write([]byte("hello"))
		io.ReadFull(c[1], make([]byte, 5))
	}
	ch := make(chan *QueuePair, 1)
	go func() {
		q, err := Server(ctxt(t), a, nil)
		if err != nil {
			t.Error(err)
		}
		ch <- q
	}()
	qi, err := Client(ctxt(t), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	qr := <-ch
	transfer(t, qi, qr, 5000)
	closeBoth(qi, qr)

	a, b = testkit.TCPPair(t)
	go func() {
		// Half of the frame is in the buffer of the caller's reader.
		r, err := ReadRequest(ctxt(t), a, func() []byte {
			buf := make([]byte, 10)
			io.ReadFull(a, buf)
			return buf
		}(), nil)
		if err != nil {
			t.Error(err)
		}
		q, _ := r.Accept(nil)
		ch <- q
	}()
	if qi, err = Client(ctxt(t), b, nil); err != nil {
		t.Fatal(err)
	}
	qr = <-ch
	transfer(t, qi, qr, 5000)
	closeBoth(qi, qr)
}

// TestTimers checks that the timers limit start-up as a whole, not each byte. [MPA-7.1.2-21]
// [MPA-7.1.2-25] [I-14]
func TestTimers(t *testing.T) {
	trickle := func(c net.Conn, stop chan struct{}) {
		// The frame is so long that it can't be complete when a busy machine begins to read late.
		f := mpa.Frame{Kind: mpa.Request, Rev: 1, Private: make([]byte, 500)}.Append(nil)
		for i := range f {
			select {
			case <-stop:
				return
			case <-time.After(30 * time.Millisecond):
			}
			c.Write(f[i : i+1])
		}
	}
	a, b := testkit.TCPPair(t)
	stop := make(chan struct{})
	go trickle(a, stop)
	_, err := Server(ctxt(t), b, &Config{Responder: ResponderConfig{RequestTimeout: 100 * time.Millisecond}})
	close(stop)
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
		t.Error(err)
	}
	a.Close()
	a, b = testkit.TCPPair(t)
	_, err = Client(ctxt(t), b, &Config{Initiator: InitiatorConfig{ReplyTimeout: 50 * time.Millisecond}})
	if !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	a.Close()
	// The handshake of TLS has the limit of its side.
	for name, cfg := range map[string]*Config{
		"Initiator": {Initiator: InitiatorConfig{ReplyTimeout: 50 * time.Millisecond}, Responder: ResponderConfig{RequestTimeout: -1}},
		"Responder": {Initiator: InitiatorConfig{ReplyTimeout: -1}, Responder: ResponderConfig{RequestTimeout: 50 * time.Millisecond}},
	} {
		a, b = testkit.TCPPair(t)
		cfg.TLS = &tls.Config{InsecureSkipVerify: true}
		start := Client
		if name == "Responder" {
			start = Server
		}
		ctx := ctxt(t)
		if _, err := start(ctx, b, cfg); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("%s: %v, %v", name, err, ctx.Err())
		}
		a.Close()
	}
}

// TestPlainFallback checks that Dial makes a second connection in revision 1 if the first was
// closed without an answer, and only if PlainFallback is set. [MPA2-10-8] [MPA2-10-7] [I-02]
func TestPlainFallback(t *testing.T) {
	l, err := Listen("127.0.0.1:0", &Config{Interop: Interop{PlainOnly: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Dial(ctxt(t), l.Addr().String(), nil); err == nil ||
		!bytes.Contains([]byte(err.Error()), []byte("revision 1")) {
		t.Errorf("without fallback: %v", err)
	}
	go func() {
		q, err := l.Accept(ctxt(t))
		if err != nil {
			t.Error(err)
			return
		}
		q.Close()
	}()
	q, err := Dial(ctxt(t), l.Addr().String(), &Config{Interop: Interop{PlainFallback: true}})
	if err != nil {
		t.Fatal(err)
	}
	if q.Params().Rev != 1 {
		t.Errorf("%+v", q.Params())
	}
	q.Close()
}

// TestListener tests the limits, the filter, and Close. [SEC-6.4.1-1] [SEC-6.4.1-2] [I-70]
func TestListener(t *testing.T) {
	l, err := Listen("127.0.0.1:0", &Config{Responder: ResponderConfig{MaxPendingPerHost: 2, RequestTimeout: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			l.mu.Lock()
			n := l.pending + int(l.refused)
			l.mu.Unlock()
			if n == len(conns) {
				break
			}
		}
	}
	if b, _ := readAll(t, conns[2]); len(b) > 0 || l.Refused() != 1 {
		t.Errorf("third connection: %x, refused %d", b, l.Refused())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	l.Close()
	if _, err := l.Accept(ctxt(t)); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	for _, c := range conns[:2] { // start-ups in progress end with the listener
		readAll(t, c)
	}

	l, _ = Listen("127.0.0.1:0", &Config{Responder: ResponderConfig{Filter: func(a net.Addr) bool {
		return !a.(*net.TCPAddr).AddrPort().Addr().Unmap().Is4() ||
			a.(*net.TCPAddr).AddrPort().Addr().Unmap() != netip.MustParseAddr("127.0.0.1")
	}}})
	defer l.Close()
	if _, err := Dial(ctxt(t), l.Addr().String(), nil); err == nil || l.Refused() != 1 {
		t.Errorf("filtered: %v, %d", err, l.Refused())
	}
}

// TestListenerShortage: a Listener goes on after accepts that failed because there was no free
// descriptor.
func TestListenerShortage(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(testkit.Shortage(nl, 3), nil)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		q, err := l.Accept(ctxt(t))
		if err == nil {
			q.Close()
		}
		accepted <- err
	}()
	q, err := Dial(ctxt(t), l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// TestListenerHere checks that by default this host may have as many start-ups in progress as the
// Listener allows in all, and another host fewer. [SEC-6.4.1-1] [I-70]
func TestListenerHere(t *testing.T) {
	l, err := Listen("127.0.0.1:0", &Config{Responder: ResponderConfig{MaxPending: 100}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for remote, want := range map[string]int{"127.0.0.1": 100, "10.0.0.1": 100, "10.0.0.2": 32} {
		n := 0
		for n < 200 && l.admit(between{net.IPv4(10, 0, 0, 1), net.ParseIP(remote)}, remote) {
			n++
		}
		if n != want {
			t.Errorf("%d start-ups of %s, not %d", n, remote, want)
		}
		for range n {
			l.settled(remote)
		}
	}
}

// A between is a connection that has only addresses.
type between [2]net.IP

func (b between) LocalAddr() net.Addr              { return &net.TCPAddr{IP: b[0], Port: 1} }
func (b between) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: b[1], Port: 2} }
func (between) Read([]byte) (int, error)           { return 0, net.ErrClosed }
func (between) Write([]byte) (int, error)          { return 0, net.ErrClosed }
func (between) Close() error                       { return nil }
func (between) SetDeadline(time.Time) error        { return nil }
func (between) SetReadDeadline(t time.Time) error  { return nil }
func (between) SetWriteDeadline(t time.Time) error { return nil }

// TestTLS tests a stream over TLS, which is offered instead of IPsec. [SEC-5.1-1] [SEC-5.3-1]
// [SEC-5.4-1] [DDP-8.4-1] [DDP-8.4-2] [I-73] [MPA-9.3-1] [MPA-9.4-1] [DDP-8.4.2-1] [RDMAP-8.2.2-1]
// [SEC-5.4-3]
func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"viaduct.test"},
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	mine := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	a, b := connect(t,
		&Config{TLS: &tls.Config{RootCAs: roots, ServerName: "viaduct.test", Certificates: mine}},
		&Config{TLS: &tls.Config{Certificates: mine, ClientCAs: roots, ClientAuth: tls.RequireAnyClientCert}})
	for _, n := range []int{0, 1, 5000, 300000} {
		transfer(t, a, b, n)
		transfer(t, b, a, n)
	}
}

type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// TestWrapConn checks that every byte passes through the connection WrapConn returns.
func TestWrapConn(t *testing.T) {
	var n atomic.Int64
	a, b := connect(t, &Config{WrapConn: func(c net.Conn) net.Conn { return countingConn{c, &n} }}, nil)
	transfer(t, a, b, 10000)
	if n.Load() < 20000 {
		t.Errorf("%d bytes seen", n.Load())
	}
}

func TestPrepareFails(t *testing.T) {
	bad := errors.New("no memory")
	cfg := &Config{Prepare: func(*QueuePair) error { return bad }}
	a, b := testkit.TCPPair(t)
	if _, err := Client(ctxt(t), a, cfg); !errors.Is(err, bad) {
		t.Error(err)
	}
	b.Close()
	a, b = testkit.TCPPair(t)
	a.Write(mpa.Frame{Kind: mpa.Request, Rev: 1}.Append(nil))
	if _, err := Server(ctxt(t), b, cfg); !errors.Is(err, bad) {
		t.Error(err)
	}
	a.Close()
}

// TestBadConfig checks that a contradictory Config is refused before anything is sent.
func TestBadConfig(t *testing.T) {
	dev, dev2 := NewDevice(DeviceConfig{}), NewDevice(DeviceConfig{})
	srq, err := dev.NewPD().NewSRQ(4)
	if err != nil {
		t.Fatal(err)
	}
	cq, _ := dev.NewCQ(10)
	for i, c := range []*Config{
		{Device: dev, PD: dev2.NewPD()},
		{PD: dev.NewPD(), SRQ: srq},
		{SendDepth: 5000}, {RecvDepth: -1}, {Interop: Interop{FPDUSize: 100}}, {Interop: Interop{FPDUSize: 65000}}, {Interop: Interop{MaxFPDU: 5}},
		{Device: dev, SendCQ: cq, SendDepth: 11},
	} {
		a, b := testkit.TCPPair(t)
		if _, err := Client(ctxt(t), a, c); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrLimit) {
			t.Errorf("%d: %v", i, err)
		}
		if b, _ := readAll(t, b); len(b) > 0 {
			t.Errorf("%d: %x was sent", i, b)
		}
		b.Close()
	}
}

// TestPeerRevision1 plays a peer of revision 1 that sends a ready message on which the two sides
// did not agree. [MPA2-6-7] [I-21]
func TestPeerRevision1(t *testing.T) {
	a, b := testkit.TCPPair(t)
	p := &peer{t: t, c: a, enc: mpa.Encoder{CRC: true}, dec: mpa.Decoder{CRC: true}}
	ch := make(chan *QueuePair, 1)
	go func() {
		q, err := Server(ctxt(t), b, nil)
		if err != nil {
			t.Error(err)
		}
		ch <- q
	}()
	p.raw(mpa.Frame{Kind: mpa.Request, Rev: 1}.Append(nil))
	if f := p.frame(); f.Rev != 1 || f.Enhanced || !f.CRC {
		t.Errorf("%+v", f)
	}
	q := <-ch
	p.ulpdu(readReq(1, rdmap.ReadRequest{SinkSTag: 3, SinkTO: 4}))
	if u := p.next(); hex.EncodeToString(u) != "c142000000030000000000000004" {
		t.Errorf("%x", u)
	}
	p.ulpdu(readReq(ddp.MSN(2), rdmap.ReadRequest{SinkSTag: 0xffffffff, SinkTO: 1<<64 - 1, SourceSTag: 0xffffffff, SourceTO: 1<<64 - 1})) // [RDMAP-5.2.1-14]
	if u := p.next(); hex.EncodeToString(u) != "c142ffffffffffffffffffffffff" {                                                           // [RDMAP-4.4-2] [RDMAP-5.2.1-15]
		t.Errorf("%x", u)
	}
	a.Close()
	q.Close()
}

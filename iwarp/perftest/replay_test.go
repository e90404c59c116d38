package perftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/iwarp"
	"viaduct/iwarp/ddp"
	"viaduct/iwarp/mpa"
	"viaduct/iwarp/rdmap"
)

// recorded are the runs of the tools in interop/testdata.
var recorded = []struct {
	file string
	opt  Options
}{
	{"siw-write-bw-crc.pcap", Options{Test: WriteBW, Size: 10000, Count: 5}},
	{"siw-read-bw-crc.pcap", Options{Test: ReadBW, Size: 10000, Count: 5}},
	{"siw-send-bw-crc.pcap", Options{Test: SendBW, Size: 10000, Count: 5}},
	{"siw-write-bw-client.pcap", Options{Test: WriteBW, Size: 2000, Count: 6}},
	{"siw-write-bw-server.pcap", Options{Test: WriteBW, Size: 2000, Count: 6}},
	{"siw-read-bw-client.pcap", Options{Test: ReadBW, Size: 2000, Count: 6}},
	{"siw-read-bw-server.pcap", Options{Test: ReadBW, Size: 2000, Count: 6}},
	{"siw-send-bw-client.pcap", Options{Test: SendBW, Size: 2000, Count: 6}},
	{"siw-send-bw-server.pcap", Options{Test: SendBW, Size: 2000, Count: 6}},
}

// TestReplay puts recorded clients of the tools in front of our server, and
// recorded servers in front of our client, with the contents verified where we
// can see them. The keys that one side chose in the recording and ours chooses
// now are exchanged in the recorded bytes; everything else is sent as it was.
func TestReplay(t *testing.T) {
	for _, r := range recorded {
		cs := testkit.Conversations(t, filepath.Join("../../interop/testdata", r.file))
		if len(cs) != 2 {
			t.Fatalf("%s: %d connections, want 2", r.file, len(cs))
		}
		r.opt.Verify = true
		t.Run("client/"+strings.TrimSuffix(r.file, ".pcap"), func(t *testing.T) { replayClient(t, cs, r.opt) })
		t.Run("server/"+strings.TrimSuffix(r.file, ".pcap"), func(t *testing.T) { replayServer(t, cs, r.opt) })
	}
}

// A player plays one side of one recorded connection.
type player struct {
	t    *testing.T
	c    net.Conn
	left [][]byte // recorded ULPDUs of this side still to be sent
	enc  mpa.Encoder
	dec  mpa.Decoder
	buf  []byte
}

func newPlayer(t *testing.T, c net.Conn, recorded []byte, crc bool) *player {
	p := &player{t: t, c: c}
	d := mpa.Decoder{CRC: crc}
	for len(recorded) > 0 {
		u, n, err := d.Next(recorded)
		if err != nil || n == 0 {
			t.Fatal(err)
		}
		if len(u) > 14 || !ddp.IsTagged(u[0]) { // not a ready message
			p.left = append(p.left, bytes.Clone(u))
		}
		recorded = recorded[n:]
	}
	return p
}

// operate is what start-up agreed on.
func (p *player) operate(crc bool) { p.enc, p.dec = mpa.Encoder{CRC: crc}, mpa.Decoder{CRC: crc} }

// fill reads more of what our side sends; false at its end.
func (p *player) fill() bool {
	var b [65536]byte
	p.c.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, err := p.c.Read(b[:])
	p.buf = append(p.buf, b[:n]...)
	if n == 0 && err != nil && err != io.EOF {
		p.t.Error(err)
	}
	return n > 0
}

// frame reads a start-up frame of ours.
func (p *player) frame() mpa.Frame {
	for {
		f, n, err := mpa.ParseFrame(p.buf)
		if err == nil {
			p.buf = p.buf[n:]
			return f
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || !p.fill() {
			p.t.Fatal(err)
		}
	}
}

// next reads a ULPDU of ours that is no ready message; nil at the end.
func (p *player) next() []byte {
	for {
		u, n, err := p.dec.Next(p.buf)
		if err != nil {
			p.t.Fatal(err)
		}
		if n > 0 {
			u = bytes.Clone(u)
			p.buf = p.buf[n:]
			if len(u) == 14 && ddp.IsTagged(u[0]) {
				continue
			}
			return u
		}
		if !p.fill() {
			return nil
		}
	}
}

// message reads a whole message of ours, with the place of a tagged one.
func (p *player) message() (op rdmap.Opcode, at iwarp.RemoteAddr, body []byte) {
	for first := true; ; first = false {
		u := p.next()
		if u == nil {
			p.t.Fatal("our side has closed")
		}
		_, op = rdmap.ParseControl(u[1])
		if ddp.IsTagged(u[0]) && first {
			at = iwarp.RemoteAddr{STag: binary.BigEndian.Uint32(u[2:]), TO: binary.BigEndian.Uint64(u[6:])}
		}
		body = append(body, u[ddp.HeaderLen(u[0]):]...)
		if ddp.IsLast(u[0]) {
			return op, at, body
		}
	}
}

// peek returns the body of the next recorded message, of one ULPDU.
func (p *player) peek() []byte {
	if len(p.left) == 0 {
		p.t.Fatal("the recording is over")
	}
	return p.left[0][ddp.HeaderLen(p.left[0][0]):]
}

// play sends recorded ULPDUs up to the end of a message of kind op. Where it
// names the memory from, it names the same of to instead.
func (p *player) play(op rdmap.Opcode, from, to iwarp.RemoteAddr) {
	p.t.Helper()
	for {
		if len(p.left) == 0 {
			p.t.Fatalf("the recording has no %v any more", op)
		}
		u := bytes.Clone(p.left[0])
		p.left = p.left[1:]
		if _, got := rdmap.ParseControl(u[1]); got != op {
			p.t.Fatalf("recorded %v, expected %v", got, op)
		}
		name := func(u []byte) {
			if stag := binary.BigEndian.Uint32(u); stag != from.STag {
				p.t.Errorf("recorded %v names %#x, expected %#x", op, stag, from.STag)
			}
			binary.BigEndian.PutUint32(u, to.STag)
			binary.BigEndian.PutUint64(u[4:], binary.BigEndian.Uint64(u[4:])-from.TO+to.TO)
		}
		switch op {
		case rdmap.Write, rdmap.ReadResponse:
			name(u[2:])
		case rdmap.ReadRequestOp:
			name(u[18+16:])
		}
		if _, err := p.c.Write(p.enc.Append(nil, u)); err != nil {
			p.t.Fatal(err)
		}
		if ddp.IsLast(u[0]) {
			return
		}
	}
}

// answered sends the next recorded message of the control stream and returns
// our answer.
func (p *player) answered() []byte {
	n := len(p.peek())
	p.play(rdmap.Send, iwarp.RemoteAddr{}, iwarp.RemoteAddr{})
	op, _, body := p.message()
	if op != rdmap.Send || len(body) != n {
		p.t.Fatalf("%v of %d bytes, want a Send of %d", op, len(body), n)
	}
	return body
}

// answer reads our next message on the control stream and sends the recorded one.
func (p *player) answer() []byte {
	op, _, body := p.message()
	if n := len(p.peek()); op != rdmap.Send || len(body) != n {
		p.t.Fatalf("%v of %d bytes, want a Send of %d", op, len(body), n)
	}
	p.play(rdmap.Send, iwarp.RemoteAddr{}, iwarp.RemoteAddr{})
	return body
}

func place(t *testing.T, b []byte) iwarp.RemoteAddr {
	k, err := parseKeys(b)
	if err != nil {
		t.Fatal(err)
	}
	return iwarp.RemoteAddr{STag: k.rkey, TO: k.vaddr}
}

// The number of messages on the control stream: before the second connection,
// and between it and the data.
const beforeData = 5

func afterConnect(test Test) int {
	if test == SendBW {
		return 5
	}
	return 4
}

// connect starts the recorded client's side of a connection.
func connect(t *testing.T, addr string, c testkit.Conversation) *player {
	req, n, err := mpa.ParseFrame(c.Client)
	if err != nil {
		t.Fatal(err)
	}
	rep, _, _ := mpa.ParseFrame(c.Server)
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	p := newPlayer(t, nc, c.Client[n:], req.CRC || rep.CRC)
	if _, err := nc.Write(c.Client[:n]); err != nil {
		t.Fatal(err)
	}
	f := p.frame()
	p.operate(req.CRC || f.CRC)
	if req.Conn.PeerToPeer {
		if _, err := nc.Write(p.enc.Append(nil, rdmap.Write.TaggedHeader(1, 0, true).Append(nil))); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func replayClient(t *testing.T, cs []testkit.Conversation, opt Options) {
	ctx := within(t)
	l, err := iwarp.Listen("127.0.0.1:0", Config(nil, opt))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan outcome, 1)
	go func() {
		res, err := Serve(ctx, l, opt)
		served <- outcome{res, err}
	}()
	control := connect(t, l.Addr().String(), cs[0])
	for range beforeData {
		control.answered()
	}
	data := connect(t, l.Addr().String(), cs[1])
	var ours, theirs iwarp.RemoteAddr // the memory that each side names now
	for range afterConnect(opt.Test) {
		theirs = place(t, control.peek())
		ours = place(t, control.answered())
	}
	recorded := recordedKeys(t, cs[0].Server, opt)
	for i := range opt.Count {
		switch opt.Test {
		case WriteBW:
			data.play(rdmap.Write, recorded, ours)
		case ReadBW:
			data.play(rdmap.ReadRequestOp, recorded, ours)
			if op, _, body := data.message(); op != rdmap.ReadResponse || len(body) != opt.Size || checkRandom(body) >= 0 {
				t.Errorf("%v of %d bytes", op, len(body))
			}
		case SendBW:
			data.play(rdmap.Send, iwarp.RemoteAddr{}, iwarp.RemoteAddr{})
			if n := i + 1; n%2 == 0 { // a third of 6 receives
				op, at, body := data.message()
				if op != rdmap.Write || at != theirs || !bytes.Equal(body, binary.LittleEndian.AppendUint32(nil, uint32(n))) {
					t.Errorf("after %d messages %v of %x to %+v, want it at %+v", n, op, body, at, theirs)
				}
			}
		}
	}
	for len(control.left) > 0 {
		control.answered()
	}
	for _, p := range []*player{data, control} {
		if len(p.left) > 0 {
			t.Errorf("%d recorded ULPDUs left", len(p.left))
		}
		p.c.(*net.TCPConn).CloseWrite()
		if u := p.next(); u != nil {
			t.Errorf("%x after the end", u)
		}
	}
	s := <-served
	if s.err != nil {
		t.Fatal(s.err)
	}
	if opt.Test != ReadBW && s.res.Verified != opt.Count {
		t.Errorf("%d verified", s.res.Verified)
	}
	if opt.Test != SendBW && (s.res.Peer == nil || s.res.Peer.Average <= 0) {
		t.Errorf("reported %+v", s.res.Peer)
	}
}

// recordedKeys finds what a recorded side told about its memory.
func recordedKeys(t *testing.T, stream []byte, opt Options) iwarp.RemoteAddr {
	f, n, err := mpa.ParseFrame(stream)
	if err != nil {
		t.Fatal(err)
	}
	us := newPlayer(t, nil, stream[n:], f.CRC).left
	u := us[beforeData+afterConnect(opt.Test)-1]
	return place(t, u[ddp.HeaderLen(u[0]):])
}

// accept starts the recorded server's side of a connection.
func accept(t *testing.T, l net.Listener, c testkit.Conversation) *player {
	req, _, _ := mpa.ParseFrame(c.Client)
	rep, n, err := mpa.ParseFrame(c.Server)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	p := newPlayer(t, nc, c.Server[n:], req.CRC || rep.CRC)
	f := p.frame()
	if _, err := nc.Write(c.Server[:n]); err != nil {
		t.Fatal(err)
	}
	p.operate(f.CRC || rep.CRC)
	return p
}

func replayServer(t *testing.T, cs []testkit.Conversation, opt Options) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(within(t), 20*time.Second)
	defer cancel()
	req, _, _ := mpa.ParseFrame(cs[0].Client)
	called := make(chan outcome, 1)
	go func() {
		res, err := Dial(ctx, l.Addr().String(), &iwarp.Config{ClientServer: !req.Conn.PeerToPeer, NoNudge: true}, opt)
		called <- outcome{res, err}
	}()
	control := accept(t, l, cs[0])
	for range beforeData {
		control.answer()
	}
	data := accept(t, l, cs[1])
	var ours, theirs iwarp.RemoteAddr
	for range afterConnect(opt.Test) {
		theirs = place(t, control.peek())
		ours = place(t, control.answer())
	}
	recorded := recordedKeys(t, cs[0].Client, opt)
	lay := layout{opt.Size, cycleBuffer, cacheLine}
	memory := newImage(lay)
	for i := range opt.Count {
		op, at, body := data.message()
		want := theirs
		want.TO += uint64(lay.offset(i))
		switch opt.Test {
		case WriteBW:
			if op != rdmap.Write || at != want || len(body) != opt.Size {
				t.Fatalf("%v of %d bytes to %+v, want it at %+v", op, len(body), at, want)
			}
			if err := memory.add(i, body); err != nil {
				t.Error(err)
			}
		case ReadBW:
			r, _, err := rdmap.ParseReadRequest(body)
			if op != rdmap.ReadRequestOp || err != nil || r.SourceSTag != want.STag || r.SourceTO != want.TO || r.Size != uint32(opt.Size) {
				t.Fatalf("%v %+v, %v, want it from %+v", op, r, err, want)
			}
			u := data.left[0]
			from := iwarp.RemoteAddr{STag: binary.BigEndian.Uint32(u[2:]), TO: binary.BigEndian.Uint64(u[6:])}
			data.play(rdmap.ReadResponse, from, iwarp.RemoteAddr{STag: r.SinkSTag, TO: r.SinkTO})
		case SendBW:
			if op != rdmap.Send || len(body) != opt.Size {
				t.Fatalf("%v of %d bytes", op, len(body))
			}
			if err := memory.add(i, body); err != nil {
				t.Error(err)
			}
			if n := i + 1; n%2 == 0 {
				data.play(rdmap.Write, recorded, ours)
			}
		}
	}
	if err := memory.check(); err != nil {
		t.Error(err)
	}
	for len(control.left) > 0 {
		control.answer()
	}
	for _, p := range []*player{data, control} {
		if len(p.left) > 0 {
			t.Errorf("%d recorded ULPDUs left", len(p.left))
		}
		p.c.(*net.TCPConn).CloseWrite()
		if u := p.next(); u != nil {
			t.Errorf("%x after the end", u)
		}
	}
	c := <-called
	if c.err != nil {
		t.Fatal(c.err)
	}
	if opt.Test == ReadBW && c.res.Verified != opt.Count {
		t.Errorf("%d verified", c.res.Verified)
	}
}

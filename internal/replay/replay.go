// Package replay plays one side of a recorded iWARP conversation to a program under test, for the
// tests of this module. The recorded bytes are sent unchanged, except for the names of memory the
// program chooses: Play replaces the recorded names with the current ones.
package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/iwarp"
)

// patience bounds each read from the program.
const patience = testkit.Patience

// A Player plays one side of one recorded connection. Every method fails the test if the program
// deviates from the recording. Only the goroutine of the test may use it.
type Player struct {
	t    testing.TB
	c    net.Conn
	left [][]byte // recorded ULPDUs of this side not yet sent
	enc  mpa.Encoder
	dec  mpa.Decoder
	buf  []byte // bytes read and not yet decoded
}

// Connect calls the program at addr and plays the client of c through start-up.
func Connect(t testing.TB, addr string, c testkit.Conversation) *Player {
	t.Helper()
	req, start := frame(t, c.Client)
	rep, _ := frame(t, c.Server)
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlayer(t, nc, c.Client[len(start):], req.CRC || rep.CRC)
	p.write(start)
	f := p.frame()
	p.operate(req.CRC || f.CRC)
	if req.Conn.PeerToPeer {
		p.write(p.enc.Append(nil, p.take())) // the ready message
	}
	p.left = slices.DeleteFunc(p.left, isEmptyWrite)
	return p
}

// Accept waits for the program to connect to l, and plays the server of c through start-up. The
// program must use the peer-to-peer mode if the recorded client did.
func Accept(t testing.TB, l net.Listener, c testkit.Conversation) *Player {
	t.Helper()
	req, _ := frame(t, c.Client)
	rep, start := frame(t, c.Server)
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlayer(t, nc, c.Server[len(start):], req.CRC || rep.CRC)
	f := p.frame()
	p.write(start)
	p.operate(f.CRC || rep.CRC)
	if req.Conn.PeerToPeer {
		if u := p.Next(); !isEmptyWrite(u) {
			t.Fatalf("ready message %x", u)
		}
	}
	return p
}

// Messages returns the ULPDUs that one side of a recording sent after its
// start-up frame, without empty Writes.
func Messages(t testing.TB, side []byte, crc bool) [][]byte {
	t.Helper()
	_, start := frame(t, side)
	return slices.DeleteFunc(ulpdus(t, side[len(start):], crc), isEmptyWrite)
}

// isEmptyWrite reports whether a ULPDU is a Write of zero bytes: a ready message, or a Write that
// our side sends to wake the peer's socket.
func isEmptyWrite(u []byte) bool { return len(u) == ddp.TaggedLen && ddp.IsTagged(u[0]) }

// frame returns the start-up frame at the front of a recording, and its bytes.
func frame(t testing.TB, side []byte) (mpa.Frame, []byte) {
	t.Helper()
	f, n, err := mpa.ParseFrame(side)
	if err != nil {
		t.Fatal(err)
	}
	return f, side[:n]
}

func ulpdus(t testing.TB, b []byte, crc bool) (us [][]byte) {
	t.Helper()
	d := mpa.Decoder{CRC: crc}
	for len(b) > 0 {
		u, n, err := d.Next(b)
		if err != nil || n == 0 {
			t.Fatalf("the recording ends inside a frame: %v", err)
		}
		us = append(us, bytes.Clone(u))
		b = b[n:]
	}
	return us
}

func newPlayer(t testing.TB, c net.Conn, recorded []byte, crc bool) *Player {
	t.Cleanup(func() { c.Close() })
	return &Player{t: t, c: c, left: ulpdus(t, recorded, crc)}
}

// operate sets up the codecs with the CRC setting that start-up agreed on.
func (p *Player) operate(crc bool) { p.enc, p.dec = mpa.Encoder{CRC: crc}, mpa.Decoder{CRC: crc} }

func (p *Player) write(b []byte) {
	p.t.Helper()
	if _, err := p.c.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// take removes and returns the next recorded ULPDU.
func (p *Player) take() []byte {
	p.t.Helper()
	u := p.peek()
	p.left = p.left[1:]
	return u
}

func (p *Player) peek() []byte {
	p.t.Helper()
	if len(p.left) == 0 {
		p.t.Fatal("the recording is over")
	}
	return p.left[0]
}

// Left returns the number of recorded ULPDUs that were not played yet.
func (p *Player) Left() int { return len(p.left) }

// Peek returns the payload of the next recorded ULPDU.
func (p *Player) Peek() []byte {
	p.t.Helper()
	u := p.peek()
	return u[ddp.HeaderLen(u[0]):]
}

// Names returns the memory the next recorded ULPDU names: the target of a Write or a Read Response,
// or the source that a Read Request asks for.
func (p *Player) Names() iwarp.RemoteAddr {
	p.t.Helper()
	return named(naming(p.t, p.peek()))
}

// naming returns the part of a ULPDU that names memory.
func naming(t testing.TB, u []byte) []byte {
	t.Helper()
	switch _, op := rdmap.ParseControl(u[1]); op {
	case rdmap.Write, rdmap.ReadResponse:
		return u[2:]
	case rdmap.ReadRequestOp:
		return u[ddp.HeaderLen(u[0])+16:]
	default:
		t.Fatalf("a recorded %v names no memory", op)
		return nil
	}
}

func named(b []byte) iwarp.RemoteAddr {
	at, _ := iwarp.ParseRemoteAddr(b)
	return at
}

// Play sends recorded ULPDUs up to the end of a message of kind op, which names
// no memory.
func (p *Player) Play(op rdmap.Opcode) {
	p.t.Helper()
	p.play(op, func([]byte) {})
}

// PlayAt is Play for a message that names memory. It replaces the recorded address from, plus an
// offset, by to plus the same offset.
func (p *Player) PlayAt(op rdmap.Opcode, from, to iwarp.RemoteAddr) {
	p.t.Helper()
	p.play(op, func(u []byte) {
		b := naming(p.t, u)
		at := named(b)
		if at.STag != from.STag {
			p.t.Errorf("recorded %v names %#x, expected %#x", op, at.STag, from.STag)
		}
		binary.BigEndian.PutUint32(b, to.STag)
		binary.BigEndian.PutUint64(b[4:], at.TO-from.TO+to.TO)
	})
}

func (p *Player) play(op rdmap.Opcode, change func(ulpdu []byte)) {
	p.t.Helper()
	for {
		u := bytes.Clone(p.take())
		if _, got := rdmap.ParseControl(u[1]); got != op {
			p.t.Fatalf("recorded %v, expected %v", got, op)
		}
		change(u)
		p.write(p.enc.Append(nil, u))
		if ddp.IsLast(u[0]) {
			return
		}
	}
}

// fill reads more bytes from the program, and returns false at the end of its stream.
func (p *Player) fill() bool {
	var b [64 << 10]byte
	p.c.SetReadDeadline(time.Now().Add(patience))
	n, err := p.c.Read(b[:])
	p.buf = append(p.buf, b[:n]...)
	if n == 0 && err != nil && err != io.EOF {
		p.t.Error(err)
	}
	return n > 0
}

// frame reads a start-up frame of the program.
func (p *Player) frame() mpa.Frame {
	p.t.Helper()
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

// Next reads a ULPDU of the program; nil at the end of its stream.
func (p *Player) Next() []byte {
	p.t.Helper()
	for {
		u, n, err := p.dec.Next(p.buf)
		if err != nil {
			p.t.Fatal(err)
		}
		if n > 0 {
			u = bytes.Clone(u)
			p.buf = p.buf[n:]
			return u
		}
		if !p.fill() {
			return nil
		}
	}
}

// Message reads a whole message of the program, with the place its first ULPDU names if it is a
// tagged one.
func (p *Player) Message() (op rdmap.Opcode, at iwarp.RemoteAddr, body []byte) {
	p.t.Helper()
	for first := true; ; first = false {
		u := p.Next()
		if u == nil {
			p.t.Fatal("the program has closed")
		}
		_, op = rdmap.ParseControl(u[1])
		if ddp.IsTagged(u[0]) && first {
			at = named(u[2:])
		}
		body = append(body, u[ddp.HeaderLen(u[0]):]...)
		if ddp.IsLast(u[0]) {
			return op, at, body
		}
	}
}

// End ends this side's stream. The whole recording must have been played, and the program must end
// its stream without another message.
func (p *Player) End() {
	p.t.Helper()
	if len(p.left) > 0 {
		p.t.Errorf("%d recorded ULPDUs left", len(p.left))
	}
	p.c.(*net.TCPConn).CloseWrite()
	if u := p.Next(); u != nil {
		p.t.Errorf("%x after the end", u)
	}
}

package fcip

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/testkit"
)

// vector is an encapsulated FC-VI frame, decodable by tshark.
const vector = `0101fefe 0101fefe 0000ffff 0016ffe9  00000000 00000000 00000000 2e2ed1d1
	04010201 00010101 5829000a 05010000 0005ffff 00000000  00012001 01070000 00000010 cafef00d
	68656c6c 6f210000 916bba23 4242bdbd`

// TestFCFS_2_3 checks the encapsulation. [FCFS-2.3-1]
func TestFCFS_2_3(t *testing.T) {
	wire := testkit.Hex(vector)
	var f fc.Frame
	n, err := Parse(wire, &f)
	if err != nil || n != len(wire) || f.SOF != fc.SOFi3 || f.EOF != fc.EOFt || string(f.Payload) != "hello!" {
		t.Fatalf("%v, %d, %v", f.String(), n, err)
	}
	if b := Append(nil, &f); !bytes.Equal(b, wire) {
		t.Errorf("appended %x", b)
	}
	for n := range wire {
		if _, err := Parse(wire[:n], &f); err != io.ErrUnexpectedEOF {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	t.Run("FCFS-2.3-3", func(t *testing.T) { // each tested field is changed alone
		for _, v := range []struct {
			at   int
			sync bool
		}{{0, true}, {5, true}, {8, false}, {11, false}, {13, true}, {15, true}, {24, false}, {28, false}, {30, false},
			{len(wire) - 4, true}, {len(wire) - 1, true}, {40, false}} {
			bad := bytes.Clone(wire)
			bad[v.at] ^= 1
			n, err := Parse(bad, &f)
			if err == nil || errors.Is(err, ErrSync) != v.sync || v.sync != (n == 0) {
				t.Errorf("byte %d broken: %d, %v", v.at, n, err)
			}
		}
	})
	t.Run("FCFS-2.3-2", func(t *testing.T) {
		for bit := 26; bit < 32; bit++ { // flag bits next to the length, with the right complement
			b := bytes.Clone(wire[:16])
			w := binary.BigEndian.Uint32(b[12:]) ^ 1<<bit ^ 1<<(bit-16)
			binary.BigEndian.PutUint32(b[12:], w)
			if n, err := FrameLen(b); !errors.Is(err, ErrSync) {
				t.Errorf("length word %08x: %d, %v", w, n, err)
			}
		}
		for words, ok := range map[int]bool{15: false, 16: true, 544: true, 545: false} {
			b := bytes.Clone(wire[:16])
			b[12], b[13], b[14], b[15] = byte(words>>8), byte(words), ^byte(words>>8), ^byte(words)
			if n, err := FrameLen(b); (err == nil) != ok || ok && n != 4*words {
				t.Errorf("%d words: %d, %v", words, n, err)
			}
		}
	})
}

// TestFCFS_2_4 checks the Special Frame and the exchange of Special Frames.
func TestFCFS_2_4(t *testing.T) {
	s := Special{Source: 0x2000020000000001, Entity: 7, Nonce: 0x1122334455667788, UsageFlags: 0xE0,
		Destination: 0x2000020000000002, KATOV: 60000}
	wire := testkit.Hex(`0101fefe 0101fefe 0100feff 0013ffec 00000000 00000000 00000000 0000ffff
		2000020000000001 0000000000000007 1122334455667788 e0000000 2000020000000002 0000ea60 0000ffff`)
	t.Run("FCFS-2.4-1", func(t *testing.T) {
		if b := s.Append(nil); !bytes.Equal(b, wire) {
			t.Errorf("%x", b)
		}
		got, n, err := ParseSpecial(wire)
		if err != nil || n != SpecialLen || got != s {
			t.Errorf("%+v, %v", got, err)
		}
		for n := range wire {
			if _, _, err := ParseSpecial(wire[:n]); err == nil {
				t.Errorf("the first %d bytes parse", n)
			}
		}
	})
	t.Run("FCFS-2.4-2", func(t *testing.T) {
		for _, dst := range []fc.WWN{0, 99, s.Destination} {
			q := s
			q.Destination = dst
			echo, ok := q.answer(s.Destination)
			if ok != (dst == s.Destination) || echo.Changed == ok || echo.Destination != s.Destination {
				t.Errorf("destination %v: %+v, %v", dst, echo, ok)
			}
		}
	})
	t.Run("FCFS-2.4-2/class 3", func(t *testing.T) { // a connection without class 3 is answered by a changed echo that adds it
		q := s
		q.UsageFlags = UsageClass2
		echo, ok := q.answer(s.Destination)
		q.Changed, q.UsageFlags = true, UsageClass2|UsageClass3
		if ok || echo != q {
			t.Errorf("%+v, %v", echo, ok)
		}
	})
	t.Run("FCFS-2.4-6", func(t *testing.T) { // a frame of the stream with the SF flag and its complement
		plain := testkit.Hex(vector)
		for _, v := range []struct {
			flags, complement byte
			want              error
		}{{0x00, 0xFF, nil}, {0x01, 0xFE, ErrSync}, {0x01, 0xFF, ErrFrame}, {0x00, 0xFE, ErrFrame}} {
			plain[8], plain[10] = v.flags, v.complement
			n, err := Parse(plain, new(fc.Frame))
			if !errors.Is(err, v.want) || (n == 0) != (v.want == ErrSync) {
				t.Errorf("flags %02x, complement %02x: %d, %v, want %v", v.flags, v.complement, n, err, v.want)
			}
		}
	})
	t.Run("FCFS-2.4-3", func(t *testing.T) {
		nameless := s
		nameless.Destination = 0
		if echo := nameless; nameless.accepts(&echo) {
			t.Error("a destination without a name is accepted")
		}
		echo := s
		if !s.accepts(&echo) {
			t.Error("an unchanged echo is refused")
		}
		for i := 32; i < 72; i++ { // the bytes of words 8 to 17
			b := bytes.Clone(wire)
			b[i] ^= 1
			if got, _, err := ParseSpecial(b); err == nil && s.accepts(&got) {
				t.Errorf("byte %d changed is accepted", i)
			}
		}
	})
	if SpecialTimeout < 90*time.Second { // [FCFS-2.4-5]
		t.Error("time-out too short")
	}
	a, b := newSpecial(&Config{FabricName: 1}, 0), newSpecial(&Config{FabricName: 1}, 0)
	if a.Nonce == b.Nonce { // [FCFS-2.4-7]
		t.Error("one nonce twice")
	}
}

// A sink is a device recording the frames of its link.
type sink struct {
	frames chan string
	down   chan error
}

func newSink() *sink { return &sink{make(chan string, 100), make(chan error, 1)} }

func (s *sink) Frames(recv func(func(*fc.Frame))) {
	recv(func(f *fc.Frame) { s.frames <- string(f.Payload) })
}
func (s *sink) Room()          {}
func (s *sink) Down(err error) { s.down <- err }

// accept serves a fabric entity with name 2 until the test ends.
func accept(t *testing.T) (addr string, links chan *Link, errs chan error) {
	return acceptWith(t, Config{FabricName: 2})
}

func acceptWith(t *testing.T, cfg Config) (addr string, links chan *Link, errs chan error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if ln, err = cfg.Listen(ln); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	a := NewAcceptor(cfg)
	links, errs = make(chan *Link, 10), make(chan error, 10)
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			l, err := a.Accept(context.Background(), nc)
			if err != nil {
				errs <- err
				continue
			}
			links <- l
		}
	}()
	return ln.Addr().String(), links, errs
}

// TestLink carries frames in both directions. The dialer learns the destination name from the
// acceptor.
func TestLink(t *testing.T) {
	addr, links, errs := accept(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	x, err := Dial(ctx, addr, Config{FabricName: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != ErrRefused {
		t.Errorf("the first connection: %v", err)
	}
	y := <-links
	if x.Peer() != 2 || y.Peer() != 1 {
		t.Errorf("peers %v, %v", x.Peer(), y.Peer())
	}
	sx, sy := newSink(), newSink()
	x.Start(sx)
	y.Start(sy)
	for i, l := range []*Link{x, y} {
		for range 50 {
			l.Send(&fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: []byte{byte(i)}})
		}
		l.Flush()
		for range 50 {
			if got := <-[]*sink{sy, sx}[i].frames; got != string([]byte{byte(i)}) {
				t.Fatalf("got %q", got)
			}
		}
	}
	testkit.Eventually(t, "the frames are counted", func() bool { return y.Stats().RecvFrames >= 50 })
	if s := y.Stats(); s.RecvFrames != 50 || s.SentFrames != 50 {
		t.Errorf("%+v", s)
	}
	x.Close()
	select {
	case <-sy.down:
	case <-ctx.Done():
		t.Error("the other end does not hear of the end")
	}
	y.Close()
	// A connection to a wrong name is refused, and the dialer does not try again.
	if _, err := Dial(ctx, addr, Config{FabricName: 1, Peer: 77}); err == nil {
		t.Error("a wrong destination is accepted")
	}
}

// TestKeepAlive: an idle link stays up while the other end answers, and ends after twice K_A_TOV if
// the other end is silent. The time is virtual, so that only silence ends a link, and no delay of a
// busy machine.
func TestKeepAlive(t *testing.T) {
	const katov = 20 * time.Second
	open := func(t *testing.T, nc net.Conn, cfg Config) (*Link, *sink) {
		l, err := newLink(nc, cfg, 2)
		if err != nil {
			t.Fatal(err)
		}
		s := newSink()
		l.Start(s)
		return l, s
	}
	t.Run("answered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := testkit.Pipe()
			x, sx := open(t, a, Config{FabricName: 1, KATOV: katov})
			y, sy := open(t, b, Config{FabricName: 2})
			time.Sleep(10 * katov)
			synctest.Wait()
			if y.Stats().RecvFrames < 3 || x.Stats().RecvFrames < 3 { // three LKA and their answers
				t.Errorf("%+v, %+v", x.Stats(), y.Stats())
			}
			if len(sx.frames)+len(sy.frames) != 0 {
				t.Error("a keep alive reached a device")
			}
			for _, s := range []*sink{sx, sy} {
				select {
				case err := <-s.down:
					t.Error(err)
				default:
				}
			}
			x.Close()
			y.Close()
		})
	})
	t.Run("silent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := testkit.Pipe()
			go io.Copy(io.Discard, b)
			begin := time.Now()
			z, sz := open(t, a, Config{FabricName: 1, KATOV: katov})
			select {
			case err := <-sz.down:
				if took := time.Since(begin); !errors.Is(err, ErrSilent) || took != 2*katov {
					t.Errorf("%v after %v", err, took)
				}
			case <-time.After(time.Hour):
				t.Error("a silent link lives for ever")
			}
			z.Close()
			b.Close()
		})
	})
}

// TestFCFS_2_1: a damaged frame is not delivered. The frames before and after are delivered.
func TestFCFS_2_1(t *testing.T) {
	t.Run("FCFS-2.1-6", func(t *testing.T) {
		good := testkit.Hex(vector)
		crc, malformed := bytes.Clone(good), bytes.Clone(good)
		crc[len(crc)-5] ^= 1
		malformed[offSOF] ^= 1
		r := &runner{sink: *newSink()}
		l := &Link{dev: r}
		l.feed = l.each
		b := bytes.Join([][]byte{good, crc, crc, good, malformed, good}, nil)
		if n, _, err := (*protocol)(l).Receive(b, true); n != len(b) || err != nil {
			t.Errorf("%d of %d bytes taken, %v", n, len(b), err)
		}
		want := Stats{RecvFrames: 3, RecvBytes: uint64(len(b)), BadCRC: 2, BadFrames: 1}
		if s := l.Stats(); len(r.got) != 3 || s != want {
			t.Errorf("%d frames delivered; %+v, want %+v", len(r.got), s, want)
		}
	})
}

// TestRefusals: each kind of wrong input ends the peer's connection. [FCFS-2.4-4] [FCFS-2.4-6]
// [FCFS-2.3-4]
func TestRefusals(t *testing.T) {
	addr, links, errs := accept(t)
	s := Special{Source: 1, Nonce: 5, UsageFlags: UsageClass3, Destination: 2}
	dial := func() net.Conn {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(testkit.Patience))
		nc.Write(s.Append(nil))
		return nc
	}
	closed := func(what string, nc net.Conn) {
		t.Helper()
		io.CopyN(io.Discard, nc, SpecialLen)
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the connection goes on", what)
		}
		nc.Close()
	}
	frame := testkit.Hex(vector)
	for _, v := range []struct {
		what string
		send []byte
		good int // number of frames that are delivered before
	}{
		{"a second special frame", (&Special{Source: 1, Nonce: 8, UsageFlags: UsageClass3, Destination: 2}).Append(nil), 0},
		{"garbage between frames", append(append([]byte{}, frame...), bytes.Repeat([]byte{0xAA}, 64)...), 1},
	} {
		s.Nonce++
		nc := dial()
		l := <-links
		sk := newSink()
		l.Start(sk)
		nc.Write(v.send)
		for range v.good {
			if got := <-sk.frames; got != "hello!" {
				t.Errorf("%s: got %q", v.what, got)
			}
		}
		<-sk.down
		l.Close()
		closed(v.what, nc)
	}
	closed("a nonce used before", dial())
	if err := <-errs; err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("nonce: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(testkit.Hex(vector))
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr fc.Frame
		n, err := Parse(b, &fr)
		if err == nil {
			var again fc.Frame
			if _, err := Parse(Append(nil, &fr), &again); err != nil || n > len(b) {
				t.Fatal(err)
			}
		}
		ParseSpecial(b)
	})
}

package mpa

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaduct/internal/testkit"
)

const (
	reqKeyHex = "4d504120494420526571204672616d65"
	repKeyHex = "4d504120494420526570204672616d65"
)

// frameVectors are frames captured between Linux hosts, and some written by hand for bits Linux
// does not use.
var frameVectors = []struct {
	name  string
	frame Frame
	hex   string
}{
	{"captured request rev 2", Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 1, ORD: 1}},
		reqKeyHex + " 10 02 0004 0001 0001"},
	{"captured reply rev 2", Frame{Kind: Reply, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 1, ORD: 1}},
		repKeyHex + " 10 02 0004 0001 0001"},
	{"captured request with CRC", Frame{Kind: Request, CRC: true, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 1, ORD: 1}},
		reqKeyHex + " 50 02 0004 0001 0001"},
	{"captured reply with CRC", Frame{Kind: Reply, CRC: true, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 1, ORD: 1}},
		repKeyHex + " 50 02 0004 0001 0001"},
	{"captured peer-to-peer request", Frame{Kind: Request, Rev: 2, Enhanced: true,
		Conn: Enhanced{PeerToPeer: true, RTR: RTRWrite | RTRRead, IRD: 1, ORD: 1}},
		reqKeyHex + " 10 02 0004 8001 c001"},
	{"captured peer-to-peer reply", Frame{Kind: Reply, Rev: 2, Enhanced: true,
		Conn: Enhanced{PeerToPeer: true, RTR: RTRWrite, IRD: 1, ORD: 1}},
		repKeyHex + " 10 02 0004 8001 8001"},
	{"captured read RTR only", Frame{Kind: Request, CRC: true, Rev: 2, Enhanced: true,
		Conn: Enhanced{PeerToPeer: true, RTR: RTRRead, IRD: 1, ORD: 1}},
		reqKeyHex + " 50 02 0004 8001 4001"},
	{"captured request rev 1", Frame{Kind: Request, Rev: 1}, reqKeyHex + " 00 01 0000"},
	{"rev 1 with private data", Frame{Kind: Request, Markers: true, CRC: true, Rev: 1, Private: []byte("hello")},
		reqKeyHex + " c0 01 0005 68656c6c6f"},
	{"reject with reason", Frame{Kind: Reply, Reject: true, Rev: 2, Enhanced: true, Conn: Enhanced{ORD: 7}, Private: []byte{1}},
		repKeyHex + " 30 02 0005 0000 0007 01"},
	{"send RTR and wide depths", Frame{Kind: Reply, Rev: 2, Enhanced: true, // [MPA2-9-1]
		Conn: Enhanced{PeerToPeer: true, RTR: RTRSend, IRD: 0x1234, ORD: 0x0abc}},
		repKeyHex + " 10 02 0004 d234 0abc"},
	{"rev 2 without enhancement", Frame{Kind: Reply, Rev: 2, Private: []byte{1, 2, 3, 4}}, // [MPA2-6-4]
		repKeyHex + " 00 02 0004 01020304"},
}

// TestFrameVectors covers the layout of both frames: keys [MPA-7.1.1-1]
// [MPA-7.1.1-3], flags, revision [MPA-7.1.1-15] [MPA2-6-5], length [MPA-7.1.1-19]
// [MPA2-6-8] and the block of RFC 6581 [MPA2-6-1] [MPA2-6-9] [MPA2-9-2]. The
// frames contain neither a CRC nor markers [MPA-7.1-5].
func TestFrameVectors(t *testing.T) {
	for _, v := range frameVectors {
		t.Run(v.name, func(t *testing.T) {
			wire := testkit.Hex(v.hex)
			if got := v.frame.Append([]byte{0xee}); !bytes.Equal(got[1:], wire) {
				t.Errorf("Append:\n got %x\nwant %x", got[1:], wire)
			}
			f, n, err := ParseFrame(append(bytes.Clone(wire), 0xff, 0xff))
			if err != nil || n != len(wire) {
				t.Fatalf("ParseFrame: n %d, err %v", n, err)
			}
			if d := cmp.Diff(v.frame, f); d != "" {
				t.Errorf("ParseFrame (-want +got):\n%s", d)
			}
			for i := range wire {
				if _, n, err := ParseFrame(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) || n != 0 {
					t.Errorf("prefix of %d: n %d, err %v", i, n, err)
				}
			}
		})
	}
}

func TestMPA_7_1_1(t *testing.T) {
	base := testkit.Hex(reqKeyHex + " 00 01 0000")
	alter := func(i int, v byte) []byte {
		b := bytes.Clone(base)
		b[i] = v
		return b
	}
	t.Run("MPA-7.1.1-2", func(t *testing.T) { // each byte of the key is compared, also in the Reply [MPA-7.1.1-4]
		for i := range keyLen {
			for _, b := range [][]byte{base, testkit.Hex(repKeyHex + " 00 01 0000")} {
				b = bytes.Clone(b)
				b[i] ^= 0x20
				if _, _, err := ParseFrame(b); !errors.Is(err, ErrKey) {
					t.Errorf("byte %d: %v", i, err)
				}
				if _, _, err := ParseFrame(b[:i+1]); !errors.Is(err, ErrKey) {
					t.Errorf("byte %d, at once: %v", i, err)
				}
			}
		}
	})
	t.Run("MPA-7.1.1-16", func(t *testing.T) { // also [MPA-C-2]
		for _, rev := range []byte{0, 3, 255} {
			f, _, err := ParseFrame(alter(17, rev))
			if !errors.Is(err, ErrRevision) || f.Rev != rev {
				t.Errorf("rev %d: %v, frame %+v", rev, err, f)
			}
		}
	})
	t.Run("MPA-7.1.1-20", func(t *testing.T) { // the frame is refused before any private data arrives
		for _, pd := range []int{513, 65535} {
			b := alter(18, byte(pd>>8))
			b[19] = byte(pd)
			if _, _, err := ParseFrame(b); !errors.Is(err, ErrPrivate) {
				t.Errorf("%d: %v", pd, err)
			}
		}
		short := testkit.Hex(reqKeyHex + " 10 02 0003 000000") // [I-13]
		if _, _, err := ParseFrame(short[:FrameLen]); !errors.Is(err, ErrPrivate) {
			t.Errorf("enhanced with 3 bytes: %v", err)
		}
	})
	t.Run("MPA-7.1.1-22", func(t *testing.T) { // [MPA-7.1.2-23]
		f := Frame{Kind: Request, Rev: 1, Private: bytes.Repeat([]byte{7}, 512)}
		g, n, err := ParseFrame(f.Append(nil))
		if err != nil || n != 532 || !bytes.Equal(g.Private, f.Private) {
			t.Errorf("n %d, err %v", n, err)
		}
		defer func() {
			if recover() == nil {
				t.Error("513 bytes were appended")
			}
		}()
		Frame{Private: make([]byte, 513)}.Append(nil)
	})
	t.Run("MPA-7.1.1-14", func(t *testing.T) { // [MPA2-6-3]
		f, _, err := ParseFrame(alter(16, 0x1f))
		if err != nil || f.Enhanced || f.Append(nil)[16] != 0 { // bit S is reserved in revision 1 [MPA-7.1.1-13]
			t.Errorf("frame %+v, err %v", f, err)
		}
		b := testkit.Hex(reqKeyHex + " 1f 02 0004 00010001")
		f, _, err = ParseFrame(b)
		if err != nil || !f.Enhanced || f.Append(nil)[16] != 0x10 { // [MPA2-6-2]
			t.Errorf("frame %+v, err %v", f, err)
		}
	})
}

func TestEnhancedPrefix(t *testing.T) {
	wire := Enhanced{PeerToPeer: true, RTR: RTRRead, IRD: 3, ORD: 4}.Append(nil)
	for i := range wire {
		if _, _, err := ParseEnhanced(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("prefix of %d: %v", i, err)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{RTR(0).String(), "none"}, {(RTRSend | RTRWrite | RTRRead).String(), "send+write+read"},
		{Code(2).String(), "CRC error"}, {Code(0x42).String(), "code 0x42"},
		{Request.String(), "Request"}, {Reply.String(), "Reply"}, {Kind(9).String(), "kind 0x09"},
		{Terminate.String(), "terminate"}, {Action(77).String(), "action 0x4d"},
		{AwaitFPDU.String(), "await FPDU"}, {State(77).String(), "state 0x4d"},
		{(&Error{Code: CodeMarker, Reason: "x", Err: io.EOF}).Error(), "mpa: marker and ULPDU length mismatch: x: EOF"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	for c := Code(1); c <= 7; c++ { // every code has a name [MPA2-8-2]
		if strings.HasPrefix(c.String(), "code") {
			t.Errorf("code %d has no name", c)
		}
	}
	if s := frameVectors[4].frame.LogValue().String(); !strings.Contains(s, "write+read") {
		t.Errorf("LogValue: %s", s)
	}
}

func FuzzParseFrame(f *testing.F) {
	for _, v := range frameVectors {
		f.Add(testkit.Hex(v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, n, err := ParseFrame(b)
		if err != nil {
			return
		}
		again, m, err := ParseFrame(fr.Append(nil))
		if err != nil || m != n {
			t.Fatalf("appended frame: n %d, want %d, err %v", m, n, err)
		}
		if d := cmp.Diff(fr, again); d != "" {
			t.Fatal(d)
		}
	})
}

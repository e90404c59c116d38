package decode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"viaduct/cmd/viaduct/internal/tshark"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/vitcpwire"
)

// A kept is a copy of a message, with the printed line.
type kept struct {
	Message
	line string
}

// all decodes a capture and returns the messages.
func all(t testing.TB, opt Options, capture []byte) (list []kept) {
	t.Helper()
	err := New(opt, func(m *Message) {
		k := kept{*m, string(m.AppendLine(nil))}
		k.Fields = append([]Field(nil), m.Fields...)
		k.Wrong = append([]Wrong(nil), m.Wrong...)
		list = append(list, k)
	}).Read(bytes.NewReader(capture))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// kernel returns the stored captures of conversations with the kernel.
func kernel(t testing.TB) map[string][]byte {
	t.Helper()
	files, _ := filepath.Glob("../../../../interop/testdata/*.pcap")
	if len(files) < 10 {
		t.Fatalf("%d stored captures", len(files))
	}
	m := make(map[string][]byte)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		m[filepath.Base(f)] = b
	}
	return m
}

// TestKernel: captures of the kernel are decoded completely and without any error.
func TestKernel(t *testing.T) {
	for name, b := range kernel(t) {
		n := 0
		for _, m := range all(t, Options{}, b) {
			if j := m.AppendJSON(nil); !json.Valid(j) {
				t.Errorf("not JSON: %s", j)
			}
			if len(m.Wrong) > 0 || m.Proto != "rdmap" && m.Proto != "mpa" && m.Name != "retransmission" {
				t.Errorf("%s: %s", name, m.line)
			}
			n++
		}
		if n < 16 {
			t.Errorf("%s: %d messages", name, n)
		}
	}
}

// TestTshark compares every field of every segment in the stored captures with the output of
// tshark.
func TestTshark(t *testing.T) {
	shark := newShark(t)
	for name, b := range kernel(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := agree(t, shark, "../../../../interop/testdata/"+name, b)
			if r.Fields["mpa.ulpdu_length"] < 10 || r.Fields["rdmap.opcode"] != r.Fields["mpa.ulpdu_length"] {
				t.Errorf("compared %v", r.Fields)
			}
		})
	}
}

// newShark prepares tshark, or skips the test.
func newShark(t *testing.T) *tshark.Shark {
	t.Helper()
	testkit.Long(t, "15 s with tshark")
	s, err := tshark.New(t.TempDir())
	if errors.Is(err, tshark.ErrAbsent) {
		t.Skip("SKIPPED: tshark is not installed, nothing has judged what decode says")
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// agree compares the decoded messages of the capture named file with tshark's output.
func agree(t *testing.T, s *tshark.Shark, file string, capture []byte) *tshark.Report {
	t.Helper()
	var lines []byte
	for _, m := range all(t, Options{Segments: true}, capture) {
		lines = append(m.AppendJSON(lines), '\n')
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := s.Compare(ctx, file, lines)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range r.Differ {
		t.Error(d)
	}
	return r
}

// packets returns the frames of a capture in pcap format.
func packets(t testing.TB, capture []byte) (list [][]byte) {
	t.Helper()
	r, err := pcapgo.NewReader(bytes.NewReader(capture))
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
}

// record returns a capture of frames in pcap format.
func record(t testing.TB, frames [][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(262144, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1_700_000_000, int64(i)*1000), CaptureLength: len(f), Length: len(f)}, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestDamaged changes one byte at 200 random places of each stored capture with CRCs. The decoder
// must name the damage wherever a CRC covers the byte.
func TestDamaged(t *testing.T) {
	testkit.Long(t, "10 s")
	rnd := rand.New(rand.NewPCG(18, 2026))
	named := 0
	for name, b := range kernel(t) {
		if !strings.Contains(name, "crc") {
			continue
		}
		frames := packets(t, b)
		again := make(map[int]bool) // packets of which repetitions exist, which are not checked twice
		for _, m := range all(t, Options{}, b) {
			if m.Name == "retransmission" {
				again[m.Frame-1] = true
			}
		}
		for range 200 {
			i := rnd.IntN(len(frames))
			at, x := rnd.IntN(len(frames[i])), byte(1+rnd.IntN(255))
			var before, after packet
			parsePacket(layers.LinkTypeEthernet, frames[i], &before)
			was := bytes.Clone(before.payload)
			frames[i][at] ^= x
			why := parsePacket(layers.LinkTypeEthernet, frames[i], &after)
			list := all(t, Options{}, record(t, frames))
			covered := why == "" && !again[i] && len(was) == len(after.payload) &&
				!bytes.Equal(was, after.payload) && !bytes.HasPrefix(was, []byte("MPA ID"))
			wrong := 0
			for _, m := range list {
				for _, w := range m.Wrong {
					if w.ID == "MPA-6-1" {
						wrong++
					}
				}
				if m.Name == "incomplete frame" || m.Name == "decoding resumed" {
					wrong++
				}
			}
			if covered && wrong == 0 {
				t.Errorf("%s: packet %d, byte %d xor %#x is not named", name, i+1, at, x)
			}
			if covered {
				named++
			}
			frames[i][at] ^= x
		}
		for range 200 { // places in the file, including its own headers
			at, x := rnd.IntN(len(b)), byte(1+rnd.IntN(255))
			b[at] ^= x
			_ = New(Options{}, func(*Message) {}).Read(bytes.NewReader(b))
			b[at] ^= x
		}
	}
	if named < 200 {
		t.Errorf("only %d of the changes were under a CRC", named)
	}
}

// TestFromTheMiddle: connections older than the capture are recognised, with and without CRCs.
func TestFromTheMiddle(t *testing.T) {
	for name, b := range kernel(t) {
		frames := packets(t, b)
		whole := len(all(t, Options{}, b))
		list := all(t, Options{}, record(t, frames[len(frames)/2:]))
		for _, m := range list {
			if len(m.Wrong) > 0 {
				t.Errorf("%s: %s", name, m.line)
			}
		}
		rdma := 0
		for _, m := range list {
			if m.Proto == "rdmap" {
				rdma++
			}
		}
		if rdma < whole/4 {
			t.Errorf("%s: %d messages of the second half, %d of all", name, rdma, whole)
		}
	}
}

// TestLost drops each packet in turn. The decoder must report the missing bytes, and decode the
// messages after the gap.
func TestLost(t *testing.T) {
	testkit.Long(t, "5 s")
	for _, name := range []string{"siw-send-bw-crc.pcap", "siw-write-bw-server.pcap"} {
		frames := packets(t, kernel(t)[name])
		whole := len(all(t, Options{}, record(t, frames)))
		for i := range frames {
			var p packet
			if parsePacket(layers.LinkTypeEthernet, frames[i], &p) != "" || len(p.payload) == 0 ||
				p.flags&synFlag != 0 || bytes.HasPrefix(p.payload, []byte("MPA")) {
				continue
			}
			rest := append(append([][]byte(nil), frames[:i]...), frames[i+1:]...)
			list := all(t, Options{}, record(t, rest))
			for _, m := range list {
				if len(m.Wrong) > 0 {
					t.Errorf("%s without packet %d: %s", name, i+1, m.line)
				}
			}
			if len(list) < whole-10 {
				t.Errorf("%s without packet %d: %d messages of %d", name, i+1, len(list), whole)
			}
		}
	}
}

// TestReordered swaps packets of each direction with their neighbours. The decoder must report the
// changed order, and otherwise the same messages.
func TestReordered(t *testing.T) {
	said := 0
	defer func() {
		if said < 10 {
			t.Errorf("%d are said to be out of order", said)
		}
	}()
	for name, b := range kernel(t) {
		frames := packets(t, b)
		want := all(t, Options{}, b)
		swapped := 0
		for i := 10; i+2 < len(frames); i += 5 {
			var p, q packet
			if parsePacket(layers.LinkTypeEthernet, frames[i], &p) != "" ||
				parsePacket(layers.LinkTypeEthernet, frames[i+1], &q) != "" ||
				p.src != q.src || (p.flags|q.flags)&(synFlag|finFlag|rstFlag) != 0 {
				continue
			}
			frames[i], frames[i+1] = frames[i+1], frames[i]
			swapped++
		}
		got := all(t, Options{}, record(t, frames))
		late := 0
		for _, m := range got {
			if len(m.Wrong) > 0 {
				t.Errorf("%s: %s", name, m.line)
			}
			if m.Name == "out of order" {
				late++
			}
		}
		if late > swapped || len(got)-late != len(want) {
			t.Errorf("%s: %d messages with %d out of order, in order %d; %d were swapped", name,
				len(got), late, len(want), swapped)
		}
		said += late
	}
}

// TestCutShort truncates each packet to the first 100 bytes. The decoder must decode the captured
// part of the headers.
func TestCutShort(t *testing.T) {
	b := kernel(t)["siw-write-bw-crc.pcap"]
	var buf bytes.Buffer
	w := pcapgo.NewWriter(&buf)
	w.WriteFileHeader(262144, layers.LinkTypeEthernet)
	for i, f := range packets(t, b) {
		w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, int64(i)), CaptureLength: min(100, len(f)), Length: len(f)}, f[:min(100, len(f))])
	}
	writes := 0
	for _, m := range all(t, Options{}, buf.Bytes()) {
		if len(m.Wrong) > 0 {
			t.Errorf("%s", m.line)
		}
		if m.Name == "RDMA Write" && m.Note != "" {
			writes++
		}
	}
	if writes < 5 {
		t.Errorf("%d Writes", writes)
	}
	// The file itself is truncated.
	last := all(t, Options{}, b[:len(b)/2])
	if !strings.Contains(fmt.Sprint(last[len(last)-1].line, last[len(last)-2].line, last[len(last)-3].line), "broken off") {
		t.Errorf("the end of a capture that breaks off is %s", last[len(last)-1].line)
	}
}

// A talk generates the packets of a connection.
type talk struct {
	frames [][]byte
	seq    [2]uint32
}

var talkers = [2]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:7000")}

func newTalk() *talk {
	c := &talk{seq: [2]uint32{1000, 0xfffffff0}} // the sequence numbers of one direction wrap soon
	c.packet(0, synFlag, nil)
	c.packet(1, synFlag|ackFlag, nil)
	return c
}

func (c *talk) packet(from int, flags byte, b []byte) {
	src, dst := talkers[from], talkers[1-from]
	eth := make([]byte, 54, 54+len(b))
	eth[12], eth[13] = 8, 0
	ip := eth[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, protoTCP
	n := 40 + len(b)
	ip[2], ip[3] = byte(n>>8), byte(n)
	s4, d4 := src.Addr().As4(), dst.Addr().As4()
	copy(ip[12:], s4[:])
	copy(ip[16:], d4[:])
	tcp := ip[20:]
	put := func(at int, v uint32, n int) {
		for i := range n {
			tcp[at+i] = byte(v >> (8 * (n - 1 - i)))
		}
	}
	put(0, uint32(src.Port()), 2)
	put(2, uint32(dst.Port()), 2)
	put(4, c.seq[from], 4)
	put(8, c.seq[1-from], 4)
	tcp[12], tcp[13] = 0x50, flags
	c.frames = append(c.frames, append(eth, b...))
	c.seq[from] += uint32(len(b))
	if flags&(synFlag|finFlag) != 0 {
		c.seq[from]++
	}
}

func (c *talk) say(from int, b []byte) {
	for len(b) > 0 {
		n := min(len(b), 1460)
		c.packet(from, ackFlag, b[:n])
		b = b[n:]
	}
}

// iwarpTalk returns a connection after start-up, with an encoder for each direction.
func iwarpTalk(crc, markers bool) (*talk, *[2]mpa.Encoder) {
	c := newTalk()
	c.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1, CRC: crc, Markers: markers}.Append(nil))
	c.say(1, mpa.Frame{Kind: mpa.Reply, Rev: 1, CRC: crc, Markers: markers}.Append(nil))
	return c, &[2]mpa.Encoder{{CRC: crc, Markers: markers}, {CRC: crc, Markers: markers}}
}

// TestWrong breaks one rule at a time. The decoder must name the broken rule, and no other.
func TestWrong(t *testing.T) {
	send := func(msn ddp.MSN, mo uint32) ddp.Untagged { return rdmap.Send.UntaggedHeader(msn, mo, true, 0) }
	for _, x := range []struct {
		id  string
		say func(c *talk, e *[2]mpa.Encoder)
	}{
		{"", func(c *talk, e *[2]mpa.Encoder) {
			c.say(0, e[0].Append(nil, send(1, 0).Append(nil), make([]byte, 3000)))
		}},
		{"DDP-4.3-7", func(c *talk, e *[2]mpa.Encoder) { c.say(0, e[0].Append(nil, send(2, 0).Append(nil))) }},
		{"DDP-4.3-6", func(c *talk, e *[2]mpa.Encoder) {
			c.say(0, e[0].Append(nil, send(1, 0).Append(nil)))
			c.say(0, e[0].Append(nil, send(3, 0).Append(nil)))
		}},
		{"DDP-4.3-10", func(c *talk, e *[2]mpa.Encoder) { c.say(0, e[0].Append(nil, send(1, 8).Append(nil))) }},
		{"DDP-7.1-1", func(c *talk, e *[2]mpa.Encoder) {
			h := send(1, 0)
			h.QN = 9
			c.say(0, e[0].Append(nil, h.Append(nil)))
		}},
		{"RDMAP-7.2-2", func(c *talk, e *[2]mpa.Encoder) {
			c.say(1, e[1].Append(nil, rdmap.ReadResponse.TaggedHeader(7, 0, true).Append(nil), make([]byte, 4)))
		}},
		{"RDMAP-5.2.2-7", func(c *talk, e *[2]mpa.Encoder) {
			r := rdmap.ReadRequest{SinkSTag: 7, Size: 8, SourceSTag: 9}
			c.say(0, e[0].Append(nil, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil), r.Append(nil)))
			c.say(1, e[1].Append(nil, rdmap.ReadResponse.TaggedHeader(7, 0, true).Append(nil), make([]byte, 4)))
		}},
		{"DDP-5.2-7", func(c *talk, e *[2]mpa.Encoder) {
			c.say(0, e[0].Append(nil, rdmap.Write.TaggedHeader(7, 100, false).Append(nil), make([]byte, 4)))
			c.say(0, e[0].Append(nil, rdmap.Write.TaggedHeader(7, 108, true).Append(nil), make([]byte, 4)))
		}},
		{"RDMAP-4.2-2", func(c *talk, e *[2]mpa.Encoder) {
			c.say(0, e[0].Append(nil, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil), make([]byte, 27)))
		}},
		{"DDP-4.1-10", func(c *talk, e *[2]mpa.Encoder) {
			b := send(1, 0).Append(nil)
			b[0] ^= 3
			c.say(0, e[0].Append(nil, b))
		}},
		{"RDMAP-7.2-3", func(c *talk, e *[2]mpa.Encoder) {
			b := send(1, 0).Append(nil)
			b[1] ^= 0xc0
			c.say(0, e[0].Append(nil, b))
		}},
		{"MPA-6-1", func(c *talk, e *[2]mpa.Encoder) {
			b := e[0].Append(nil, send(1, 0).Append(nil), make([]byte, 3000))
			b[100] ^= 1
			c.say(0, b)
			c.say(0, e[0].Append(nil, send(2, 0).Append(nil), make([]byte, 3000)))
		}},
	} {
		for _, markers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,markers=%v", x.id, markers), func(t *testing.T) {
				c, e := iwarpTalk(true, markers)
				x.say(c, e)
				got := ""
				for _, m := range all(t, Options{}, record(t, c.frames)) {
					for _, w := range m.Wrong {
						got += w.ID
					}
				}
				if got != x.id {
					t.Errorf("named %q", got)
				}
			})
		}
	}
}

// TestWrongVITCP is TestWrong for VI/TCP.
func TestWrongVITCP(t *testing.T) {
	var d vitcpwire.Dialect
	seg := func(h vitcpwire.Header, rest ...[]byte) []byte {
		body := bytes.Join(rest, nil)
		h.Length = uint16(vitcpwire.HeaderLen + len(body))
		return append(d.AppendHeader(nil, h), body...)
	}
	const eom = vitcpwire.EndOfMessage
	for _, x := range []struct {
		id  string
		say func(c *talk)
	}{
		{"", func(c *talk) {
			c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Send, Number: 2}, make([]byte, 9)))
			c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Send, Number: 2, Offset: 9, Flags: eom}, make([]byte, 9)))
		}},
		{"VIT-3.1-8", func(c *talk) { c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Send, Number: 2, Offset: 5, Flags: eom})) }},
		{"VIT-3.1-10", func(c *talk) {
			c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Send, Number: 2, Flags: eom}))
			c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Send, Number: 4, Flags: eom}))
		}},
		{"VIT-3.1-12", func(c *talk) {
			c.say(1, seg(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: 2, Flags: eom},
				vitcpwire.RDMA{}.Append(nil)))
		}},
		{"VIT-3.2.1-4", func(c *talk) {
			c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Write, Number: 2, Flags: eom},
				vitcpwire.RDMA{Length: 5}.Append(nil), make([]byte, 4)))
		}},
		{"VIT-3.1-NOP-1", func(c *talk) { c.say(0, seg(vitcpwire.Header{Type: vitcpwire.NOP}, make([]byte, 4))) }},
		{"VIT-3.1-17", func(c *talk) {
			for i := range 3 {
				c.say(0, seg(vitcpwire.Header{Type: vitcpwire.Send, Number: vitcpwire.Number(2 + i), Flags: eom}))
			}
		}},
		{"VIT-3.1-2", func(c *talk) {
			b := seg(vitcpwire.Header{Type: vitcpwire.Send, Number: 2, Flags: eom})
			b[0] = 7
			c.say(0, b)
		}},
	} {
		t.Run(x.id, func(t *testing.T) {
			c := newTalk()
			ce := vitcpwire.CE{Attributes: vitcpwire.Reliable | vitcpwire.FlowControl, MTU: 1000}
			c.say(0, seg(vitcpwire.Header{Type: vitcpwire.ConnectRequest, Number: 1, Flags: eom, Posted: 2},
				ce.Append(nil)))
			c.say(1, seg(vitcpwire.Header{Type: vitcpwire.ConnectAccept, Number: 1, Flags: eom, Posted: 2},
				ce.Append(nil)))
			x.say(c)
			got := ""
			for _, m := range all(t, Options{}, record(t, c.frames)) {
				for _, w := range m.Wrong {
					got += w.ID
				}
			}
			if got != x.id {
				t.Errorf("named %q", got)
			}
		})
	}
}

// TestIDs: every id in the decoder's messages names a requirement or a decision.
func TestIDs(t *testing.T) {
	docs, _ := filepath.Glob("../../../../docs/requirements/*.md")
	var text strings.Builder
	for _, f := range docs {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(b)
	}
	sources, _ := filepath.Glob("*.go")
	id := regexp.MustCompile(`"((?:(?:MPA|DDP|RDMAP|SDP|VIT|FCVI|FCFS|D)-[0-9][0-9A-Z.]*(?:-[0-9A-Z]+)*|ROCE-[A-Z]+-[0-9]+))"`)
	n := 0
	for _, f := range sources {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range id.FindAllSubmatch(b, -1) {
			n++
			if s := string(x[1]); !strings.Contains(text.String(), "| "+s+" |") &&
				!strings.Contains(text.String(), "### "+s+" ") {
				t.Errorf("%s names %s, which does not exist", f, s)
			}
		}
	}
	if n < 40 {
		t.Errorf("%d ids found", n)
	}
}

package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A ground is the target of bad segments: a stream with a receive of 16 bytes, regions with various
// rights, and regions of others.
type ground struct {
	q, other   *QueuePair
	rw         *MemoryRegion // 64 bytes, all rights but atomic, virtual offsets
	wr, rd     *MemoryRegion // write only, read only
	local      *MemoryRegion
	foreign    *MemoryRegion // a region of another domain
	stranger   *MemoryRegion // a region for another stream of the same domain
	closed     uint32        // STag of a closed region
	pdWide     *MemoryRegion
	strangeWin *Window // a window of another stream
	mem        []byte
	oddAtomic  *MemoryRegion // allows atomics, base not aligned
}

func lay(t *testing.T, q *QueuePair, other *QueuePair, foreign *ProtectionDomain) *ground {
	t.Helper()
	g := &ground{q: q, other: other, mem: bytes.Repeat([]byte{0xaa}, 64)}
	must := func(m *MemoryRegion, err error) *MemoryRegion {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	virtual := RegionOptions{Virtual: true}
	g.rw = must(q.Register(g.mem, RemoteRead|RemoteWrite, virtual))
	g.wr = must(q.Register(make([]byte, 64), RemoteWrite))
	g.rd = must(q.Register(make([]byte, 64), RemoteRead))
	g.local = must(q.Register(make([]byte, 64), LocalOnly))
	g.foreign = must(foreign.Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.stranger = must(other.Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.pdWide = must(q.PD().Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.oddAtomic = must(q.Register(make([]byte, 64)[1:], RemoteAtomic))
	gone := must(q.Register(make([]byte, 64), RemoteRead|RemoteWrite))
	g.closed = gone.STag()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	wm := must(other.Register(make([]byte, 64), LocalOnly))
	var err error
	if g.strangeWin, err = other.Bind(wm, 0, 64, RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if err := q.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(make([]byte, 16))}}); err != nil {
		t.Fatal(err)
	}
	return g
}

// An errorCase is a line of the table of [TestErrorTable].
type errorCase struct {
	row, name        string
	segments         []string
	layer, typ, code uint8
	ddp, rdmap       bool // headers that the Terminate contains
}

func errorCases(t *testing.T, lines []string) (all []errorCase) {
	t.Helper()
	for _, line := range lines {
		f := strings.Split(line, " | ")
		if len(f) != 4 {
			t.Fatalf("line %q", line)
		}
		c := errorCase{row: strings.TrimSpace(f[0]), name: strings.TrimSpace(f[1]),
			segments: strings.Split(strings.TrimSpace(f[2]), "; ")}
		if n, _ := fmt.Sscan(f[3], &c.layer, &c.typ, &c.code); n != 3 {
			t.Fatalf("Terminate in %q", line)
		}
		c.ddp, c.rdmap = strings.Contains(f[3], " ddp"), strings.Contains(f[3], " rdmap")
		all = append(all, c)
	}
	return all
}

// segmentOps maps the first word of a script to an opcode.
var segmentOps = map[string]rdmap.Opcode{
	"write": rdmap.Write, "send": rdmap.Send, "sendSE": rdmap.SendSE, "invalidate": rdmap.SendInvalidate, "invalidateSE": rdmap.SendSEInvalidate,
	"read": rdmap.ReadRequestOp, "request": rdmap.ReadRequestOp, "response": rdmap.ReadResponse, "terminate": rdmap.TerminateOp,
	"immediate": rdmap.Immediate, "immediateSE": rdmap.ImmediateSE, "atomic": rdmap.AtomicRequestOp, "atomicResponse": rdmap.AtomicResponseOp,
	"op12": 12, "op15": 15,
}

// segment returns the ULPDU a script describes:
//
//	OP TARGET LENGTH      Tagged, of LENGTH bytes to TARGET
//	OP LENGTH             Untagged
//	read TARGET LENGTH    a Read Request of LENGTH bytes from TARGET
//	atomic OP TARGET      an Atomic Request; OP is add, swap or a number
//	invalidate TARGET     Send with Invalidate, invalidateSE likewise
//	nothing               an empty ULPDU
//
// A target is a region of the ground, "gone" for a closed one, "none" for an STag that never
// existed, "window", or a number. +N and -N move the Tagged Offset from the region's first byte, @N
// sets it to N. Options follow: "more" clears the L bit; q=, msn= and mo= set the fields, which are
// 0, 1 and 0 otherwise; [I]=HEX sets byte I of the result, and [:N] truncates the result to N
// bytes.
func (g *ground) segment(t *testing.T, script string) []byte {
	t.Helper()
	w := strings.Fields(script)
	number := func(s string) uint64 {
		n, err := strconv.ParseInt(s, 0, 64)
		if err != nil {
			t.Fatalf("number %q in %q", s, script)
		}
		return uint64(n)
	}
	next := func() (s string) {
		if len(w) == 0 {
			t.Fatalf("something is missing in %q", script)
		}
		s, w = w[0], w[1:]
		return s
	}
	verb := next()
	if verb == "nothing" {
		return nil
	}
	op, ok := segmentOps[verb]
	if !ok {
		t.Fatalf("operation in %q", script)
	}
	var (
		last    = true
		stag    uint32
		to      uint64
		tagged  bool
		body    []byte
		qn, mo  uint32
		msn     = uint64(1)
		changes []func(u []byte) []byte
	)
	switch verb {
	case "read":
		stag, to = g.target(t, next())
		body = rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: uint32(number(next())), SourceSTag: stag, SourceTO: to}.Append(nil)
		qn, stag = 1, 0
	case "atomic":
		o, ok := map[string]rdmap.AtomicOp{"add": rdmap.FetchAdd, "swap": rdmap.CmpSwap}[w[0]]
		if !ok {
			o = rdmap.AtomicOp(number(w[0]))
		}
		next()
		stag, to = g.target(t, next())
		body = rdmap.AtomicRequest{Op: o, STag: stag, TO: to, Data: 1}.Append(nil)
		qn, stag = 1, 0
	case "invalidate", "invalidateSE":
		stag, _ = g.target(t, next())
	default:
		if tagged = len(w) > 1 && !strings.Contains(w[1], "=") && w[1] != "more" && w[1][0] != '['; tagged {
			stag, to = g.target(t, next())
		}
		body = bytes.Repeat([]byte{0xee}, int(number(next())))
	}
	for _, s := range w {
		key, value, _ := strings.Cut(s, "=")
		var at int
		switch {
		case s == "more":
			last = false
		case key == "q":
			qn = uint32(number(value))
		case key == "msn":
			msn = number(value)
		case key == "mo":
			mo = uint32(number(value))
		case strings.HasPrefix(s, "[:"):
			fmt.Sscanf(s, "[:%d]", &at)
			changes = append(changes, func(u []byte) []byte { return u[:at] })
		case s[0] == '[':
			var v byte
			if n, _ := fmt.Sscanf(s, "[%d]=%x", &at, &v); n != 2 {
				t.Fatalf("%q in %q", s, script)
			}
			changes = append(changes, func(u []byte) []byte { u[at] = v; return u })
		default:
			t.Fatalf("%q in %q", s, script)
		}
	}
	var u []byte
	if tagged {
		u = tag(op, stag, to, last, body)
	} else {
		h := op.UntaggedHeader(ddp.MSN(msn), mo, last, stag)
		h.QN = qn
		u = append(h.Append(nil), body...)
	}
	for _, change := range changes {
		u = change(u)
	}
	return u
}

// target returns the STag and the Tagged Offset of the target s of a script.
func (g *ground) target(t *testing.T, s string) (stag uint32, to uint64) {
	t.Helper()
	name, offset := s, ""
	if i := strings.IndexAny(s, "+-@"); i >= 0 {
		name, offset = s[:i], s[i:]
	}
	switch m := map[string]*MemoryRegion{
		"rw": g.rw, "wr": g.wr, "rd": g.rd, "local": g.local, "foreign": g.foreign, "stranger": g.stranger, "wide": g.pdWide, "odd": g.oddAtomic,
	}[name]; {
	case m != nil:
		stag, to = m.STag(), m.TO()
	case name == "none":
		stag = g.rw.STag() + 1
	case name == "gone":
		stag = g.closed
	case name == "window":
		stag = g.strangeWin.STag()
	default:
		n, err := strconv.ParseUint(name, 0, 32)
		if err != nil {
			t.Fatalf("target %q", s)
		}
		stag = uint32(n)
	}
	if offset == "" {
		return stag, to
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(offset, "@"), 10, 64)
	if err != nil {
		t.Fatalf("offset of %q", s)
	}
	if offset[0] == '@' {
		to = 0
	}
	return stag, to + uint64(n)
}

// TestErrorTable tests the error tables of RFC 5040, 5041 and 5044. A bad segment must cause
// exactly the expected Terminate, with the headers Figure 10 requires, and then FIN. A valid Write
// after the bad segment must have no effect. The local ULP must get the same error as a
// *TerminateError, and its posted requests must be flushed. The end under test is Responder in half
// of the cases, Initiator in the others. [DDP-1.2-1] [RDMAP-5.2.1-5] [RDMAP-5.3-4] [RDMAP-5.3-7]
// [RDMAP-7.2-1] [RDMAP-8.1.1-3] [RDMAPX-5.1.1-5] [RDMAPX-8.2-2] [I-42] [I-44] [I-69]
func TestErrorTable(t *testing.T) {
	// A case is a row, a name, the segments the peer sends (see ground.segment), and the Terminate:
	// layer, type, code, and the contained headers. The last segment is the bad segment.
	cases := errorCases(t, []string{
		// These cases are Tagged Buffer errors of DDP. [DDP-7.2-1]
		"DDP-7.1-9       | unknown STag                       | write none 4                   | 1 1 0 ddp",
		"DDP-7.1-9       | STag 0                             | write 0 4                      | 1 1 0 ddp",
		"DDP-7.1-9       | stale STag                         | write gone 4                   | 1 1 0 ddp",
		"DDP-7.1-10      | no write right                     | write rd 4                     | 1 1 0 ddp",
		"DDP-7.1-10      | local only                         | write local 4                  | 1 1 0 ddp",
		"DDP-7.1-11      | TO below                           | write rw-1 4                   | 1 1 1 ddp",
		"DDP-7.1-11      | TO above                           | write rw+65 4                  | 1 1 1 ddp",
		"DDP-7.1-12      | one byte beyond                    | write rw+60 5                  | 1 1 1 ddp",
		"DDP-8.2-1       | other domain                       | write foreign 4                | 1 1 2 ddp",
		"DDP-8.2-2       | other stream                       | write stranger 4               | 1 1 2 ddp",
		"DDP-7.1-13      | wrap                               | write rw@-1 2                  | 1 1 3 ddp",
		"I-59            | end at 2^64                        | write rw@-2 2                  | 1 1 3 ddp",
		"DDP-4.1-11      | version, tagged                    | write wr 4; write rw 4 [0]=c2  | 1 1 4",

		// These cases are Untagged Buffer errors of DDP.
		"DDP-7.1-1       | queue 4                            | send 4 q=4                     | 1 2 1 ddp",
		"DDP-7.1-1       | queue 2^32-1                       | send 4 q=4294967295            | 1 2 1 ddp",
		"DDP-7.1-2       | no receive posted                  | send 4; send 4 msn=2           | 1 2 2 ddp",
		"DDP-7.1-8       | MSN 0                              | send 4 msn=0                   | 1 2 3 ddp",
		"DDP-7.1-8       | MSN gap                            | send 4 msn=2                   | 1 2 3 ddp",
		"DDP-7.1-8       | MSN again                          | send 4; send 4                 | 1 2 3 ddp",
		"I-48            | next message inside a message      | send 4 more; send 4 msn=2      | 1 2 3 ddp",
		"I-48            | another message inside a message   | send 4 more; sendSE 4 msn=2    | 1 2 3 ddp",
		"DDP-7.1-6       | MO beyond                          | send 4 mo=17                   | 1 2 4 ddp",
		"I-48            | MO gap                             | send 4 more; send 4 mo=5       | 1 2 4 ddp",
		"I-48            | MO overlap                         | send 4 more; send 4 mo=3       | 1 2 4 ddp",
		"DDP-7.1-7       | message too long                   | send 17                        | 1 2 5 ddp",
		"I-49            | second segment too long            | send 16 more; send 1 mo=16     | 1 2 5 ddp",
		"DDP-4.1-11      | version, untagged                  | send 4 [0]=40                  | 1 2 6",
		"DDP-4.1-11      | version and all else, untagged     | send 4 [0]=40 [1]=ff           | 1 2 6",
		"RDMAP-6.1-6     | too many reads                     | read 0 0; read rd 4            | 1 2 3 ddp",

		// These cases are remote protection errors of RDMAP. [RDMAP-4.8-3] [RDMAP-5.2.1-13]
		"RDMAP-7.2-7     | read, unknown STag                 | read none 4                    | 0 1 0 ddp rdmap",
		"RDMAP-7.2-7     | read, stale STag                   | read gone 4                    | 0 1 0 ddp rdmap",
		"RDMAP-7.2-9     | read, TO below                     | read rw-1 4                    | 0 1 1 ddp rdmap",
		"RDMAP-7.2-9     | read, TO above                     | read rw+65 4                   | 0 1 1 ddp rdmap",
		"RDMAP-7.2-10    | read, one byte beyond              | read rw+60 5                   | 0 1 1 ddp rdmap",
		"RDMAP-7.2-10    | read, oversized                    | read rw 4294967295             | 0 1 1 ddp rdmap",
		"RDMAP-7.2-12    | read, no right                     | read wr 4                      | 0 1 2 ddp rdmap",
		"RDMAP-7.2-8     | read, other domain                 | read foreign 4                 | 0 1 3 ddp rdmap",
		"RDMAP-8.1.1-2   | read, other stream                 | read stranger 4                | 0 1 3 ddp rdmap",
		"RDMAP-7.2-11    | read, wrap                         | read rw@-1 2                   | 0 1 4 ddp rdmap",
		"RDMAP-7.2-4     | invalidate unknown                 | invalidate none                | 0 1 9 ddp",
		"RDMAP-7.2-5     | invalidate other stream's          | invalidateSE window            | 0 1 9 ddp",
		"RDMAP-8.1.1-7   | invalidate shared region           | invalidate wide                | 0 1 9 ddp",
		"SEC-6.4.5-1     | invalidate region of the stream    | invalidate rw                  | 0 1 9 ddp",

		// These cases are remote operation errors of RDMAP.
		"RDMAP-7.2-3     | version 0, send                    | send 4 [1]=03                  | 0 2 5 ddp",
		"RDMAP-4.1-7     | version 2, write                   | write rw 4 [1]=80              | 0 2 5 ddp",
		"RDMAP-7.2-6     | version 3, read request            | read rd 4 [1]=c1               | 0 2 5 ddp",
		"RDMAP-4.1-4     | send, tagged                       | send rw 4                      | 0 2 6 ddp",
		"RDMAP-4.1-4     | write, untagged                    | write 4                        | 0 2 6 ddp",
		"RDMAP-5.2.1-6   | read request on queue 0            | request 28                     | 0 2 6 ddp",
		"RDMAP-7.2-2     | send on queue 1                    | send 4 q=1                     | 0 2 6 ddp",
		"RDMAP-5.4-6     | terminate on queue 0               | terminate 4                    | 0 2 6 ddp",
		"RDMAP-4.1-11    | opcode 12                          | op12 4                         | 0 2 6 ddp",
		"RDMAP-4.1-11    | opcode 15                          | op15 4                         | 0 2 6 ddp",
		"RDMAP-5.2.2-4   | read response without a request    | response rw 4                  | 0 2 6 ddp",
		"I-47            | opcode changes inside a message    | send 4 more; sendSE 4 mo=4     | 0 2 6 ddp",
		"I-47            | opcode changes inside a message, which is too long | send 4 more; sendSE 17 mo=4    | 0 2 6 ddp",
		"I-47            | read request too short             | request 27 q=1                 | 0 2 255 ddp",
		"I-47            | read request too long              | request 29 q=1                 | 0 2 255 ddp",
		"I-47            | read request in two segments       | request 28 q=1 more            | 0 2 255 ddp",
		"RDMAP-5.4-6     | terminate cut short                | terminate 3 q=2                | 0 2 255 ddp",
		"RDMAP-5.4-3     | terminate with MSN 2               | terminate 4 q=2 msn=2          | 1 2 3 ddp",

		// These cases are for streams on which RFC 7306 is enabled.
		"RDMAPX-6.3-7    | immediate of 0                     | immediate 0                    | 0 2 255 ddp",
		"RDMAPX-6.3-7    | immediate of 7                     | immediate 7                    | 0 2 255 ddp",
		"RDMAPX-6.3-7    | immediate of 9                     | immediateSE 9                  | 0 2 255 ddp",
		"RDMAPX-6.1-2    | immediate without receive          | immediate 8; immediate 8 msn=2 | 1 2 2 ddp",
		"RDMAPX-5.2.1-10 | atomic operation 1                 | atomic 1 rw                    | 0 2 6 ddp",
		"RDMAPX-5.2.1-10 | atomic operation 15                | atomic 15 rw                   | 0 2 6 ddp",
		"RDMAPX-5.1.1-3  | atomic, misaligned                 | atomic add rw+3                | 0 2 7 ddp",
		"RDMAPX-5.1.2-5  | compare and swap, misaligned       | atomic swap rw+4               | 0 2 7 ddp",
		"RDMAPX-5.2.1-4  | aligned offset, misaligned address | atomic add odd+8               | 0 2 7 ddp",
		"RDMAPX-8.2-3    | atomic, unknown STag               | atomic add gone                | 0 1 0 ddp",
		"RDMAPX-8.2-3    | atomic, range                      | atomic add rw+60               | 0 1 1 ddp",
		"RDMAPX-8.2-3    | atomic, rights                     | atomic add rd                  | 0 1 2 ddp",
		"RDMAPX-8.2-3    | atomic, right to write alone       | atomic add wr                  | 0 1 2 ddp",
		"RDMAPX-8.2-3    | atomic, other stream               | atomic add stranger            | 0 1 3 ddp",
		"RDMAPX-8.2-3    | atomic, wrap                       | atomic add rw@-4               | 0 1 4 ddp",
		"RDMAPX-8.2-3    | atomic, end at 2^64                | atomic add rw@-8               | 0 1 4 ddp",
		"RDMAPX-5.2.2-6  | atomic response without a request  | atomicResponse 12 q=3          | 0 2 6 ddp",
		"RDMAPX-4-2      | atomic response of 32              | atomicResponse 32 q=3          | 0 2 255 ddp",

		// These cases are errors of MPA.
		"I-25            | ULPDU of 0                         | nothing                        | 2 0 3",
		"I-25            | ULPDU below the Tagged header      | write 1 0 [:13]                | 2 0 3",
		"I-25            | ULPDU below the Untagged header    | send 0 [:17]                   | 2 0 3",
	})
	dev := NewDevice(DeviceConfig{})
	pd := dev.NewPD()
	cfg := &Config{PD: pd, Immediate: true, Atomic: true}
	_, other := asInitiator(t, cfg)
	foreign := dev.NewPD()
	for _, role := range []string{"responder", "initiator"} {
		for _, c := range cases {
			t.Run(role+"/"+c.row+"/"+c.name, func(t *testing.T) {
				setUp := asInitiator
				if role == "initiator" {
					setUp = asResponder
				}
				p, q := setUp(t, cfg)
				g := lay(t, q, other, foreign)
				last := len(c.segments) - 1
				for _, s := range c.segments[:last] {
					p.ulpdu(g.segment(t, s))
				}
				// TestReadLimits tests the limit; here MSN 1 is sent twice.
				if c.name == "too many reads" {
					p.next()
				}
				bad := g.segment(t, c.segments[last])
				// The valid Write after the bad segment is in the same TCP segment. [DDP-7.1-16]
				// [MPA-8-8]
				p.ulpdu(bad, tag(rdmap.Write, g.wr.STag(), 0, true, []byte("later")))
				want := []byte{c.layer<<4 | c.typ, c.code, 0, 0}
				if c.ddp {
					hl := ddp.HeaderLen(bad[0])
					want[2] = 0xc0
					want = binary.BigEndian.AppendUint16(want, uint16(len(bad))) // [RDMAP-4.8-6]
					want = append(want, bad[:hl]...)                             // [RDMAP-4.8-8]
					if c.rdmap {
						want[2] = 0xe0
						want = append(want, bad[hl:hl+rdmap.ReadRequestLen]...) // [RDMAP-4.8-10] [RDMAP-7.1-4]
					}
				}
				p.terminate(want)
				e := wantTerminate(t, ended(t, q), false, c.layer, c.typ, c.code)
				if !c.ddp && (e.SegLen != -1 || e.DDP != nil || e.RDMAP != nil) {
					t.Errorf("error has segment length %d, header %x", e.SegLen, e.DDP)
				}
				if c.ddp && (e.SegLen != len(bad) || !bytes.Equal(e.DDP, bad[:ddp.HeaderLen(bad[0])])) { // [DDP-7.1-15] [RDMAP-3.1-4]
					t.Errorf("error has segment length %d, header %x", e.SegLen, e.DDP)
				}
				<-q.life.gone.C()
				if !bytes.Equal(g.mem, bytes.Repeat([]byte{0xaa}, 64)) { // [DDP-7.1-14]
					t.Errorf("memory was changed: %x", g.mem)
				}
				if bytes.Contains(g.wr.Bytes(), []byte("later")) {
					t.Error("a segment behind the bad one took effect")
				}
				// No pin may be left: Close of a region waits for its pins.
				for _, m := range []*MemoryRegion{g.rw, g.wr, g.rd, g.local, g.oddAtomic} {
					within(t, "Close of a region", func() { m.Close() })
				}
				// The receive must complete, with success or flushed. [DDP-6.2.2-2] [RDMAP-6.2.1-2]
				if comp, ok := q.RecvCQ().Poll(); !ok || last == 0 && comp.Status == StatusOK {
					t.Errorf("receive: %+v, %t", comp, ok)
				}
				if err := q.Post(SendWR{}); !errors.Is(err, ErrClosed) { // [RDMAP-7-2]
					t.Errorf("Post after the end: %v", err)
				}
			})
		}
	}
}

// TestExtensionsOff sends the messages of RFC 7306 to an end without Atomic and Immediate. The end
// must refuse the messages as unknown. [RDMAPX-1.1-1] [RDMAPX-1.1-3] [I-63]
func TestExtensionsOff(t *testing.T) {
	for op, v := range map[rdmap.Opcode]struct{ qn, n int }{
		rdmap.Immediate: {0, 8}, rdmap.ImmediateSE: {0, 8}, rdmap.AtomicRequestOp: {1, 52},
	} {
		t.Run(op.String(), func(t *testing.T) {
			p, q := asInitiator(t, nil)
			bad := seg(op, uint32(v.qn), 1, 0, true, make([]byte, v.n))
			p.ulpdu(bad)
			want := binary.BigEndian.AppendUint16([]byte{0x02, 6, 0xc0, 0}, uint16(len(bad)))
			p.terminate(append(want, bad[:18]...))
			wantTerminate(t, ended(t, q), false, 0, 2, 6)
		})
	}
	p, q := asInitiator(t, nil) // queue 3 is not in use without the extension
	bad := seg(rdmap.AtomicResponseOp, 3, 1, 0, true, make([]byte, 12))
	p.ulpdu(bad)
	p.terminate(append([]byte{0x12, 1, 0xc0, 0, 0, 30}, bad[:18]...))
	wantTerminate(t, ended(t, q), false, 1, 2, 1)
	if err := q.Post(SendWR{Op: OpFetchAdd}); err == nil {
		t.Error("atomic posted")
	}
	_, q = asInitiator(t, nil)
	for _, op := range []Op{OpFetchAdd, OpCmpSwap, OpImmediate, OpImmediateSE} { // [RDMAPX-1.1-2]
		if err := q.Post(SendWR{Op: op}); !errors.Is(err, ErrNotEnabled) {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// TestMPAErrors sends a wrong CRC in several places of an FPDU, early and late in the stream, a
// wrong marker, and a length above the limit. Each must end the stream with its own error.
// [MPA-4.4-14] [MPA-4.4-15] [MPA-4.4-7] [MPA-6-1] [MPA-8-1] [MPA-8-2] [MPA-8-3] [MPA-8-8] [MPA-8-9]
// [MPA-8-10] [I-22] [I-23]
func TestMPAErrors(t *testing.T) {
	for _, at := range []int{0, 2, 10, 30, -1} {
		t.Run(fmt.Sprintf("CRC, byte %d", at), func(t *testing.T) {
			p, q := asInitiator(t, nil)
			mr, _ := q.Register(make([]byte, 64), RemoteWrite)
			u := tag(rdmap.Write, mr.STag(), 0, true, bytes.Repeat([]byte{1}, 32))
			for range 3 {
				p.ulpdu(u)
			}
			b := p.enc.Append(nil, tag(rdmap.Write, mr.STag(), 32, true, bytes.Repeat([]byte{2}, 32)))
			if at < 0 {
				at += len(b)
			}
			if at == 0 {
				at = 1 // byte 0 would change the length, so that the FPDU seems incomplete
			}
			b[at] ^= 1
			if at == 1 {
				b = append(b, 0, 0, 0, 0)
			}
			b = p.enc.Append(b, u)
			p.raw(b)
			p.terminate([]byte{0x20, 2, 0, 0})
			e := wantTerminate(t, ended(t, q), false, 2, 0, 2)
			if ce, ok := errors.AsType[*mpa.CRCError](e); !ok || ce.Field == ce.Computed {
				t.Errorf("cause %v", e.Cause)
			}
			<-q.life.gone.C()
			if bytes.ContainsRune(mr.Bytes(), 2) {
				t.Error("damaged data was placed")
			}
		})
	}
	t.Run("marker", func(t *testing.T) {
		p, q := asInitiator(t, &Config{Interop: Interop{Markers: true}})
		b := p.enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, make([]byte, 1000)))
		i := bytes.Index(b, []byte{0, 0, 1, 0xe8}) // a marker 0x1e8 bytes after the length field
		if i < 0 {
			t.Fatalf("no marker in %x", b[:520])
		}
		b[i+3] -= 4
		binary.LittleEndian.PutUint32(b[len(b)-4:], mpa.CRC(0, b[:len(b)-4]))
		p.raw(b)
		p.terminate([]byte{0x20, 3, 0, 0})
		wantTerminate(t, ended(t, q), false, 2, 0, 3)
	})
	t.Run("length limit", func(t *testing.T) {
		p, q := asInitiator(t, &Config{Interop: Interop{MaxFPDU: 1000}})
		p.raw([]byte{1001 >> 8, 1001 & 0xff}) // the length alone must end the stream
		p.terminate([]byte{0x20, 3, 0, 0})
		wantTerminate(t, ended(t, q), false, 2, 0, 3)
	})
}

// TestReadLimits sends more Read Requests than IRD. The first Request beyond IRD must find no
// buffer on queue 1. [RDMAP-5.2.1-2] [RDMAP-6.1-6] [RDMAP-6.1-2] [RDMAP-5.2.2-2] [MPA2-9.1-2]
// [SEC-6.4.3.3-3] [I-20]
func TestReadLimits(t *testing.T) {
	p, q := asInitiator(t, &Config{IRD: 2, MaxIRD: 2})
	if q.IRD() != 2 {
		t.Fatalf("IRD %d", q.IRD())
	}
	mr, _ := q.Register(make([]byte, 16<<20), RemoteRead)
	// The answers exceed the socket buffers, and the peer does not read them.
	for i := ddp.MSN(1); i <= 3; i++ {
		p.ulpdu(readReq(i, rdmap.ReadRequest{SinkSTag: 9, Size: 16 << 20, SourceSTag: mr.STag()}))
	}
	wantTerminate(t, ended(t, q), false, 1, 2, 2)
}

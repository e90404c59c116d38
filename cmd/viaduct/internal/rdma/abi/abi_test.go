package abi

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// words makes little-endian bytes.
func words(v ...uint32) []byte { return Words(v...) }

// The program controls the lengths in headers. A length other than the command's is refused with
// the kernel's error.
func TestParseRequest(t *testing.T) {
	pd := words(uint32(AllocPD), 4|2<<16, 0x1000, 0)
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"alloc_pd", pd, nil},
		{"cut", pd[:12], ErrLength},
		{"no header", pd[:7], ErrLength},
		{"nothing", nil, ErrLength},
		{"response too short", words(uint32(AllocPD), 4, 0x1000, 0), ErrShort},
		{"body too short", words(uint32(QueryPort), 4|10<<16, 0x1000, 0), ErrShort},
		{"unknown command", words(99, 2), ErrCommand},
		{"unknown flag", words(1<<30, 2), ErrLength},
		{"extended", append(words(uint32(QueryDeviceEx), 1|38<<16, 0x1000, 0, 0, 0), make([]byte, 8)...), nil},
		{"extended, reserved", append(words(uint32(QueryDeviceEx), 1|38<<16, 0x1000, 0, 0, 1), make([]byte, 8)...), ErrLength},
		{"extended, response without room", append(words(uint32(QueryDeviceEx), 1, 0x1000, 0, 0, 0), make([]byte, 8)...), ErrLength},
		{"extended, cut", words(uint32(QueryDeviceEx), 1|38<<16, 0x1000, 0), ErrLength},
	} {
		r, err := ParseRequest(c.b)
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil && r.Response != 0x1000 {
			t.Errorf("%s: response at %#x", c.name, r.Response)
		}
	}
	mr := make(Body, 56)
	mr.Put32(0, uint32(RegMR))
	mr.Put16(4, 14)
	mr.Put16(6, 5)
	for i, v := range []uint64{0x10, 0x2000, 100, 0x3000, 7 | 3<<32, 0xab} {
		mr.Put64(8+8*i, v)
	}
	r, err := ParseRequest(mr)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ParseRegMR(&r), (MRRequest{0x2000, 100, 0x3000, 7, 3, 0xab}); got != want ||
		r.Response != 0x10 || r.Room != 20 {
		t.Errorf("%+v, response %#x of %d", got, r.Response, r.Room)
	}
}

// Any bytes written to a file are decoded without a panic, and no part of the request lies outside
// of the bytes.
func FuzzRequest(f *testing.F) {
	f.Add(words(uint32(AllocPD), 4|2<<16, 0x1000, 0))
	f.Add(append(words(uint32(QueryDeviceEx), 1|38<<16, 0x1000, 0, 0, 0), make([]byte, 8)...))
	f.Add(words(uint32(CMConnect), 280))
	f.Add([]byte(ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, uint64(AllocPD)}, ioctlAttr{0, 8, 1, 0},
		ioctlAttr{1, 4, 1, 0x1000})))
	f.Add([]byte(ioctlBytes(objQP, 0, ioctlAttr{2, 0, 1, 1}, ioctlAttr{7, 8, 1, 1}, ioctlAttr{8, 20, 1, 0x1000})))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRequest(b); err == nil {
			if len(r.Body)+len(r.Driver) > len(b) || r.Room < 0 {
				t.Errorf("%d bytes of %d", len(r.Body)+len(r.Driver), len(b))
			}
			ParseCreateCQ(r.Body)
			ParseRegMR(&r)
			ParseCreateQP(r.Body)
			ParseCreateSRQ(r.Body)
			ParseModifyQP(r.Body)
		}
		if r, err := ParseCM(b); err == nil {
			if len(r.Body) > len(b)-8 {
				t.Errorf("%d bytes of %d", len(r.Body), len(b))
			}
			ParseConnParam(r.Body)
			ParseAddr(r.Body)
		}
		if v, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(b)); err == nil {
			if l := layouts[v.Command]; len(v.Body) < l.in && !v.Asks || v.Room < 0 {
				t.Errorf("%v: %d bytes", v.Command, len(v.Body))
			}
			v.Key()
			for _, core := range []Body{nil, Words(1), make(Body, QueryDeviceExLen)} {
				v.Answer(core, core)
			}
		}
		AnswerNetlink(b, 1, []Found{{Driver: SIW, Name: "siw0", Uverbs: "uverbs0"}})
		var s [SQELen]byte
		copy(s[:], b)
		var e SendEntry
		if ParseSend(&s, &e) && (e.NumSGE > MaxSGE || e.Flags&Inline != 0 && e.SGE[0].Length > MaxInline) {
			t.Errorf("accepted %+v", e)
		}
	})
}

// The entries of the rings have the layout of siw-abi.h.
func TestEntries(t *testing.T) {
	var b [SQELen]byte
	p := Body(b[:])
	p.Put64(0, 77)
	p.Put16(8, Valid|Signalled)
	p.Put8(10, 2)
	p.Put8(11, uint8(WROpRead))
	p.Put32(12, 0xaa)
	p.Put64(16, 0xbb)
	p.Put64(24, 0x100)
	p.Put32(32, 5)
	p.Put32(36, 6)
	p.Put64(40, 0x200)
	p.Put32(48, 7)
	p.Put32(52, 8)
	var e SendEntry
	if !ParseSend(&b, &e) {
		t.Fatal("refused")
	}
	want := SendEntry{ID: 77, Flags: 5, NumSGE: 2, Op: WROpRead, RKey: 0xaa, RAddr: 0xbb,
		SGE: [6]SGE{{0x100, 5, 6}, {0x200, 7, 8}}}
	if e != want {
		t.Errorf("%+v", e)
	}
	p.Put8(10, 7)
	if ParseSend(&b, &e) {
		t.Error("seven elements")
	}
	p.Put16(8, Valid|Inline)
	p.Put32(32, 81)
	if ParseSend(&b, &e) {
		t.Error("81 bytes inline")
	}
	p.Put32(32, 3)
	copy(b[40:], "abc")
	if !ParseSend(&b, &e) || e.NumSGE > 1 || string(e.Inline[:3]) != "abc" {
		t.Errorf("inline: %+v", e)
	}

	q := make([]byte, CQELen)
	c := Completion{ID: 9, Op: WROpReceive, Status: WCFlush, Bytes: 4, QP: 3, Inval: 2, HasInval: true}
	flags := c.Put(q)
	binary.LittleEndian.PutUint32(q[FlagsAt:], flags)
	wantQ := append(words(9, 0, Valid|RemInval|8<<8|4<<16, 4, 2, 0, 3), 0, 0, 0, 0)
	if !bytes.Equal(q, wantQ) {
		t.Errorf("completion %x, want %x", q, wantQ)
	}
}

// A request for an acknowledgement gets the acknowledgement after the answer, because iproute2's
// rdma waits for both. A list gets none, because a list has an end message.
func TestNetlinkAck(t *testing.T) {
	dev := []Found{{Driver: SIW, Index: 3, Name: "siw0", Uverbs: "uverbs3"}}
	index := nlAttr(nil, attrDevIndex, Words(3))
	for typ, attrs := range map[uint16][]byte{
		NLGet: index, NLPortGet: nlAttr(index, attrPortIndex, Words(1)), NLSysGet: nil,
		NLResGet: index, NLStatGet: nlAttr(index, attrPortIndex, Words(1)),
		NLGetChardev: nlAttr(index, attrCharType, []byte("uverbs\x00")),
	} {
		req := nlMessage(typ, 1|nlAck, 7, 0, attrs)
		out := AnswerNetlink(req, 9, dev)
		if len(out) != 2 || Body(out[0]).U16(4) != typ {
			t.Errorf("%#x: %d messages", typ, len(out))
			continue
		}
		if a := Body(out[1]); a.U16(4) != nlError || a.U32(8) != 7 || a.U32(12) != 9 ||
			a.U32(16) != 0 || !bytes.Equal(a[20:], req[:16]) {
			t.Errorf("%#x: acknowledged by %x", typ, a)
		}
		if out := AnswerNetlink(nlMessage(typ, 1, 7, 0, attrs), 9, dev); len(out) != 1 {
			t.Errorf("%#x without: %d messages", typ, len(out))
		}
	}
	for _, typ := range []uint16{NLGet, NLResGet, 0x140a, 0x140e, NLStatGet} {
		out := AnswerNetlink(nlMessage(typ, 1|nlAck|nlDump, 7, 0, index), 9, dev)
		if len(out) == 0 || Body(out[len(out)-1]).U16(4) != nlDone {
			t.Errorf("list %#x: %d messages without an end", typ, len(out))
		}
	}
}

// Objects are counted, listed, and found by their numbers. Long lists are split into messages small
// enough for a reader's buffer.
func TestNetlinkObjects(t *testing.T) {
	var all []Object
	for i := range uint32(200) {
		all = append(all, NewObject(ObjectQP, i, 77).QP(TypeRC, 3, 5))
	}
	all = append(all, NewObject(ObjectPD, 5, 77).Users(200))
	dev := []Found{{Driver: SIW, Index: 3, Name: "siw0", Objects: func() []Object { return all }}}
	index := nlAttr(nil, attrDevIndex, Words(3))
	out := AnswerNetlink(nlMessage(0x140a, 1|nlDump, 7, 0, index), 9, dev)
	n := 0
	for _, m := range out {
		n += bytes.Count(m, nlAttr(nil, attrPID, Words(77)))
		if len(m) > 4<<10 {
			t.Errorf("a message of %d bytes", len(m))
		}
	}
	if n != 200 || len(out) < 3 {
		t.Errorf("%d queue pairs in %d messages", n, len(out))
	}
	for id, want := range map[uint32]bool{7: true, 200: false} {
		out := AnswerNetlink(nlMessage(0x140a, 1, 7, 0, nlAttr(index, attrLocalQPN, Words(id))), 9, dev)
		if found := Body(out[0]).U16(4) == 0x140a; found != want {
			t.Errorf("queue pair %d: found %v", id, found)
		}
	}
	out = AnswerNetlink(nlMessage(NLResGet, 1, 7, 0, index), 9, dev)
	if want := nlAttr(nlAttr(nil, attrSummaryName, []byte("qp\x00")), attrSummaryCount, le.AppendUint64(nil, 200)); !bytes.Contains(out[0], want) {
		t.Errorf("summary %x", out[0])
	}
}

// A dump lists the devices. An unknown command is refused with the kernel's error.
func TestAnswerNetlink(t *testing.T) {
	dev := []Found{{Driver: SIW, Index: 3, Name: "siw0", GUID: 0x0102030405060708, Uverbs: "uverbs3",
		UverbsDev: CharDev(231, 195)}}
	out := AnswerNetlink(nlMessage(NLGet, nlDump|1, 5, 0, nil), 9, dev)
	if len(out) != 2 || Body(out[0]).U16(4) != NLGet || Body(out[0]).U32(8) != 5 || Body(out[0]).U32(12) != 9 ||
		!bytes.Contains(out[0], []byte("siw0\x00")) || Body(out[1]).U16(4) != nlDone {
		t.Errorf("dump: %q", out)
	}
	if m := (nlRequest{attrs: out[0][16:]}); !m.has(67) { // RDMA_NLDEV_ATTR_DEV_PROTOCOL
		t.Error("no protocol")
	}
	ask := nlAttr(nlAttr(nil, attrDevIndex, Words(3)), attrCharType, []byte("uverbs\x00"))
	out = AnswerNetlink(nlMessage(NLGetChardev, 1, 6, 0, ask), 9, dev)
	if len(out) != 1 || !bytes.Contains(out[0], []byte("uverbs3\x00")) {
		t.Fatalf("chardev: %q", out)
	}
	m := nlRequest{attrs: out[0][16:]}
	if a, _ := m.attr(attrDriverID); a.U32(0) != SIW.ID {
		t.Errorf("driver %v", a)
	}
	if a, _ := m.attr(attrChardev); a.U64(0) != 231<<8|195 {
		t.Errorf("device number %#x", a.U64(0))
	}
	for typ, want := range map[uint16]int32{0x1402: eopnotsupp, NLGetChardev: einval, NLGet: enodev} {
		out = AnswerNetlink(nlMessage(typ, 1, 7, 0, nil), 9, dev)
		if len(out) != 1 || Body(out[0]).U16(4) != nlError || int32(Body(out[0]).U32(16)) != -want {
			t.Errorf("%#x: %x", typ, out)
		}
	}
}

func TestAddr(t *testing.T) {
	for _, s := range []string{"192.0.2.1:7174", "[2001:db8::1]:80", "[fe80::1%3]:7174"} {
		a := netip.MustParseAddrPort(s)
		b := make(Body, 28)
		PutAddr(b, a)
		if got, ok := ParseAddr(b); !ok || got != a {
			t.Errorf("%v: %v, %v", a, got, ok)
		}
	}
	if _, ok := ParseAddr(make(Body, 28)); ok {
		t.Error("family 0")
	}
}

// Every write command has a table of fields. The fields lie within the body and do not overlap. If
// the command has a response, the first field is the address of the response.
func TestFields(t *testing.T) {
	for c, l := range layouts {
		list := c.Fields()
		if c >= OpenContext && c < Extended { // by ioctl alone
			continue
		}
		if len(list) == 0 {
			t.Errorf("%v has no fields", c)
		}
		end := 0
		for _, f := range list {
			if f.At < end || f.At+f.Size > l.in || f.At%f.Size != 0 {
				t.Errorf("%v: %s is at %d and has %d bytes; the field before ends at %d, the body at %d",
					c, f.Name, f.At, f.Size, end, l.in)
			}
			end = f.At + f.Size
		}
		if got := len(list) > 0 && list[0].Kind == Reply; got != (l.response && c&Extended == 0) {
			t.Errorf("%v: the first field is a response: %v", c, got)
		}
	}
	if n := len(Commands()) + len(RXECommands()); n != len(fields)+len(rxeFields) {
		t.Errorf("%d commands of %d", n, len(fields)+len(rxeFields))
	}
}

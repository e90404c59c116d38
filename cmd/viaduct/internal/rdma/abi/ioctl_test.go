package abi

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// An ioctlAttr describes an attribute to encode.
type ioctlAttr struct {
	id, len, flags uint16
	data           uint64
}

// ioctlBytes returns the structure of an ioctl.
func ioctlBytes(object, method uint16, attrs ...ioctlAttr) Body {
	b := make(Body, ioctlHeaderLen+attrLen*len(attrs))
	b.Put16(0, uint16(len(b)))
	b.Put16(2, object)
	b.Put16(4, method)
	b.Put16(6, uint16(len(attrs)))
	b.Put32(16, SIW.ID)
	for i, a := range attrs {
		p := b[ioctlHeaderLen+attrLen*i:]
		p.Put16(0, a.id)
		p.Put16(2, a.len)
		p.Put16(4, a.flags)
		p.Put64(8, a.data)
	}
	return b
}

// memoryAt returns a function to read b as memory starting at 0x1000.
func memoryAt(b []byte) func(uint64, []byte) error {
	return func(addr uint64, p []byte) error {
		if addr < 0x1000 || addr-0x1000 > uint64(len(b)) || uint64(len(b))-(addr-0x1000) < uint64(len(p)) {
			return errors.New("not mapped")
		}
		copy(p, b[addr-0x1000:])
		return nil
	}
}

// Errors in the structure of an ioctl are refused like in the kernel. A correct structure gives the
// same command as write.
func TestParseIoctl(t *testing.T) {
	change := func(b Body, f func(Body)) Body { f(b); return b }
	port := func() Body { return ioctlBytes(objDevice, 2, ioctlAttr{0, 8, 1, 1}, ioctlAttr{1, 48, 1, 0x9000}) }
	pd := uint64(AllocPD)
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"query_port", port(), nil},
		{"no header", port()[:20], ErrFault},
		{"attributes cut", port()[:40], ErrFault},
		{"length", change(port(), func(b Body) { b.Put16(0, 57) }), ErrLength},
		{"too many attributes", change(port(), func(b Body) { b.Put16(0, 24+16*300); b.Put16(6, 300) }), ErrLength},
		{"reserved", change(port(), func(b Body) { b.Put64(8, 1) }), ErrProtocol},
		{"reserved at the end", change(port(), func(b Body) { b.Put32(20, 1) }), ErrProtocol},
		{"another driver", change(port(), func(b Body) { b.Put32(16, 1) }), ErrLength},
		{"no such method", ioctlBytes(objDevice, 99), ErrProtocol},
		{"attribute that must be known", ioctlBytes(objDevice, 2, ioctlAttr{0, 8, 1, 1}, ioctlAttr{77, 8, 1, 1}), ErrProtocol},
		{"attribute that need not be", ioctlBytes(objDevice, 2, ioctlAttr{0, 8, 1, 1}, ioctlAttr{77, 8, 0, 1}), nil},
		{"attribute twice", ioctlBytes(objDevice, 2, ioctlAttr{0, 8, 1, 1}, ioctlAttr{0, 8, 1, 1}), ErrLength},
		{"attribute's reserved", change(port(), func(b Body) { b.Put16(30, 1) }), ErrLength},
		{"attribute missing", ioctlBytes(objDevice, 2, ioctlAttr{1, 48, 1, 0x9000}), ErrLength},
		{"number too short", ioctlBytes(objDevice, 2, ioctlAttr{0, 4, 1, 1}), ErrLength},
		{"number too large", ioctlBytes(objDevice, 2, ioctlAttr{0, 8, 1, 257}), ErrLength},
		{"handle with a length", ioctlBytes(objMR, 1, ioctlAttr{0, 4, 1, 1}), ErrLength},
		{"handle too large", ioctlBytes(objMR, 1, ioctlAttr{0, 0, 1, 1 << 40}), ErrLength},
		{"value elsewhere", ioctlBytes(objQP, 0, ioctlAttr{8, 20, 1, 0x9000}, ioctlAttr{7, 8, 1, 1}), ErrFault},
		{"value too long", ioctlBytes(objCQ, 0, ioctlAttr{1, 8, 1, 1}), ErrLength},
		{"place of a handle missing", ioctlBytes(objAsyncEvent, 0), ErrLength},
		{"time stamps", ioctlBytes(objCQ, 0, ioctlAttr{0, 0, 1, 0}, ioctlAttr{1, 4, 1, 9}, ioctlAttr{2, 8, 1, 7}, ioctlAttr{4, 4, 1, 0}, ioctlAttr{5, 4, 1, 1}), ErrCommand},
		{"invoke_write", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, pd}, ioctlAttr{0, 8, 1, 0}, ioctlAttr{1, 4, 1, 0x9000}), nil},
		{"invoke_write, no body", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, pd}, ioctlAttr{1, 4, 1, 0x9000}), ErrShort},
		{"invoke_write, no room", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, pd}, ioctlAttr{0, 8, 1, 0}, ioctlAttr{1, 3, 1, 0x9000}), ErrShort},
		{"invoke_write, no command", ioctlBytes(objDevice, 0, ioctlAttr{0, 8, 1, 0}), ErrLength},
		{"invoke_write, unknown command", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, 99}), ErrCommand},
		{"invoke_write, a command of ioctl", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, uint64(OpenContext)}), ErrLength},
		{"invoke_write, body too long", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, pd}, ioctlAttr{0, MaxRequest + 1, 1, 0x1000}), ErrLength},
		{"invoke_write, nothing there", ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, pd}, ioctlAttr{0, 40, 1, 0x9000}), ErrFault},
		{"driver's part nowhere", ioctlBytes(objMR, 1, ioctlAttr{0, 0, 1, 1}, ioctlAttr{attrDriverIn, 9, 1, 0x9000}), ErrFault},
	} {
		if v, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(c.b)); err != c.want || v != nil && v.Asks {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	ask := ioctlBytes(objDevice, 0, ioctlAttr{2, 8, 1, uint64(QueryDevice)})
	if v, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(ask)); err != nil || !v.Asks {
		t.Errorf("a library asks for this form: %+v, %v", v, err)
	}
}

// A queue pair created by attributes equals a queue pair created by the write command, and the
// answer goes where the attributes say.
func TestIoctlCreateQP(t *testing.T) {
	b := ioctlBytes(objQP, 0,
		ioctlAttr{2, 0, 1, 11}, ioctlAttr{4, 0, 1, 12}, ioctlAttr{5, 0, 1, 13}, ioctlAttr{3, 0, 1, 14},
		ioctlAttr{0, 0, 1, 0},
		ioctlAttr{9, 8, 1, TypeRC}, ioctlAttr{7, 8, 1, 0xabcd}, ioctlAttr{10, 4, 1, 1 << 12}, ioctlAttr{12, 0, 1, 5},
		ioctlAttr{8, 20, 1, 0x1000 + 24 + 16*13}, ioctlAttr{13, 20, 1, 0x5000},
		ioctlAttr{14, 4, 1, 0x6000}, ioctlAttr{attrDriverOut, 8, 1, 0x7000})
	b = append(b, Words(21, 22, 3, 4, 5)...)
	v, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(b))
	if err != nil {
		t.Fatal(err)
	}
	want := QPRequest{UserHandle: 0xabcd, PD: 11, SendCQ: 12, RecvCQ: 13, SRQ: 14, SendWR: 21,
		RecvWR: 22, SendSGE: 3, RecvSGE: 4, Inline: 5,
		SignalAll: true, Type: TypeRC, IsSRQ: true}
	if got := ParseCreateQP(v.Body); v.Command != CreateQP || got != want {
		t.Errorf("%v %+v, want %+v", v.Command, got, want)
	}
	puts := v.Answer(Words(31, 32, 41, 42, 43, 44, 45, 0), Words(51, 52, 53))
	if len(puts) != 4 || puts[3].At != 0x1018 {
		t.Fatalf("%+v", puts)
	}
	for i, want := range []Put{{0x5000, Words(41, 42, 43, 44, 45)}, {0x6000, Words(32)}, {0x7000, Words(51, 52)}} {
		if puts[i].At != want.At || !bytes.Equal(puts[i].Bytes, want.Bytes) {
			t.Errorf("put %d: %+v, want %+v", i, puts[i], want)
		}
	}
	back := Body(puts[3].Bytes)
	if len(back) != 16*13 || back.U64(4*16+8) != 31 {
		t.Errorf("the handle is %d", back.U64(4*16+8))
	}
	for i := range 13 {
		marked := back.U16(16*i+4)&attrValidOutput != 0
		if want := slices.Contains([]uint16{13, 14, attrDriverOut}, back.U16(16*i)); marked != want {
			t.Errorf("attribute %d is marked as written: %v", back.U16(16*i), marked)
		}
	}
	// The second call finds the values of the first call in the structure, and is the same command.
	copy(b[24:], back)
	again, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(b))
	if err != nil || !bytes.Equal(again.Key(), v.Key()) {
		t.Errorf("made again: %v, key %x, want %x", err, again.Key(), v.Key())
	}
}

// Of the flags of a queue pair, only the flag to signal all requests is supported.
func TestIoctlQPFlags(t *testing.T) {
	for bit := range 32 {
		b := ioctlBytes(objQP, 0,
			ioctlAttr{2, 0, 1, 11}, ioctlAttr{4, 0, 1, 12}, ioctlAttr{5, 0, 1, 13}, ioctlAttr{0, 0, 1, 0},
			ioctlAttr{9, 8, 1, TypeRC}, ioctlAttr{7, 8, 1, 0xabcd}, ioctlAttr{10, 4, 1, 1 << bit},
			ioctlAttr{8, 20, 1, 0x1000 + 24 + 16*8})
		v, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(append(b, Words(1, 1, 1, 1, 0)...)))
		switch {
		case bit != 12:
			if err != ErrCommand {
				t.Errorf("flag 1<<%d: %v, want %v", bit, err, ErrCommand)
			}
		case err != nil:
			t.Errorf("all requests signalled: %v", err)
		case !ParseCreateQP(v.Body).SignalAll:
			t.Error("the flag for all requests has no effect")
		}
	}
}

// Errors in the attributes of any method are refused like in the kernel.
func TestMethods(t *testing.T) {
	for id, m := range methods {
		parse := func(attrs []ioctlAttr) error {
			_, err := ParseIoctl(SIW.ID, 0x1000, memoryAt(ioctlBytes(id.object, id.method, attrs...)))
			return err
		}
		right := func(in attrIn) ioctlAttr {
			a := ioctlAttr{id: in.id, flags: attrMandatory}
			switch {
			case in.kind == number:
				a.len, a.data = 8, 0
			case in.kind == value:
				a.len = uint16(in.size)
			}
			if a.len > 8 {
				a.data = 0x1000 // the structure itself
			}
			return a
		}
		var attrs []ioctlAttr
		for _, in := range m.in {
			attrs = append(attrs, right(in))
		}
		for _, out := range m.out {
			attrs = append(attrs, ioctlAttr{out.id, uint16(out.size), attrMandatory, 0x1000})
		}
		for i, in := range m.in { // an attribute may be for a feature that does not exist
			if less := slices.Delete(slices.Clone(attrs), i, i+1); in.optional &&
				errors.Is(parse(attrs), ErrCommand) && parse(less) == nil {
				attrs = less
				break
			}
		}
		if err := parse(attrs); err != nil {
			t.Errorf("%v, %v: %v", id, m.command, err)
			continue
		}
		with := func(i int, f func(*ioctlAttr)) []ioctlAttr {
			list := slices.Clone(attrs)
			f(&list[i])
			return list
		}
		check := func(what string, attr uint16, list []ioctlAttr, want error) {
			if err := parse(list); err != want {
				t.Errorf("%v, %v, attribute %d %s: %v, want %v", id, m.command, attr, what, err, want)
			}
		}
		for i, a := range attrs {
			check("twice", a.id, append(slices.Clone(attrs), a), ErrLength)
			less := slices.Delete(slices.Clone(attrs), i, i+1)
			if k := slices.IndexFunc(m.in, func(in attrIn) bool { return in.id == a.id }); k >= 0 {
				if in := m.in[k]; !in.optional {
					check("missing", a.id, less, ErrLength)
				}
				check("too long", a.id, with(i, func(a *ioctlAttr) { a.len, a.data = a.len+1, 0x1000 }), ErrLength)
				check("much too long", a.id, with(i, func(a *ioctlAttr) { a.len = MaxRequest + 1 }), ErrLength)
				if m.in[k].kind == object {
					check("with a handle that can't be", a.id,
						with(i, func(a *ioctlAttr) { a.data = 1 << 31 }), ErrLength)
				} else if a.len > 8 {
					check("nowhere", a.id, with(i, func(a *ioctlAttr) { a.data = 8 }), ErrFault)
				} else if m.in[k].kind == number {
					check("too large", a.id, with(i, func(a *ioctlAttr) { a.data = 1 << 63 }), ErrLength)
				}
			} else if a.len == 0 {
				check("missing", a.id, less, ErrLength)
			}
		}
		check("unknown", 99, append(slices.Clone(attrs), ioctlAttr{id: 99, flags: attrMandatory}), ErrProtocol)
		check("unknown, and told to ignore it", 99, append(slices.Clone(attrs), ioctlAttr{id: 99}), nil)
	}
}

// Libraries that send commands by ioctl alone destroy objects by methods of their classes, but make
// address handles and windows by commands inside the ioctl.
func TestIoctlDestroy(t *testing.T) {
	for _, c := range []struct {
		object, method uint16
		command        Command
	}{
		{objPD, 0, DeallocPD}, {objAH, 0, DestroyAH}, {objMR, 1, DeregMR}, {objMW, 0, DeallocMW},
	} {
		const handle = 7
		v, err := ParseIoctl(RXE.ID, 0x1000, memoryAt(func() Body {
			b := ioctlBytes(c.object, c.method, ioctlAttr{0, 0, attrMandatory, handle})
			b.Put32(16, RXE.ID)
			return b
		}()))
		if err != nil {
			t.Errorf("%v: %v", c.command, err)
		} else if v.Command != c.command || v.Body.U32(0) != handle {
			t.Errorf("%v of %d, want %v of %d", v.Command, v.Body.U32(0), c.command, handle)
		}
	}
}

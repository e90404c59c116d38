package nvmewire

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sqes holds entries the Linux host sent, with changed addresses and keys.
var sqes = []struct {
	name string
	hex  string
	sqe  SQE
}{
	{"Connect, keyed with invalidate", "7f 40 0000 01 000000 0000000000000000 0000000000000000" +
		"0010203040506070 000400 04030201 4f 0000 0000 1f00 00 00 10270000 000000000000000000000000",
		SQE{Opcode: OpFabrics, Flags: 0x40, FCType: FCConnect, NSID: 1,
			SGL: SGL{SGLKeyedInvalidate, 0x7060504030201000, 1024, 0x01020304},
			CDW: [6]uint32{0, 0x1f, 10000}}},
	{"Write, in the capsule", "01 40 0510 01000000 0000000000000000 0000000000000000" +
		"0000000000000000 00020000 000000 01 0800000000000000 0000 0000 00000000 0000000000000000",
		SQE{Opcode: OpWrite, Flags: 0x40, CID: 0x1005, FCType: 1, NSID: 1,
			SGL: SGL{Type: SGLOffset, Length: 512}, CDW: [6]uint32{8}}},
	{"Keep Alive, no data", "18 40 1f00 00000000 0000000000000000 0000000000000000" +
		"0000000000000000 000000 00000000 40 000000000000000000000000000000000000000000000000",
		SQE{Opcode: OpKeepAlive, Flags: 0x40, CID: 31, SGL: SGL{Type: SGLKeyed}}},
}

// TestSQE checks the layout of the submission queue entry and of its SGL descriptor.
func TestSQE(t *testing.T) { // [NVME-SQE-1] [NVME-SGL-1]
	for _, c := range sqes {
		b := unhex(t, c.hex)
		got, err := ParseSQE(b)
		if err != nil || got != c.sqe {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.sqe)
		}
		if again := got.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%s: appended\n%x, want\n%x", c.name, again, b)
		}
		for n := range b {
			if _, err := ParseSQE(b[:n]); err != ErrShort {
				t.Errorf("%s: %d bytes: %v", c.name, n, err)
			}
		}
	}
	if s := sqes[0].sqe; !s.UsesSGL() || !s.SGL.Invalidates() || s.Name(true) != "Connect" { // [NVME-SQE-2] [NVME-SGL-2]
		t.Errorf("%+v", s)
	}
	if s := sqes[2].sqe; s.SGL.Invalidates() || s.Name(true) != "Keep Alive" || s.Name(false) != "opcode 0x18" {
		t.Errorf("%+v", s)
	}
	if (&SQE{}).UsesSGL() || (&SQE{Flags: 0xc0}).UsesSGL() || !(&SQE{Flags: 0x80}).UsesSGL() {
		t.Error("PSDT")
	}
	if (&SGL{Type: SGLKeyedInvalidate}).Invalidates() || (&SGL{Type: 0x41}).Valid() || (&SGL{}).Valid() {
		t.Error("SGL types")
	}
	if first, n := (&SQE{CDW: [6]uint32{1, 2, 3}}).Range(); first != 2<<32|1 || n != 4 { // [NVME-IO-1]
		t.Errorf("range %d, %d", first, n)
	}
}

func TestCQE(t *testing.T) { // [NVME-CQE-1]
	want := unhex(t, "0100000002000000 0300 0000 1f00 0440")
	c := CQE{Result: 1 | 2<<32, SQHead: 3, CID: 31, Status: InvalidField &^ DNR}
	c.Status |= 1 << 13
	if got := c.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if got, err := ParseCQE(want); err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range want {
		if _, err := ParseCQE(want[:n]); err != ErrShort {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for s, want := range map[Status]string{OK: "success", InvalidField: "invalid field", InvalidField &^ DNR: "invalid field", 0x3ff: "status 0x3ff"} {
		if s.String() != want {
			t.Errorf("%q, want %q", s, want)
		}
	}
}

func TestPrivateData(t *testing.T) { // [NVME-CM-1] [NVME-CM-2]
	b := unhex(t, "0000 0100 8000 7f00 0200"+strings.Repeat("00", 22))
	want := Request{QID: 1, HRQSize: 128, HSQSize: 127, CntlID: 2}
	if got, err := ParseRequest(b); err != nil || got != want || !bytes.Equal(got.Append(nil), b) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range b {
		if _, err := ParseRequest(b[:n]); err != ErrShort {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if got := AppendReply(nil, 0x81); len(got) != ReplyLen || got[2] != 0x81 || got[0]|got[1]|got[3] != 0 {
		t.Errorf("reply %x", got)
	}
	if got := AppendReject(nil, RejectQID); !bytes.Equal(got, []byte{0, 0, 3, 0}) {
		t.Errorf("reject %x", got)
	}
}

func TestConnect(t *testing.T) { // [NVME-FAB-1]
	want := Connect{QID: 2, SQSize: 127, KATO: 5000, HostID: [16]byte{1, 2}, CntlID: 0xffff,
		SubNQN: "nqn.a", HostNQN: "nqn.b"}
	var s SQE
	s.SetConnect(&want)
	got := s.ConnectCommand()
	d := want.AppendData(nil)
	if err := got.ParseData(d); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if len(d) != ConnectLen || d[16] != 0xff || string(d[256:262]) != "nqn.a\x00" || string(d[512:518]) != "nqn.b\x00" {
		t.Errorf("data %x", d)
	}
	for i := 256; i < 512; i++ {
		d[i] = 'x'
	}
	if got.ParseData(d); got.SubNQN != "" {
		t.Errorf("a name without NUL is %q", got.SubNQN)
	}
	if got.ParseData(d[:1023]) != ErrShort {
		t.Error("1,023 bytes")
	}
}

func TestProperty(t *testing.T) { // [NVME-PROP-1]
	for _, p := range []Property{{Offset: PropCC, Value: 0x460001}, {Offset: PropCAP, Wide: true, Value: 1 << 63}} {
		var s SQE
		s.SetProperty(FCPropertySet, p)
		if got := s.Property(); got != p || s.Name(true) != "Property Set" {
			t.Errorf("%+v, want %+v", got, p)
		}
	}
}

func TestDSMRange(t *testing.T) { // [NVME-IO-5]
	b := unhex(t, "00000000 02000000 0300000000000000")
	if r, err := ParseDSMRange(b); err != nil || r != (DSMRange{2, 3}) || !bytes.Equal(r.Append(nil), b) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := ParseDSMRange(b[:15]); err != ErrShort {
		t.Error(err)
	}
}

func TestIdentify(t *testing.T) { // [NVME-ID-1] [NVME-ID-2] [NVME-ID-4] [NVME-ID-5]
	c := IdentifyController{Serial: "s", Model: "m m", Firmware: "1", MDTS: 8, CntlID: 7,
		Version: 0x10400, OAES: 1 << 8, Type: IOController,
		AERL: 3, KAS: 10, MaxCmd: 128, Namespaces: 9, ONCS: ONCSDSM, WriteCache: true, SubNQN: "nqn.a", InCapsule: 4096}
	b := c.Append([]byte{1})[1:]
	if got, err := ParseIdentifyController(b); err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
	if len(b) != PageLen || b[536] != 5 || b[538] != 0x10 || b[512] != 0x66 || b[1796] != 1 ||
		b[1800] != 0 || b[1803] != 1 || b[23] != ' ' {
		t.Errorf("%x", b)
	}
	n := IdentifyNamespace{Blocks: 100, BlockShift: 12, ReadOnly: true, ReadsZero: true,
		Preferred: 8, NGUID: [16]byte{1, 15: 2}}
	b = n.Append(nil)
	if got, err := ParseIdentifyNamespace(b); err != nil || got != n {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ParseIdentifyNamespace(b[1:]); err != ErrShort {
		t.Error(err)
	}
	if _, err := ParseIdentifyController(b[1:]); err != ErrShort {
		t.Error(err)
	}
	d := AppendDescriptors(nil, n.NGUID)
	if len(d) != PageLen || d[0] != 2 || d[20] != 3 || d[40] != 4 || !bytes.Equal(d[24:40], n.NGUID[:]) {
		t.Errorf("%x", d[:48])
	}
	if l := AppendList(nil, make([]uint32, 2000)); len(l) != PageLen {
		t.Errorf("list of %d bytes", len(l))
	}
}

func TestLogs(t *testing.T) { // [NVME-ADM-3] [NVME-DISC-1] [NVME-DISC-2]
	for _, l := range []LogRequest{{LogDiscovery, true, 0x80000 * 4, 1024}, {Page: LogSMART, Length: 512}} {
		var s SQE
		s.SetLogRequest(l)
		if got := s.LogRequest(); got != l {
			t.Errorf("%+v, want %+v", got, l)
		}
	}
	e := []DiscoveryEntry{{Service: "4420", Address: "10.0.2.2", SubNQN: "nqn.a"},
		{IPv6: true, PortID: 2, Service: "1", Address: "::1", SubNQN: "nqn.b"}}
	b := AppendDiscovery(nil, 5, e)
	if g, got, err := ParseDiscovery(b); g != 5 || err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("%d, %+v, %v", g, got, err)
	}
	if _, got, _ := ParseDiscovery(b[:len(b)-1]); len(got) != 1 {
		t.Errorf("of a page that is cut: %+v", got)
	}
	if b[1024+769] != 5 || len(AppendEffects(nil, []uint8{OpWrite})) != PageLen ||
		len(AppendHealth(nil)) != 512 || len(AppendFirmware(nil, "1")) != 512 {
		t.Error("log pages")
	}
}

// FuzzCapsule parses arbitrary bytes as a command capsule, and as the data of each command.
func FuzzCapsule(f *testing.F) {
	for _, c := range sqes {
		b, _ := hex.DecodeString(strings.ReplaceAll(c.hex, " ", ""))
		f.Add(append(b, make([]byte, ConnectLen)...))
	}
	f.Add(AppendDiscovery(nil, 1, make([]DiscoveryEntry, 2)))
	f.Add((&IdentifyController{}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseSQE(b); err == nil {
			s.Name(true)
			again, err := ParseSQE(s.Append(nil))
			if s.Opcode == OpFabrics {
				s.NSID = uint32(s.FCType) // the other three bytes are reserved
			}
			if err != nil || again != s {
				t.Fatalf("%+v, %v, want %+v", again, err, s)
			}
			c := s.ConnectCommand()
			if c.ParseData(b[SQELen:]) == nil && (len(c.SubNQN) > 255 || len(c.HostNQN) > 255) {
				t.Fatalf("long names: %+v", c)
			}
			s.LogRequest()
			s.Property()
		}
		if c, err := ParseCQE(b); err == nil {
			if again, _ := ParseCQE(c.Append(nil)); again != c {
				t.Fatalf("%+v, want %+v", again, c)
			}
		}
		if r, err := ParseRequest(b); err == nil {
			if again, _ := ParseRequest(r.Append(nil)); again != r {
				t.Fatalf("%+v, want %+v", again, r)
			}
		}
		if c, err := ParseIdentifyController(b); err == nil && len(c.SubNQN) > 255 {
			t.Fatalf("%+v", c)
		}
		ParseIdentifyNamespace(b)
		if _, e, err := ParseDiscovery(b); err == nil && len(e) > len(b)/DiscoveryEntryLen {
			t.Fatalf("%d entries", len(e))
		}
		ParseDSMRange(b)
	})
}

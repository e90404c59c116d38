package nvme

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"viaduct/internal/nvmecore"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
	"viaduct/samehost"
)

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>8)*31 + byte(i)*7 + seed
	}
	return b
}

// An onlyReader is a backend with none of the optional methods.
type onlyReader struct{ b []byte }

func (r onlyReader) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(r.b).ReadAt(p, off)
}

// A syncFile counts the calls of Sync.
type syncFile struct {
	*os.File
	syncs atomic.Int32
}

func (f *syncFile) Sync() error { f.syncs.Add(1); return nil }

func newFile(t testing.TB, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

func counting(t testing.TB, size int64) *syncFile { return &syncFile{File: newFile(t, size)} }

// backends returns writable namespaces of every kind. Without CRC, the data of memory backends is
// sent in place; otherwise the data is copied first.
func backends(t testing.TB, size int64) map[string]Namespace {
	t.Helper()
	f, err := File(newFile(t, size))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Namespace{"memory": Memory(size), "plain file": {Data: counting(t, size), Size: size}, "file": f}
	m, err := MapFile(newFile(t, size), false)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Log("not tried: mapped files, which this system does not have")
		return all
	}
	if err != nil {
		t.Fatal(err)
	}
	all["mapped file"] = m
	return all
}

func withoutCRC() *iwarp.Device { return iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: true}) }

// crcConfig returns a configuration with or without CRCs. The streams always use TCP instead of
// shared memory.
func crcConfig(crc bool) Config {
	return Config{Stream: &iwarp.Config{SameHost: samehost.Off,
		Device: iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: !crc})}}
}

// TestReadWrite transfers data of many lengths, by key and in the capsule, over two queues, with
// backends of every kind.
func TestReadWrite(t *testing.T) { // [NVME-SGL-5] [NVME-IO-1] [NVME-CM-3]
	for _, crc := range []bool{true, false} {
		for name, ns := range backends(t, 4<<20) {
			t.Run(fmt.Sprintf("%s, CRC %v", name, crc), func(t *testing.T) { testReadWrite(t, crcConfig(crc), ns) })
		}
	}
}

func testReadWrite(t *testing.T, cfg Config, ns Namespace) {
	tg, addr := serveWith(t, cfg, ns)
	adm, id := admin(t, addr, defaultNQN)
	setQueues(adm, 2)
	a, b := ioQueue(t, addr, id, 1, 128), ioQueue(t, addr, id, 2, 2)
	for i, n := range []int{512, 4096, 64 << 10, 1 << 20} {
		want := pattern(n, byte(i))
		a.write(8*i, want)
		if got := b.read(8*i, n); !bytes.Equal(got, want) {
			t.Errorf("%d bytes differ", n)
		}
	}
	want := pattern(4096, 99)
	s := a.rw(nvmewire.OpWrite, 16, 4096)
	s.SGL = nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 4096}
	a.want(nvmewire.OK, s, want...)
	if got := b.read(16, 4096); !bytes.Equal(got, want) {
		t.Error("data in the capsule differ")
	}
	copy(a.mem, want) // [NVME-IO-4]
	a.want(nvmewire.OK, a.rw(nvmewire.OpCompare, 16, 4096))
	a.mem[4095]++
	a.want(nvmewire.CompareFailure, a.rw(nvmewire.OpCompare, 16, 4096))
	last := 4<<20/512 - 1
	a.want(nvmewire.OK, a.rw(nvmewire.OpRead, last, 512))
	a.want(nvmewire.LBAOutOfRange, a.rw(nvmewire.OpRead, last, 1024))
	if q := tg.Queues(); len(q) != 3 || q[0].Host != hostNQN {
		t.Errorf("%+v", q)
	}
}

// TestDeep fills a queue with reads and writes, more at a time than the queue's ORD.
func TestDeep(t *testing.T) {
	const n = 100
	_, addr := serve(t, Namespace{Data: newFile(t, 1<<20), Size: 1 << 20})
	_, io := attach(t, addr, n)
	want := pattern(n*4096, 3)
	for _, op := range []uint8{nvmewire.OpWrite, nvmewire.OpRead} {
		if op == nvmewire.OpWrite {
			copy(io.mem, want)
		} else {
			clear(io.mem)
		}
		for i := range n {
			s := io.rw(op, 8*i, 4096)
			s.SGL.Addr += uint64(4096 * i)
			io.post(s, nil)
		}
		for range n {
			if e, ok := io.next(); !ok || e.Status != nvmewire.OK {
				t.Fatal(e, ok, io.qp.Err())
			}
		}
	}
	if !bytes.Equal(io.mem[:len(want)], want) {
		t.Error("data differ")
	}
}

// TestInvalidate: the response invalidates the key of a command, even if the command fails.
func TestInvalidate(t *testing.T) { // [NVME-SGL-2]
	_, addr := serve(t, Memory(1<<20))
	_, io := attach(t, addr, 8)
	for _, s := range []nvmewire.SQE{io.rw(nvmewire.OpRead, 0, 4096), io.rw(nvmewire.OpWrite, 0, 4096), io.rw(nvmewire.OpRead, 1<<20, 4096), {Opcode: 0x77, SGL: io.keyed(8)}} {
		w, err := io.qp.Bind(io.mr, 0, 8192, 3)
		if err != nil {
			t.Fatal(err)
		}
		s.SGL = nvmewire.SGL{Type: nvmewire.SGLKeyedInvalidate, Length: s.SGL.Length, Key: w.STag(), Addr: w.TO()}
		e := io.do(s)
		if !io.last.Invalidated || io.last.STag != w.STag() || w.Valid() {
			t.Errorf("%s, %v: invalidated %v, STag %#x, want %#x", s.Name(false), e.Status,
				io.last.Invalidated, io.last.STag, w.STag())
		}
	}
}

// TestZeroes: discarded and zeroed ranges read as zeroes.
func TestZeroes(t *testing.T) { // [NVME-IO-3] [NVME-IO-5]
	for name, ns := range backends(t, 1<<20) {
		t.Run(name, func(t *testing.T) {
			_, addr := serve(t, ns)
			_, io := attach(t, addr, 8)
			want := pattern(512<<10, 5)
			io.write(0, want)
			s := io.rw(nvmewire.OpWriteZeroes, 3, 300*512)
			s.SGL = nvmewire.SGL{Type: nvmewire.SGLKeyed}
			io.want(nvmewire.OK, s)
			clear(want[3*512:][:300*512])
			clear(io.mem)
			r := nvmewire.DSMRange{Blocks: 2, First: 500}.Append(nil)
			copy(io.mem, nvmewire.DSMRange{Blocks: 1, First: 700}.Append(r))
			io.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpDSM, NSID: 1, SGL: io.keyed(4096),
				CDW: [6]uint32{1, 4}})
			if _, ok := ns.Data.(Discarder); ok {
				clear(want[500*512:][:1024])
				clear(want[700*512:][:512])
			}
			if !bytes.Equal(io.read(0, len(want)), want) {
				t.Error("data differ")
			}
		})
	}
}

// TestFlush counts the calls of the backend's Sync.
func TestFlush(t *testing.T) { // [NVME-IO-2]
	f := counting(t, 1<<20)
	_, addr := serve(t, Namespace{Data: f, Size: 1 << 20})
	_, io := attach(t, addr, 8)
	durable := io.rw(nvmewire.OpWrite, 0, 512)
	durable.CDW[2] |= 1 << 30
	for i, s := range []nvmewire.SQE{{Opcode: nvmewire.OpFlush, NSID: 1}, {Opcode: nvmewire.OpFlush, NSID: 0xffffffff}, durable, io.rw(nvmewire.OpWrite, 0, 512)} {
		io.want(nvmewire.OK, s)
		if got, want := int(f.syncs.Load()), min(i+1, 3); got != want {
			t.Errorf("after command %d: stored %d times, want %d", i, got, want)
		}
	}
	io.want(nvmewire.InvalidNamespace, nvmewire.SQE{Opcode: nvmewire.OpFlush, NSID: 2})
}

// TestReadOnly serves a read-only backend.
func TestReadOnly(t *testing.T) { // [NVME-IO-6]
	want := pattern(8192, 1)
	_, addr := serve(t, Namespace{Data: onlyReader{want}, Size: 8192, BlockSize: 4096})
	adm, io := attach(t, addr, 8)
	s := io.rw(nvmewire.OpRead, 0, 8192)
	s.CDW[2] = 1
	io.want(nvmewire.OK, s)
	if !bytes.Equal(io.mem[:8192], want) {
		t.Error("data differ")
	}
	s.Opcode = nvmewire.OpWrite
	io.want(nvmewire.NamespaceReadOnly, s)
	adm.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpIdentify, NSID: 1, SGL: adm.keyed(4096)})
	if n, _ := nvmewire.ParseIdentifyNamespace(adm.mem[:4096]); !n.ReadOnly || n.Blocks != 2 ||
		n.BlockShift != 12 || n.ReadsZero {
		t.Errorf("%+v", n)
	}
}

// TestIdentify checks the fields the Linux host requires.
func TestIdentify(t *testing.T) { // [NVME-ID-1] [NVME-ID-2] [NVME-ID-3] [NVME-ID-4] [NVME-ID-5]
	tg, addr := serve(t, Memory(1<<20), Memory(2<<20))
	var all []nvmewire.IdentifyController
	for range 2 {
		h, id := admin(t, addr, defaultNQN)
		h.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpIdentify, SGL: h.keyed(4096),
			CDW: [6]uint32{nvmewire.CNSController}})
		c, err := nvmewire.ParseIdentifyController(h.mem)
		if err != nil || c.CntlID != id || c.KAS == 0 || c.MaxCmd < 128 || c.InCapsule < 1024 ||
			h.mem[1800] != 0 || h.mem[76]&2 == 0 {
			t.Errorf("%+v, %v", c, err)
		}
		all = append(all, c)
		identify := func(cns, id uint32, st nvmewire.Status) []byte {
			clear(h.mem[:4096])
			h.want(st, nvmewire.SQE{Opcode: nvmewire.OpIdentify, NSID: id, SGL: h.keyed(4096), CDW: [6]uint32{cns}})
			return h.mem[:4096]
		}
		if b := identify(nvmewire.CNSActive, 0, nvmewire.OK); b[0] != 1 || b[4] != 2 || b[8] != 0 {
			t.Errorf("list %x", b[:16])
		}
		if b := identify(nvmewire.CNSActive, 1, nvmewire.OK); b[0] != 2 || b[4] != 0 {
			t.Errorf("list %x", b[:16])
		}
		one := bytes.Clone(identify(nvmewire.CNSDescriptors, 1, nvmewire.OK))
		if two := identify(nvmewire.CNSDescriptors, 2, nvmewire.OK); bytes.Equal(one[:20], two[:20]) {
			t.Error("two namespaces have one UUID")
		}
		if n, _ := nvmewire.ParseIdentifyNamespace(identify(nvmewire.CNSNamespace, 2, nvmewire.OK)); n.Blocks != 4096 ||
			n.BlockShift != 9 || !n.ReadsZero {
			t.Errorf("%+v", n)
		}
		if b := identify(nvmewire.CNSNamespace, 3, nvmewire.OK); !bytes.Equal(b, make([]byte, 4096)) {
			t.Error("an inactive namespace is not zeroes")
		}
		identify(nvmewire.CNSNamespace, nvmecore.MaxNamespaces+1, nvmewire.InvalidNamespace)
		identify(nvmewire.CNSDescriptors, 3, nvmewire.InvalidNamespace)
		identify(0x33, 1, nvmewire.InvalidField)
		// If the descriptor has room for 16 bytes only, the target writes no more. [NVME-SGL-6]
		clear(h.mem[:4096])
		h.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpIdentify, SGL: h.keyed(16),
			CDW: [6]uint32{nvmewire.CNSController}})
		if h.mem[15] == 0 || h.mem[16] != 0 {
			t.Errorf("%x", h.mem[:32])
		}
	}
	if all[0].Serial != all[1].Serial || all[0].CntlID == all[1].CntlID {
		t.Errorf("%+v", all)
	}
	if tg.NQN() != all[0].SubNQN {
		t.Error(tg.NQN())
	}
}

func TestDiscovery(t *testing.T) { // [NVME-DISC-1] [NVME-DISC-2] [NVME-DISC-3]
	_, addr := serve(t, Memory(1<<20))
	h, _ := admin(t, addr, nvmecore.DiscoveryNQN)
	var s nvmewire.SQE
	s.SetLogRequest(nvmewire.LogRequest{Page: nvmewire.LogDiscovery, Length: 2048})
	s.SGL = h.keyed(2048)
	h.want(nvmewire.OK, s)
	_, entries, err := nvmewire.ParseDiscovery(h.mem[:2048])
	if err != nil || len(entries) != 1 || entries[0].Address+":"+entries[0].Service != addr ||
		entries[0].SubNQN != defaultNQN {
		t.Errorf("%+v, %v", entries, err)
	}
	entry := h.mem[nvmewire.DiscoveryHeaderLen:]
	if entry[0] != 1 || entry[2] != 2 || !bytes.Equal(entry[768:771], []byte{1, 5, 1}) {
		t.Errorf("%x, %x: want RDMA, an NVM subsystem, connected queues, iWARP, RDMA_CM", entry[:3], entry[768:771])
	}
	h.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpIdentify, SGL: h.keyed(4096),
		CDW: [6]uint32{nvmewire.CNSController}})
	if c, _ := nvmewire.ParseIdentifyController(h.mem); c.Type != nvmewire.DiscoveryController {
		t.Errorf("%+v", c)
	}
	h.want(nvmewire.InvalidField, nvmewire.SQE{Opcode: nvmewire.OpIdentify, NSID: 1, SGL: h.keyed(4096)})
	if e := setQueues(h, 1); e.Status != nvmewire.InvalidField {
		t.Error(e.Status)
	}
}

func TestLogPages(t *testing.T) { // [NVME-ADM-3]
	_, addr := serve(t, Memory(1<<20))
	h, _ := admin(t, addr, defaultNQN)
	log := func(page uint8, off, n uint64, st nvmewire.Status) []byte {
		t.Helper()
		for i := range 8192 {
			h.mem[i] = 0xee
		}
		var s nvmewire.SQE
		s.SetLogRequest(nvmewire.LogRequest{Page: page, Length: n, Offset: off})
		s.SGL = h.keyed(int(n))
		h.want(st, s)
		return h.mem[:n]
	}
	effects := bytes.Clone(log(nvmewire.LogEffects, 0, 4096, nvmewire.OK))
	if got := log(nvmewire.LogEffects, 1024, 4096, nvmewire.OK); !bytes.Equal(got[:3072], effects[1024:]) ||
		got[3072] != 0 || got[4] == 0 {
		t.Error("the part after 1,024 bytes differs")
	}
	log(nvmewire.LogEffects, 4100, 4, nvmewire.InvalidField)
	log(nvmewire.LogSMART, 0, 512, nvmewire.OK)
	log(nvmewire.LogErrors, 0, 64, nvmewire.OK)
	log(nvmewire.LogFirmware, 0, 512, nvmewire.OK)
	log(nvmewire.LogDiscovery, 0, 1024, nvmewire.InvalidLogPage)
	h.want(nvmewire.InvalidOpcode, nvmewire.SQE{Opcode: 0x80}) // [NVME-ADM-2]
}

// TestEvents adds, resizes and removes namespaces, and checks the events of a host with event
// requests.
func TestEvents(t *testing.T) { // [NVME-AER-1] [NVME-SQE-4]
	tg, addr := serve(t, Memory(1<<20))
	h, _ := admin(t, addr, defaultNQN)
	h.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpSetFeatures,
		CDW: [6]uint32{nvmewire.FeatureEvents, nvmewire.EventNamespaces}})
	request := nvmewire.SQE{Opcode: nvmewire.OpAsyncEvent, CID: 31}
	for range nvmecore.MaxEvents {
		h.post(request, nil)
	}
	if e := h.do(nvmewire.SQE{Opcode: nvmewire.OpAsyncEvent}); e.Status != nvmewire.EventLimitExceeded {
		t.Error(e.Status)
	}
	event := func() {
		t.Helper()
		if e, ok := h.next(); !ok || e.CID != 31 || e.Status != nvmewire.OK || e.Result != nvmewire.NoticeNamespaces {
			t.Fatalf("%+v, %v", e, ok)
		}
	}
	changed := func() []byte {
		t.Helper()
		var s nvmewire.SQE
		s.SetLogRequest(nvmewire.LogRequest{Page: nvmewire.LogChanged, Length: 4096})
		s.SGL = h.keyed(4096)
		h.want(nvmewire.OK, s)
		return h.mem[:12]
	}
	id, err := tg.Add(Memory(1 << 20))
	if err != nil || id != 2 {
		t.Fatal(id, err)
	}
	event()
	if err := tg.Resize(1, 512<<10); err != nil { // no second event before the host has read the page
		t.Fatal(err)
	}
	if got := changed(); !bytes.Equal(got, []byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("changed: %x", got)
	}
	if len(h.came) != 0 {
		t.Errorf("a second event: %+v", h.came)
	}
	if err := tg.Remove(2); err != nil {
		t.Fatal(err)
	}
	event()
	if got := changed(); got[0] != 2 || got[4] != 0 {
		t.Errorf("changed: %x", got)
	}
	if id, err := tg.Add(Memory(1 << 20)); err != nil || id != 3 { // the host knows 2 as another disk
		t.Errorf("number %d, %v, want 3", id, err)
	}
	if tg.Remove(2) != ErrNamespace || tg.Resize(2, 1<<20) != ErrNamespace {
		t.Error("a namespace that is not there")
	}
}

// TestReset disables a controller and so ends the I/O queues, and connects new I/O queues.
func TestReset(t *testing.T) { // [NVME-PROP-1] [NVME-PROP-2] [NVME-ADM-1] [NVME-FAB-4]
	tg, addr := serve(t, Memory(1<<20))
	adm, id := admin(t, addr, defaultNQN)
	if e := setQueues(adm, 2); e.Result != 1|1<<16 {
		t.Errorf("granted %#x", e.Result)
	}
	for range 20 {
		io := ioQueue(t, addr, id, 2, 16)
		io.write(0, pattern(4096, 1))
		adm.propertySet(nvmewire.PropCC, 0x460000)
		io.ends()
		if v := adm.propertyGet(nvmewire.PropCSTS, false); v != 0 {
			t.Errorf("status %#x after a reset", v)
		}
		left(t, tg, 1)
		adm.propertySet(nvmewire.PropCC, 0x460001)
		setQueues(adm, 2)
	}
	adm.propertySet(nvmewire.PropCC, 0x464001) // shutdown
	if v := adm.propertyGet(nvmewire.PropCSTS, false); v != 1|2<<2 {
		t.Errorf("status %#x after the shutdown", v)
	}
	adm.propertySet(nvmewire.PropCC, 0x460000)
	adm.propertySet(nvmewire.PropCC, 0x450001) // unsupported entry sizes
	if v := adm.propertyGet(nvmewire.PropCSTS, false); v != 2 {
		t.Errorf("status %#x, want fatal", v)
	}
	if v := adm.propertyGet(nvmewire.PropCAP, true); v&0xffff != 127 {
		t.Errorf("capabilities %#x", v)
	}
	adm.qp.Close()
	left(t, tg, 0)
}

package nvme

import (
	"errors"
	"testing"
	"time"

	"viaduct/internal/nvmecore"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// refused lists invalid Requests with the reasons of their rejection. [NVME-CM-2]
var refused = []struct {
	name    string
	private []byte
	want    nvmewire.RejectReason
}{
	{"no private data", nil, nvmewire.RejectLength},
	{"31 bytes", make([]byte, 31), nvmewire.RejectLength},
	{"another format", request(nvmewire.Request{RecFmt: 1, HRQSize: 32, HSQSize: 31}), nvmewire.RejectRecFmt},
	{"queue 65", request(nvmewire.Request{QID: 65, HRQSize: 32, HSQSize: 31}), nvmewire.RejectQID},
	{"queue 65535", request(nvmewire.Request{QID: 65535, HRQSize: 32, HSQSize: 31}), nvmewire.RejectQID},
	{"a queue of one", request(nvmewire.Request{QID: 1, HRQSize: 32}), nvmewire.RejectHSQSize},
	{"a queue of 129", request(nvmewire.Request{QID: 1, HRQSize: 32, HSQSize: 128}), nvmewire.RejectHSQSize},
	{"a queue of 65536", request(nvmewire.Request{QID: 1, HRQSize: 32, HSQSize: 65535}), nvmewire.RejectHSQSize},
	{"no receives", request(nvmewire.Request{QID: 1, HSQSize: 31}), nvmewire.RejectHRQSize},
}

func request(r nvmewire.Request) []byte { return r.Append(nil) }

func TestRefused(t *testing.T) { // [NVME-CM-2]
	tg, addr := serve(t, Memory(1<<20))
	for _, c := range refused {
		_, err := dial(t, addr, c.private)
		e, ok := errors.AsType[*iwarp.RejectedError](err)
		if !ok || len(e.Private) != 4 || nvmewire.RejectReason(e.Private[2]) != c.want {
			t.Errorf("%s: %v, want a rejection with %d", c.name, err, c.want)
		}
	}
	left(t, tg, 0)
}

// A bad is an invalid command with the required status.
type bad struct {
	name   string
	sqe    nvmewire.SQE
	inline int // bytes of data in the capsule
	want   nvmewire.Status
}

func fabrics(fctype uint8) nvmewire.SQE {
	return nvmewire.SQE{Opcode: nvmewire.OpFabrics, FCType: fctype}
}

func property(fctype uint8, offset uint32, wide bool) nvmewire.SQE {
	var s nvmewire.SQE
	s.SetProperty(fctype, nvmewire.Property{Offset: offset, Wide: wide})
	return s
}

func try(t *testing.T, h *hostQueue, table []bad) {
	t.Helper()
	for _, c := range table {
		if e := h.do(c.sqe, make([]byte, c.inline)...); e.Status != c.want {
			t.Errorf("%s: %v, want %v", c.name, e.Status, c.want)
		}
	}
}

// TestBadCommands sends invalid commands. Each command must get its status, and the queue must
// continue.
func TestBadCommands(t *testing.T) { // [NVME-SQE-2] [NVME-SGL-1] [NVME-SGL-3] [NVME-SGL-4] [NVME-IO-1] [NVME-FAB-2] [NVME-PROP-1] [NVME-ADM-2]
	_, addr := serve(t, Memory(1<<20))
	early := open(t, addr, 0, 32)
	try(t, early, []bad{
		{"Identify before Connect", nvmewire.SQE{Opcode: nvmewire.OpIdentify, SGL: early.keyed(4096)}, 0, nvmewire.SequenceError},
		{"Keep Alive before Connect", nvmewire.SQE{Opcode: nvmewire.OpKeepAlive}, 0, nvmewire.SequenceError},
		{"Property Get before Connect", property(nvmewire.FCPropertyGet, 0, true), 0, nvmewire.SequenceError},
		{"Disconnect before Connect", fabrics(nvmewire.FCDisconnect), 0, nvmewire.SequenceError},
	})
	adm, io := attach(t, addr, 32)
	again := adm.connectSQE(adminConnect(defaultNQN))
	short := again
	short.SGL.Length = 1023
	try(t, adm, []bad{
		{"a second Connect", again, 0, nvmewire.SequenceError},
		{"Connect with 1,023 bytes", short, 0, nvmewire.SGLLengthInvalid},
		{"Connect in the capsule of the admin queue", nvmewire.SQE{Opcode: nvmewire.OpFabrics, FCType: 1, SGL: nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 1024}}, 0, nvmewire.SGLOffsetInvalid},
		{"Disconnect of the admin queue", fabrics(nvmewire.FCDisconnect), 0, nvmewire.InvalidField},
		{"a fabrics command that is none", fabrics(0x33), 0, nvmewire.InvalidOpcode},
		{"authentication", fabrics(0x05), 0, nvmewire.InvalidOpcode},
		{"a PRP", nvmewire.SQE{Opcode: nvmewire.OpKeepAlive, Flags: 0xc0}, 0, nvmewire.InvalidField},
		{"flags of a PRP", nvmewire.SQE{Opcode: nvmewire.OpKeepAlive, Flags: 0x01}, 0, nvmewire.InvalidField},
		{"an SGL type that is none", nvmewire.SQE{Opcode: nvmewire.OpKeepAlive, SGL: nvmewire.SGL{Type: 0x30}}, 0, nvmewire.SGLTypeInvalid},
		{"an SGL subtype that is none", nvmewire.SQE{Opcode: nvmewire.OpKeepAlive, SGL: nvmewire.SGL{Type: 0x45}}, 0, nvmewire.SGLTypeInvalid},
		{"Identify into the capsule", nvmewire.SQE{Opcode: nvmewire.OpIdentify, SGL: nvmewire.SGL{Type: nvmewire.SGLOffset}, CDW: [6]uint32{1}}, 0, nvmewire.SGLTypeInvalid},
		{"Identify of what is none", nvmewire.SQE{Opcode: nvmewire.OpIdentify, CDW: [6]uint32{0x77}}, 0, nvmewire.InvalidField},
		{"a list above FFFFFFFEh", nvmewire.SQE{Opcode: nvmewire.OpIdentify, NSID: 0xfffffffe, CDW: [6]uint32{nvmewire.CNSActive}}, 0, nvmewire.InvalidField},
		{"Identify of namespace 0", nvmewire.SQE{Opcode: nvmewire.OpIdentify}, 0, nvmewire.InvalidNamespace},
		{"Create I/O Queue", nvmewire.SQE{Opcode: 0x01}, 0, nvmewire.InvalidOpcode},
		{"Format", nvmewire.SQE{Opcode: 0x80, NSID: 1}, 0, nvmewire.InvalidOpcode},
		{"a log page that is none", nvmewire.SQE{Opcode: nvmewire.OpGetLogPage, CDW: [6]uint32{0xc0}}, 0, nvmewire.InvalidLogPage},
		{"a log page of 16 GiB", nvmewire.SQE{Opcode: nvmewire.OpGetLogPage, CDW: [6]uint32{0xffff0002, 0xffff}}, 0, nvmewire.InvalidField},
		{"a log page beyond its end", nvmewire.SQE{Opcode: nvmewire.OpGetLogPage, CDW: [6]uint32{2, 0, 0xffffffff, 0xffffffff}}, 0, nvmewire.InvalidField},
		{"a feature that is none", nvmewire.SQE{Opcode: nvmewire.OpSetFeatures, CDW: [6]uint32{0xc0}}, 0, nvmewire.InvalidField},
		{"a write cache that is off", nvmewire.SQE{Opcode: nvmewire.OpSetFeatures, CDW: [6]uint32{nvmewire.FeatureWriteCache}}, 0, nvmewire.InvalidField},
		{"Get of a feature that is none", nvmewire.SQE{Opcode: nvmewire.OpGetFeatures, CDW: [6]uint32{0xc0}}, 0, nvmewire.InvalidField},
		{"CSTS of 8 bytes", property(nvmewire.FCPropertyGet, nvmewire.PropCSTS, true), 0, nvmewire.InvalidField},
		{"CAP of 4 bytes", property(nvmewire.FCPropertyGet, nvmewire.PropCAP, false), 0, nvmewire.InvalidField},
		{"a property that is none", property(nvmewire.FCPropertyGet, 0x1000, false), 0, nvmewire.InvalidField},
		{"Set of CSTS", property(nvmewire.FCPropertySet, nvmewire.PropCSTS, false), 0, nvmewire.InvalidField},
		{"Set of CC with 8 bytes", property(nvmewire.FCPropertySet, nvmewire.PropCC, true), 0, nvmewire.InvalidField},
	})
	rw := func(op uint8, first uint64, blocks, length int, g nvmewire.SGL) nvmewire.SQE {
		g.Length = uint32(length)
		if g.Type == nvmewire.SGLKeyed {
			g.Key, g.Addr = io.mr.STag(), io.mr.TO()
		}
		return nvmewire.SQE{Opcode: op, NSID: 1, SGL: g,
			CDW: [6]uint32{uint32(first), uint32(first >> 32), uint32(blocks - 1)}}
	}
	keyed := nvmewire.SGL{Type: nvmewire.SGLKeyed}
	capsule := func(off uint64) nvmewire.SGL { return nvmewire.SGL{Type: nvmewire.SGLOffset, Addr: off} }
	protected := rw(nvmewire.OpRead, 0, 1, 512, keyed)
	protected.CDW[2] |= 1 << 29
	dsm := func(ranges, length int, g nvmewire.SGL) nvmewire.SQE {
		s := rw(nvmewire.OpDSM, 0, 1, length, g)
		s.CDW = [6]uint32{uint32(ranges - 1), 4}
		return s
	}
	copy(io.mem, nvmewire.DSMRange{Blocks: 1, First: 1 << 60}.Append(nil))
	try(t, io, []bad{
		{"a range of Dataset Management beyond the end", dsm(1, 16, keyed), 0, nvmewire.LBAOutOfRange},
		{"256 ranges in 4,095 bytes", dsm(256, 4095, keyed), 0, nvmewire.SGLLengthInvalid},
		{"a range beyond the capsule", dsm(1, 16, capsule(1)), 16, nvmewire.SGLOffsetInvalid},
		{"namespace 0", nvmewire.SQE{Opcode: nvmewire.OpRead}, 0, nvmewire.InvalidNamespace},
		{"namespace FFFFFFFFh", nvmewire.SQE{Opcode: nvmewire.OpRead, NSID: 0xffffffff}, 0, nvmewire.InvalidNamespace},
		{"a command that is none", nvmewire.SQE{Opcode: 0x7e, NSID: 1}, 0, nvmewire.InvalidOpcode},
		{"Read beyond the end", rw(nvmewire.OpRead, 2048, 1, 512, keyed), 0, nvmewire.LBAOutOfRange},
		{"Read of block 2^64-1", rw(nvmewire.OpRead, 1<<64-1, 1, 512, keyed), 0, nvmewire.LBAOutOfRange},
		{"Write over the end", rw(nvmewire.OpWrite, 2047, 2, 1024, keyed), 0, nvmewire.LBAOutOfRange},
		{"Write Zeroes over the end", rw(nvmewire.OpWriteZeroes, 2000, 65536, 0, keyed), 0, nvmewire.LBAOutOfRange},
		{"Read with a longer SGL", rw(nvmewire.OpRead, 0, 1, 4096, keyed), 0, nvmewire.SGLLengthInvalid},
		{"Read with a shorter SGL", rw(nvmewire.OpRead, 0, 8, 512, keyed), 0, nvmewire.SGLLengthInvalid},
		{"Read into the capsule", rw(nvmewire.OpRead, 0, 1, 512, capsule(0)), 512, nvmewire.SGLLengthInvalid},
		{"Write with a longer SGL", rw(nvmewire.OpWrite, 0, 1, 1024, keyed), 0, nvmewire.SGLLengthInvalid},
		{"Write with a shorter SGL", rw(nvmewire.OpWrite, 0, 2, 512, keyed), 0, nvmewire.SGLLengthInvalid},
		{"Write of what the capsule does not have", rw(nvmewire.OpWrite, 0, 1, 512, capsule(0)), 511, nvmewire.SGLOffsetInvalid},
		{"Write from beyond the capsule", rw(nvmewire.OpWrite, 0, 1, 512, capsule(1<<63)), 512, nvmewire.SGLOffsetInvalid},
		{"Write from an offset that wraps", rw(nvmewire.OpWrite, 0, 1, 512, capsule(1<<64-256)), 512, nvmewire.SGLOffsetInvalid},
		{"Compare with a shorter SGL", rw(nvmewire.OpCompare, 0, 2, 512, keyed), 0, nvmewire.SGLLengthInvalid},
		{"Read with protection information", protected, 0, nvmewire.InvalidField},
		{"Property Get on an I/O queue", property(nvmewire.FCPropertyGet, 0, true), 0, nvmewire.InvalidField},
		{"a namespace that is not there", nvmewire.SQE{Opcode: nvmewire.OpFlush, NSID: 7}, 0, nvmewire.InvalidNamespace},
	})
	io.write(0, pattern(512, 1)) // both queues continue
	adm.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpKeepAlive})
}

// TestBadConnect sends Connect commands with one wrong field each. [NVME-FAB-3] [NVME-FAB-4]
func TestBadConnect(t *testing.T) { // [NVME-FAB-3] [NVME-FAB-4]
	tg, addr := serve(t, Memory(1<<20))
	adm, id := admin(t, addr, defaultNQN)
	setQueues(adm, 2)
	there := ioQueue(t, addr, id, 2, 8)
	cases := []struct {
		name   string
		queue  uint16
		change func(*nvmewire.Connect)
		status nvmewire.Status
		result uint64
	}{
		{"format", 0, func(c *nvmewire.Connect) { c.RecFmt = 1 }, nvmewire.IncompatibleFormat, 0},
		{"another queue than that of the stream", 0, func(c *nvmewire.Connect) { c.QID = 1 }, nvmewire.InvalidConnectParam, 42},
		{"size 0", 0, func(c *nvmewire.Connect) { c.SQSize = 0 }, nvmewire.InvalidConnectParam, 44},
		{"size beyond that of the stream", 0, func(c *nvmewire.Connect) { c.SQSize = 32 }, nvmewire.InvalidConnectParam, 44},
		{"a controller that is named", 0, func(c *nvmewire.Connect) { c.CntlID = 1 }, nvmewire.InvalidConnectParam, 1<<16 | 16},
		{"another subsystem", 0, func(c *nvmewire.Connect) { c.SubNQN = "nqn.x" }, nvmewire.InvalidConnectParam, 1<<16 | 256},
		{"no subsystem", 0, func(c *nvmewire.Connect) { c.SubNQN = "" }, nvmewire.InvalidConnectParam, 1<<16 | 256},
		{"no host", 0, func(c *nvmewire.Connect) { c.HostNQN = "" }, nvmewire.InvalidConnectParam, 1<<16 | 512},
		{"a controller that is not there", 1, func(c *nvmewire.Connect) { c.CntlID = id + 9 }, nvmewire.InvalidConnectParam, 1<<16 | 16},
		{"another host", 1, func(c *nvmewire.Connect) { c.HostNQN = "nqn.y" }, nvmewire.InvalidConnectParam, 1<<16 | 512},
		{"another id of the host", 1, func(c *nvmewire.Connect) { c.HostID[15] = 9 }, nvmewire.InvalidConnectParam, 1<<16 | 512},
		{"the queue twice", 2, func(*nvmewire.Connect) {}, nvmewire.InvalidConnectParam, 42},
		{"a queue that was not granted", 3, func(*nvmewire.Connect) {}, nvmewire.InvalidConnectParam, 42},
		{"an I/O queue of discovery", 1, func(c *nvmewire.Connect) { c.SubNQN = nvmecore.DiscoveryNQN }, nvmewire.InvalidConnectParam, 1<<16 | 256},
	}
	for _, k := range cases {
		h := open(t, addr, k.queue, 32)
		c := adminConnect(defaultNQN)
		if c.QID = k.queue; k.queue > 0 {
			c.CntlID = id
		}
		k.change(c)
		if e := h.do(h.connectSQE(c)); e.Status != k.status || e.Result != k.result {
			t.Errorf("%s: %v, %#x, want %v, %#x", k.name, e.Status, e.Result, k.status, k.result)
		}
		h.qp.Abort()
	}
	left(t, tg, 2)
	there.write(0, pattern(512, 1))
}

// ending lists host actions that end a queue, or all queues of the host by ending the admin queue.
// left is the number of remaining queues.
var ending = []struct {
	name string
	do   func(t *testing.T, adm, io *hostQueue)
	left int
}{
	{"a capsule of 63 bytes", func(_ *testing.T, _, io *hostQueue) { io.raw(make([]byte, 63)) }, 1},
	{"an empty capsule", func(_ *testing.T, _, io *hostQueue) { io.raw(nil) }, 1},
	{"a capsule beyond the greatest", func(_ *testing.T, _, io *hostQueue) { io.raw(make([]byte, nvmewire.SQELen+nvmecore.InCapsule+1)) }, 1},
	{"data in a capsule of the admin queue", func(_ *testing.T, adm, _ *hostQueue) { adm.raw(make([]byte, 128)) }, 0},
	{"a write from a key that is none", func(_ *testing.T, _, io *hostQueue) {
		s := io.rw(nvmewire.OpWrite, 0, 512)
		s.SGL.Key ^= 0x5a5a5a00
		io.post(s, nil)
	}, 1},
	{"a read to a key that is none", func(_ *testing.T, _, io *hostQueue) {
		s := io.rw(nvmewire.OpRead, 0, 512)
		s.SGL.Key ^= 0x5a5a5a00
		io.post(s, nil)
	}, 1},
	{"a write from beyond a region", func(_ *testing.T, _, io *hostQueue) {
		s := io.rw(nvmewire.OpWrite, 0, 4096)
		s.SGL.Addr += hostMemory - 4095
		io.post(s, nil)
	}, 1},
	{"an RDMA Write to a key that is none", func(t *testing.T, _, io *hostQueue) {
		io.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf([]byte("x"))},
			Remote: iwarp.RemoteAddr{STag: 0x1234500}})
	}, 1},
	{"more commands than the queue has", func(_ *testing.T, _, io *hostQueue) {
		for range 400 {
			if io.qp.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf((&nvmewire.SQE{Opcode: nvmewire.OpRead, Flags: 0x40, NSID: 1, SGL: io.keyed(512)}).Append(nil))}, Unsignaled: true}) != nil {
				return
			}
		}
	}, 1},
	{"the I/O queue closed", func(_ *testing.T, _, io *hostQueue) { io.qp.CloseWrite() }, 1},
	{"the I/O queue reset", func(_ *testing.T, _, io *hostQueue) { io.qp.Abort() }, 1},
	{"the admin queue closed", func(_ *testing.T, adm, _ *hostQueue) { adm.qp.CloseWrite() }, 0},
	{"the admin queue reset", func(_ *testing.T, adm, _ *hostQueue) { adm.qp.Abort() }, 0},
	{"closed with a write in progress", func(_ *testing.T, adm, io *hostQueue) {
		io.post(io.rw(nvmewire.OpWrite, 0, 1<<20), nil)
		io.qp.Abort()
		adm.qp.Abort()
	}, 0},
}

// TestEnding: all objects of a host are freed when the host breaks the protocol or disconnects, and
// another host continues.
func TestEnding(t *testing.T) { // [NVME-CM-4] [NVME-SQE-3]
	tg, addr := serve(t, Memory(2<<20))
	_, bystander := attach(t, addr, 8)
	for _, c := range ending {
		t.Run(c.name, func(t *testing.T) {
			adm, io := attach(t, addr, 16)
			c.do(t, adm, io)
			if c.name == "more commands than the queue has" {
				// The target may answer all commands before the queue overflows.
				io.qp.Abort()
			}
			left(t, tg, 2+c.left)
			bystander.write(0, pattern(512, 1))
			adm.qp.Abort()
			left(t, tg, 2)
		})
	}
}

// TestOverrun sends more event requests and commands at once than nvmecore has room for.
func TestOverrun(t *testing.T) { // [NVME-SQE-3]
	core := nvmecore.New(nvmecore.Config{NQN: defaultNQN, MaxQueues: 1})
	q, why := core.Open(time.Now(), request(nvmewire.Request{QID: 1, HRQSize: 4, HSQSize: 3}), nvmecore.Address{})
	if why != 0 || q.Depth != 4 {
		t.Fatal(why)
	}
	s := nvmewire.SQE{Opcode: nvmewire.OpRead, Flags: 0x40, SGL: nvmewire.SGL{Type: nvmewire.SGLKeyed}}
	for i := range 4 {
		if got := q.Command(&s, 0); got.Kind != nvmecore.Answer || got.Status != nvmewire.SequenceError {
			t.Errorf("command %d: %+v", i, got)
		}
	}
	if got := q.Command(&s, 0); got.Kind != nvmecore.End {
		t.Errorf("command 5 of 4: %+v", got)
	}
}

// TestSilence: a queue ends if the host never sends Connect, and a controller if the host is silent
// for longer than the keep-alive time. The test sets the clock of nvmecore.
func TestSilence(t *testing.T) { // [NVME-CM-5] [NVME-KA-1]
	now := time.Now()
	core := nvmecore.New(nvmecore.Config{NQN: defaultNQN, MaxQueues: 1})
	dumb, _ := core.Open(now, request(nvmewire.Request{HRQSize: 32, HSQSize: 31}), nvmecore.Address{})
	connect := func(kato uint32) *nvmecore.Queue {
		q, _ := core.Open(now, request(nvmewire.Request{HRQSize: 32, HSQSize: 31}), nvmecore.Address{})
		c := adminConnect(defaultNQN)
		c.KATO = kato
		var s nvmewire.SQE
		s.SetConnect(c)
		if got := q.ConnectData(now, &s, c.AppendData(nil)); got.Status != nvmewire.OK {
			t.Fatal(got.Status)
		}
		return q
	}
	quiet, alive, never := connect(5000), connect(5000), connect(0)
	ended := map[*nvmecore.Queue]time.Duration{}
	for at := time.Duration(0); at < 30*time.Second; at += 250 * time.Millisecond {
		if at%(4*time.Second) == 0 {
			s := nvmewire.SQE{Opcode: nvmewire.OpKeepAlive, Flags: 0x40, SGL: nvmewire.SGL{Type: nvmewire.SGLKeyed}}
			alive.Command(&s, 0)
			alive.Respond(&s, 0, 0)
		}
		core.Tick(now.Add(at))
		for _, o := range core.Outputs() {
			if !o.End {
				t.Errorf("%+v", o)
			}
			ended[o.Queue] = at
		}
	}
	if at := ended[dumb]; at <= 10*time.Second || at > 11*time.Second {
		t.Errorf("the queue that never connected ended after %v", at)
	}
	if at := ended[quiet]; at < 7*time.Second || at > 8*time.Second {
		t.Errorf("the silent controller ended after %v", at)
	}
	if len(ended) != 2 {
		t.Errorf("ended: %v; one that is alive is %p, one without keep alive %p", ended, alive, never)
	}
}

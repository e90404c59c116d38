package nvmecore

import (
	"testing"
	"time"

	"viaduct/internal/wire/nvmewire"
)

const (
	fuzzNQN    = "nqn.2026-11.viaduct:fuzz"
	fuzzBlocks = 2048
)

// associated returns a target with two namespaces, the second read-only, and the admin queue and an
// I/O queue of a connected host.
func associated(t testing.TB, now time.Time) (*Target, [2]*Queue) {
	core := New(Config{NQN: fuzzNQN, MaxQueues: 2})
	core.Put(Namespace{ID: 1, Blocks: fuzzBlocks, Shift: 9})
	core.Put(Namespace{ID: 2, Blocks: fuzzBlocks, Shift: 12, ReadOnly: true})
	c := nvmewire.Connect{SQSize: 15, CntlID: 0xffff, SubNQN: fuzzNQN, HostNQN: "nqn.host"}
	var queues [2]*Queue
	for i := range queues {
		r := nvmewire.Request{QID: uint16(i), HRQSize: 16, HSQSize: 15}
		q, why := core.Open(now, r.Append(nil), Address{})
		if why != 0 {
			t.Fatal(why)
		}
		var s nvmewire.SQE
		if c.QID = uint16(i); i > 0 {
			c.CntlID, _ = queues[0].Describe()
		}
		s.SetConnect(&c)
		if step := q.ConnectData(now, &s, c.AppendData(nil)); step.Status != nvmewire.OK {
			t.Fatal(step.Status)
		}
		queues[i] = q
		if i == 0 {
			q.ctrl.setProperty(nvmewire.Property{Offset: nvmewire.PropCC, Value: 0x460001})
			q.ctrl.setFeature(nvmewire.FeatureQueues, 1)
		}
	}
	return core, queues
}

// checkStep checks that the range of a step lies within the namespace, and the data within the
// capsule.
func checkStep(t *testing.T, s *nvmewire.SQE, step Step, inCapsule int) {
	blocks := map[uint32]int64{1: fuzzBlocks << 9, 2: fuzzBlocks << 12}
	fromHost := false
	switch step.Kind {
	case Answer, Flush, Hold, End:
		if len(step.Data) > int(s.SGL.Length) {
			t.Fatalf("%d bytes for a host with room for %d", len(step.Data), s.SGL.Length)
		}
		return
	case Read:
		if s.SGL.Type == nvmewire.SGLOffset || int64(s.SGL.Length) != step.Length {
			t.Fatalf("read of %d bytes to %+v", step.Length, s.SGL)
		}
	case Write, Zero:
		fromHost = step.Kind == Write
		if step.NSID == 2 {
			t.Fatal("a read-only namespace is written")
		}
	case Connect, Compare, Discard:
		fromHost = true
	default:
		t.Fatalf("kind %d", step.Kind)
	}
	if fromHost {
		g := s.SGL
		if step.Length > int64(g.Length) ||
			g.Type == nvmewire.SGLOffset && g.Addr+uint64(g.Length) > uint64(inCapsule) {
			t.Fatalf("%d bytes from %+v with %d bytes in the capsule", step.Length, g, inCapsule)
		}
	}
	if step.Kind == Connect || step.Kind == Discard {
		return
	}
	if step.Offset < 0 || step.Length <= 0 || step.Offset+step.Length > blocks[step.NSID] ||
		step.Kind != Zero && step.Length > maxTransfer {
		t.Fatalf("%d bytes at %d of namespace %d", step.Length, step.Offset, step.NSID)
	}
}

// FuzzCommands sends commands to the two queues of a host. The input is a byte for choosing the
// queue and the amount of data in the capsule, followed by the command. Every command must get one
// answer, and nothing may remain after the association.
func FuzzCommands(f *testing.F) {
	for _, queue := range []byte{0, 1, 0xfe, 0xff} {
		for _, op := range []uint8{0, 1, 2, 5, 6, 8, 9, 0xa, 0xc, 0x18, 0x7f} {
			for _, s := range []nvmewire.SQE{
				{Opcode: op, Flags: 0x40, NSID: 1, SGL: nvmewire.SGL{Type: nvmewire.SGLKeyedInvalidate, Length: 4096}, CDW: [6]uint32{1, 0, 7}},
				{Opcode: op, Flags: 0x40, NSID: 1, SGL: nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 512}},
				{Opcode: op, Flags: 0x40, NSID: 1, SGL: nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 512, Addr: 1 << 63}},
				{Opcode: op, Flags: 0x40, FCType: 4, NSID: 2, SGL: nvmewire.SGL{Type: nvmewire.SGLKeyed, Length: 1024}, CDW: [6]uint32{2, 1}},
			} {
				f.Add(s.Append([]byte{queue}))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		now := time.Unix(0, 0)
		core, queues := associated(t, now)
		for ; len(b) > nvmewire.SQELen; b = b[1+nvmewire.SQELen:] {
			q, inCapsule := queues[b[0]&1], 64*int(b[0]>>1)
			s, err := nvmewire.ParseSQE(b[1:])
			if err != nil {
				t.Fatal(err)
			}
			before := q.pending
			step := q.Command(&s, inCapsule)
			checkStep(t, &s, step, inCapsule)
			switch step.Kind {
			case Hold:
				if q.pending > before {
					t.Fatal("a held command counts as pending")
				}
				continue
			case End:
				continue
			case Connect:
				if got := q.ConnectData(now, &s, make([]byte, nvmewire.ConnectLen)); got.Status == nvmewire.OK {
					t.Fatal("a second Connect succeeds")
				}
			case Discard:
				r := nvmewire.DSMRange{Blocks: s.CDW[4], First: s.CDW64(2)}
				off, n, st := core.DiscardRange(step.NSID, r)
				if st == nvmewire.OK && (off < 0 || n < 0 || off+n > fuzzBlocks<<9) {
					t.Fatalf("%d bytes at %d are discarded", n, off)
				}
			}
			if e := q.Respond(&s, step.Result, step.Status); e.CID != s.CID || q.pending != before {
				t.Fatalf("response %+v to command %#x, %d pending, want %d", e, s.CID, q.pending, before)
			}
			now = now.Add(time.Second)
			core.Tick(now)
			core.Put(Namespace{ID: 1, Blocks: fuzzBlocks, Shift: 9}) // causes an event
			for _, o := range core.Outputs() {
				if o.End {
					core.Closed(o.Queue)
				}
			}
		}
		for _, q := range queues {
			core.Closed(q)
		}
		core.Outputs()
		if len(core.controllers) != 0 || len(core.queues) != 0 {
			t.Fatalf("%d controllers and %d queues are left", len(core.controllers), len(core.queues))
		}
	})
}

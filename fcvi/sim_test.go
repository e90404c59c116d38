package fcvi

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A simPort is an FC-VI port in a simulated fabric.
type simPort struct {
	*port
	n   int
	end *fabric.End

	taker fc.Taker // takes the frames that continue the last one
	next  fc.Frame // header of these frames
	buf   []byte
	size  int // payload bytes of each of these frames
	since fc.Time
	took  int
}

// A sim is two or more ports with a fabric between them.
type sim struct {
	t     testing.TB
	net   *fabric.Net
	sw    *fabric.Switch
	ports []*simPort
}

type simConfig struct {
	seed    uint64
	order   bool // in-order fabric
	loop    bool
	p2p     bool
	class   fc.Class
	stream  bool
	linger  time.Duration
	class2  bool
	rxSize  int
	unacked int
}

func newSim(t testing.TB, cfg simConfig) *sim { return newSimNoise(t, cfg, fabric.Noise{}) }

// newSimNoise returns a sim whose fabric has noise from the first frame on.
func newSimNoise(t testing.TB, cfg simConfig, noise fabric.Noise) *sim {
	s := &sim{t: t, net: fabric.NewNet(cfg.seed)}
	s.net.SetNoise(noise)
	var mk [2]func(fc.Sender) fabric.Device
	for i := range 2 {
		sp := &simPort{n: i + 1}
		s.ports = append(s.ports, sp)
		mac := uint64(0x020000000100 + i)
		mk[i] = func(out fc.Sender) fabric.Device {
			sp.end = out.(*fabric.End)
			np := fc.NewNPort(fc.PortConfig{PortName: fc.PortName(mac, 1), NodeName: fc.NodeName(mac),
				RxSize: cfg.rxSize,
				Class2: cfg.class2, OXSeed: uint16(i * 100), IPs: []netip.Addr{addrOf(i + 1)}}, out)
			sp.port = newPort(np, machineConfig{seed: cfg.seed, class: cfg.class, stream: cfg.stream, linger: cfg.linger, maxUnacked: cfg.unacked}, func(fc.Addr) int {
				if sp.end.Room() {
					return 1 + int(cfg.seed%4)
				}
				return 0
			})
			return roomy{np, sp}
		}
	}
	switch {
	case cfg.p2p:
		s.net.Connect(mk[0], mk[1])
	case cfg.loop:
		s.net.Loop(nil, mk[0], mk[1])
	default:
		s.sw = fabric.NewSwitch(fabric.SwitchConfig{Name: fc.NodeName(0x020000001001), Domain: 1,
			OutOfOrder: !cfg.order})
		s.net.Attach(s.sw, mk[0])
		s.net.Attach(s.sw, mk[1])
	}
	s.climb(t)
	s.net.Start()
	if !s.net.RunUntil(5*time.Minute, func() bool {
		return s.ports[0].np.State() == fc.Online && s.ports[1].np.State() == fc.Online
	}) {
		t.Fatalf("ports do not come online: %v, %v", s.ports[0].np.State(), s.ports[1].np.State())
	}
	s.net.Run(time.Second)
	return s
}

// A roomy reports the link's room to the FC-VI port.
type roomy struct {
	*fc.NPort
	p *simPort
}

func (r roomy) LinkRoom(now fc.Time) { r.p.linkRoom(now) }

// Receive passes frames like a link with support for runs of frames.
func (r roomy) Receive(now fc.Time, f *fc.Frame) {
	p := r.p
	if p.taker != nil && now-p.since < time.Millisecond && p.next.Header == f.Header && p.next.SOF == f.SOF &&
		p.next.EOF == f.EOF && bytes.Equal(p.next.Opt, f.Opt) && len(f.Payload) == p.size && p.taker.Take(f.Payload) {
		p.next.Next(p.size)
		p.took++
		return
	}
	r.NPort.Receive(now, f)
	p.taker, p.since, p.size = f.Taker, now, len(f.Payload)
	p.buf = f.CloneTo(&p.next, p.buf)
	p.next.Next(p.size)
}

// Tick, LinkUp and LinkDown end a run, because only consecutive frames form a run.
func (r roomy) Tick(now fc.Time) {
	r.p.taker = nil
	r.NPort.Tick(now)
}

func (r roomy) LinkUp(now fc.Time, info fc.LinkInfo) {
	r.p.taker = nil
	r.NPort.LinkUp(now, info)
}

func (r roomy) LinkDown(now fc.Time) {
	r.p.taker = nil
	r.NPort.LinkDown(now)
}

func addrOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}) }

// A fake is a consumer whose queues and memory are slices.
type fake struct {
	s      *sim
	p      *simPort
	c      *conn
	level  iu.Reliability
	sends  []*fakeSend
	next1  int
	recvs  []*fakeRecv
	recvN  int // receive descriptors taken
	cur    *fakeRecv
	mem    []byte // a region with handle 7 whose first byte has address 1000
	rights [2]bool
	piece  int // maximum number of bytes that gather returns at a time, except bytes that fit scratch; 0 means no limit
	asyncs []vi.ErrorCode
	causes []vi.Control // operations in the reports of asynchronous errors
	result []iu.Reason
	broke  int
	order  bool // the end was orderly
}

type fakeSend struct {
	ctl    vi.Control
	data   []byte // bytes to be gathered, or filled by a Read
	imm    uint32
	va     uint64
	mh     uint32
	done   bool
	bad    bool // the check of the descriptor finds an error
	gone   bool // the memory is deregistered before the message is sent
	status vi.Status
}

type fakeRecv struct {
	buf  []byte
	done bool
	d    vi.Delivery
	bad  vi.Status // error bits from the check of the descriptor
	gone vi.Status // error bits from placing bytes
}

func (f *fake) peek() (vi.Control, bool) {
	if f.next1 == len(f.sends) {
		return 0, false
	}
	return f.sends[f.next1].ctl, true
}

func (f *fake) next(w *work) {
	s := f.sends[f.next1]
	w.n, w.imm, w.data, w.va, w.mh, w.seq = uint32(len(s.data)), s.ctl&vi.Immediate != 0, s.imm,
		s.va, s.mh, uint64(f.next1)
	switch s.ctl.Op() {
	case vi.OpSendReceive:
		w.op = iu.SendRqst
	case vi.OpRDMAWrite:
		w.op = iu.WriteRqst
	case vi.OpRDMARead:
		w.op = iu.ReadRqst
	}
	if s.bad {
		w.bad = vi.StatusLengthError
	}
	f.next1++
}

func (f *fake) gather(w *work, off uint32, n int, scratch []byte) ([]byte, vi.Status) {
	if f.sends[w.seq].gone {
		return nil, vi.StatusProtectionError
	}
	b := f.sends[w.seq].data[off:][:f.pieceOf(n, scratch)]
	return b[:len(b):len(b)], 0
}

func (f *fake) scatterRead(w *work, off uint32, b []byte) vi.Status {
	if f.sends[w.seq].gone {
		return vi.StatusProtectionError
	}
	copy(f.sends[w.seq].data[off:], b)
	return 0
}

func (f *fake) finish(w *work, bad vi.Status) {
	s := f.sends[w.seq]
	if s.done {
		f.s.t.Errorf("send %d completed twice", w.seq)
	}
	s.done, s.status = true, bad
}

func (f *fake) takeRecv() (uint64, vi.Status, bool) {
	if f.recvN == len(f.recvs) {
		return 0, 0, false
	}
	if f.cur != nil {
		f.s.t.Error("a second receive taken before the first was completed")
	}
	f.cur = f.recvs[f.recvN]
	f.recvN++
	return uint64(len(f.cur.buf)), f.cur.bad, true
}

func (f *fake) scatter(off uint32, b []byte) vi.Status {
	if f.cur.gone != 0 {
		return f.cur.gone
	}
	copy(f.cur.buf[off:], b)
	return 0
}

func (f *fake) finishRecv(d vi.Delivery) {
	if f.cur == nil || f.cur.done {
		f.s.t.Error("receive completed that was not taken")
		return
	}
	f.cur.done, f.cur.d = true, d
	f.cur = nil
}

func (f *fake) access(h uint32, va uint64, n uint32, write bool) bool {
	switch {
	case h != 7:
		return false
	case write && !f.rights[0], !write && !f.rights[1]:
		return false
	case va < 1000 || va-1000 > uint64(len(f.mem)) || uint64(n) > uint64(len(f.mem))-(va-1000):
		return false
	}
	return true
}

func (f *fake) check(h uint32, va uint64, n uint32, write bool) bool {
	return f.access(h, va, n, write)
}

func (f *fake) place(h uint32, va uint64, total, off uint32, b []byte) bool {
	if !f.access(h, va, total, true) {
		return false
	}
	copy(f.mem[va-1000+uint64(off):][:total-off], b)
	return true
}

func (f *fake) fetch(h uint32, va uint64, total, off uint32, n int, scratch []byte) ([]byte, bool) {
	if !f.access(h, va, total, false) {
		return nil, false
	}
	b := f.mem[va-1000+uint64(off):][:f.pieceOf(n, scratch)]
	return b[:len(b):len(b)], true
}

func (f *fake) pieceOf(n int, scratch []byte) int {
	if f.piece == 0 {
		return n
	}
	return min(n, max(f.piece, len(scratch)))
}

func (f *fake) async(code vi.ErrorCode, op vi.Control) {
	f.asyncs, f.causes = append(f.asyncs, code), append(f.causes, op)
}
func (f *fake) broken(orderly bool) { f.broke++; f.order = orderly }

func (f *fake) attrs() iu.Attributes {
	return iu.Attributes{Reliability: f.level, Write: true, Read: f.level != iu.Unreliable,
		MaxTransfer: defaultMaxTransfer,
		MaxReads:    4, MaxUnacked: 16, Streaming: true}
}

func (s *sim) fake(i int, level iu.Reliability) *fake {
	return &fake{s: s, p: s.ports[i], level: level, mem: make([]byte, 1<<16), rights: [2]bool{true, true}}
}

func (f *fake) net(disc string) iu.NetAddress { return iu.IPAddress(addrOf(f.p.n), []byte(disc)) }

func (f *fake) result1(now fc.Time, r iu.Reason) { f.result = append(f.result, r) }

func (f *fake) post(ctl vi.Control, data []byte) *fakeSend { return f.postImm(ctl, data, 0) }

func (f *fake) postImm(ctl vi.Control, data []byte, imm uint32) *fakeSend {
	s := &fakeSend{ctl: ctl, data: data, imm: imm, va: 1000, mh: 7}
	f.sends = append(f.sends, s)
	f.c.posted(f.s.net.Now())
	return s
}

func (f *fake) postRecv(n int) *fakeRecv {
	r := &fakeRecv{buf: make([]byte, n)}
	f.recvs = append(f.recvs, r)
	if f.c != nil {
		f.c.recvPosted(f.s.net.Now())
	}
	return r
}

// connect connects two fakes in the client-server model. The server already waits.
func (s *sim) connect(level iu.Reliability) (a, b *fake) {
	a, b = s.fake(0, level), s.fake(1, level)
	s.serve(b, "disc")
	s.dial(a, b, "disc", iu.ClientServer)
	s.net.RunUntil(10*time.Minute, func() bool { return len(a.result) > 0 && len(b.result) > 0 })
	if len(a.result) != 1 || a.result[0] != iu.Confirmed || len(b.result) != 1 || b.result[0] != iu.Confirmed {
		s.t.Fatalf("connect: %v, %v", a.result, b.result)
	}
	return a, b
}

func (s *sim) serve(b *fake, disc string) {
	b.p.addWait(s.net.Now(), &wait{disc: []byte(disc), match: func(c *conn) {
		b.c = c
		c.accept(s.net.Now(), b.attrs(), b, false, b.result1)
	}})
}

func (s *sim) dial(a, b *fake, disc string, mode iu.Mode) {
	local := a.net("me")
	if mode == iu.PeerToPeer {
		local = a.net(disc)
	}
	a.c = a.p.connect(s.net.Now(), connectArgs{mode: mode, local: local, remote: b.net(disc), attrs: a.attrs(),
		deadline: fc.Never, up: a, done: a.result1})
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed + i>>8)
	}
	return b
}

// opcode returns a function matching FC-VI frames with opcode o.
func opcode(o iu.Opcode) func(*fc.Frame) bool {
	return func(f *fc.Frame) bool {
		return f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() && len(f.Opt) > 4 && iu.Opcode(f.Opt[4]) == o
	}
}

var levels = []iu.Reliability{iu.Unreliable, iu.ReliableDelivery, iu.ReliableReception}

// TestTransfer sends messages of every kind and size, in both directions at once, over each
// topology, class and order. [FCVI-5.2.5-1] [FCVI-5.2.5-2] [FCVI-8.4-11] [FCFS-2.9-5] [FCFS-2.10-2]
func TestTransfer(t *testing.T) {
	sizes := []int{0, 1, 3, 2080, 2095, 2096, 2097, 4192, 65536, 1 << 20}
	for _, topo := range []string{"in order", "out of order", "loop", "point-to-point", "class 2", "stream"} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%v", topo, level), func(t *testing.T) {
				cfg := simConfig{seed: 1, order: topo != "out of order", loop: topo == "loop",
					p2p: topo == "point-to-point", stream: topo == "stream"}
				if topo == "class 2" {
					cfg.class, cfg.class2 = fc.Class2, true
				}
				s := newSim(t, cfg)
				a, b := s.connect(level)
				if topo == "out of order" {
					s.net.SetNoise(fabric.Noise{Reorder: 0.2, MaxDelay: 40 * time.Microsecond})
				}
				a.mem, b.mem = make([]byte, 2<<20), make([]byte, 2<<20)
				for i, n := range sizes {
					want := pattern(n, i)
					r := b.postRecv(n + 5)
					snd := a.postImm(vi.OpSendReceive|vi.Immediate, want, uint32(i))
					s.net.Run(3 * time.Second)
					if !snd.done || snd.status != 0 || !r.done || int(r.d.Length) != n ||
						!bytes.Equal(r.buf[:n], want) || r.d.Data != uint32(i) {
						t.Fatalf("send %d: done %v %v, delivery %v %+v; a %+v b %+v state %v %v",
							n, snd.done, snd.status, r.done, r.d, a.p.stats, b.p.stats, a.c.state, b.c.state)
					}
					r = b.postRecv(0)
					w := a.post(vi.OpRDMAWrite|vi.Immediate, want)
					s.net.Run(3 * time.Second)
					if !w.done || w.status != 0 || !r.done || !r.d.RemoteWrite || !bytes.Equal(b.mem[:n], want) {
						t.Fatalf("write %d: %+v, %+v", n, w.status, r.d)
					}
					if level == iu.Unreliable {
						continue
					}
					rd := b.post(vi.OpRDMARead, make([]byte, n))
					copy(a.mem, want)
					s.net.Run(3 * time.Second)
					if !rd.done || rd.status != 0 || !bytes.Equal(rd.data, want) {
						k := 0
						for k < n && rd.data[k] == want[k] {
							k++
						}
						t.Fatalf("read %d: done %v %v, differs at %d: %x want %x", n, rd.done,
							rd.status, k, rd.data[k:k+8], want[k:k+8])
					}
				}
				// Many messages are outstanding at once in both directions.
				var rs []*fakeRecv
				for range 200 {
					rs = append(rs, b.postRecv(5000))
				}
				for i := range 200 {
					a.post(vi.OpSendReceive, pattern(i*23, i))
					if level != iu.Unreliable && i%10 == 0 {
						b.post(vi.OpRDMARead, make([]byte, 3000))
					}
				}
				s.net.Run(10 * time.Second)
				for i, r := range rs {
					if !r.done || !bytes.Equal(r.buf[:r.d.Length], pattern(i*23, i)) {
						t.Fatalf("message %d: done %v length %d; a %v b %v %+v", i, r.done,
							r.d.Length, a.c.state, b.c.state, b.p.stats)
					}
				}
				for i, w := range a.sends {
					if !w.done || w.status != 0 {
						t.Fatalf("send %d: %v %v", i, w.done, w.status)
					}
				}
				a.c.disconnect(s.net.Now())
				s.net.Run(time.Second)
				if b.broke != 1 || !b.order || !a.c.gone || !b.c.gone {
					t.Errorf("disconnect: broken %d orderly %v, gone %v %v", b.broke, b.order, a.c.gone, b.c.gone)
				}
				s.net.Run(time.Minute)
				for i, p := range s.ports {
					if n := p.oxids.used; n != 0 {
						t.Errorf("port %d still has %d exchanges", i, n)
					}
					if len(p.handles.conns) != 0 || len(p.setups) != 0 {
						t.Errorf("port %d still has %d endpoints, %d set-ups", i, len(p.handles.conns), len(p.setups))
					}
				}
			})
		}
	}
}

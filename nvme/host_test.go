package nvme

import (
	"bytes"
	"context"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const hostNQN = "nqn.2014-08.org.nvmexpress:uuid:test"

func patience(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// serve returns a listening target with the given namespaces, and the target's address.
func serve(t testing.TB, spaces ...Namespace) (*Target, string) {
	t.Helper()
	return serveWith(t, Config{}, spaces...)
}

func serveWith(t testing.TB, cfg Config, spaces ...Namespace) (*Target, string) {
	t.Helper()
	tg, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tg.Close() })
	for _, n := range spaces {
		if _, err := tg.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	addr, err := tg.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return tg, addr.String()
}

// A hostQueue is a queue on the side of the host, with memory for the data of a command.
type hostQueue struct {
	t    testing.TB
	qp   *iwarp.QueuePair
	mr   *iwarp.MemoryRegion
	mem  []byte
	bufs [][]byte
	cid  uint16
	came []nvmewire.CQE // responses to other commands than the awaited one
	last iwarp.Completion
}

const hostMemory = 1 << 20

// dial opens a stream with the private data. The stream has CRCs if the target requests them.
func dial(t testing.TB, addr string, private []byte) (*hostQueue, error) {
	t.Helper()
	h := &hostQueue{t: t, mem: make([]byte, hostMemory)}
	cfg := &iwarp.Config{Private: private, SendDepth: 1024, RecvDepth: 512, IRD: 64, Device: withoutCRC(), Prepare: func(q *iwarp.QueuePair) error {
		for i := range 200 {
			h.bufs = append(h.bufs, make([]byte, nvmewire.CQELen))
			if err := q.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(h.bufs[i])}}); err != nil {
				return err
			}
		}
		return nil
	}}
	var err error
	if h.qp, err = iwarp.Dial(patience(t), addr, cfg); err != nil {
		return nil, err
	}
	t.Cleanup(h.qp.Abort)
	if h.mr, err = h.qp.Register(h.mem, iwarp.RemoteRead|iwarp.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return h, nil
}

func open(t testing.TB, addr string, id uint16, depth int) *hostQueue {
	t.Helper()
	r := nvmewire.Request{QID: id, HRQSize: uint16(depth), HSQSize: uint16(depth - 1)}
	h, err := dial(t, addr, r.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// post sends a command with data in the capsule, and returns the command's identifier.
func (h *hostQueue) post(s nvmewire.SQE, inline []byte) uint16 {
	h.t.Helper()
	h.cid++
	if s.CID == 0 {
		s.CID = h.cid | 0x5000
	}
	if s.Flags == 0 {
		s.Flags = 0x40
	}
	if s.SGL.Type == 0 {
		s.SGL.Type = nvmewire.SGLKeyed
	}
	h.raw(append(s.Append(nil), inline...))
	return s.CID
}

func (h *hostQueue) raw(b []byte) {
	h.t.Helper()
	if err := h.qp.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(b)}, Unsignaled: true}); err != nil {
		h.t.Fatal(err)
	}
}

// next waits for a response; ok is false if the queue has ended.
func (h *hostQueue) next() (e nvmewire.CQE, ok bool) {
	h.t.Helper()
	c, err := h.qp.RecvCQ().Wait(patience(h.t))
	if err != nil {
		h.t.Fatal(err)
	}
	if c.Status != iwarp.StatusOK {
		return e, false
	}
	if e, err = nvmewire.ParseCQE(h.bufs[c.ID][:c.Len]); err != nil {
		h.t.Fatal(err)
	}
	h.last = c
	// The error after the peer has closed the stream does not matter.
	h.qp.PostRecv(iwarp.RecvWR{ID: c.ID, SG: []iwarp.SGE{iwarp.Buf(h.bufs[c.ID])}})
	return e, true
}

// do sends a command and waits for the response.
func (h *hostQueue) do(s nvmewire.SQE, inline ...byte) nvmewire.CQE {
	h.t.Helper()
	id := h.post(s, inline)
	for {
		e, ok := h.next()
		switch {
		case !ok:
			h.t.Fatalf("queue ended instead of an answer to %s: %v", s.Name(false), h.qp.Err())
		case e.CID == id:
			return e
		}
		h.came = append(h.came, e)
	}
}

// want executes a command, and fails the test unless the response has status st.
func (h *hostQueue) want(st nvmewire.Status, s nvmewire.SQE, inline ...byte) nvmewire.CQE {
	h.t.Helper()
	e := h.do(s, inline...)
	if e.Status != st {
		h.t.Errorf("%s: %v, want %v", s.Name(h.cid > 0 && s.Opcode != 0), e.Status, st)
	}
	return e
}

// keyed returns a descriptor of the first n bytes of the memory.
func (h *hostQueue) keyed(n int) nvmewire.SGL {
	return nvmewire.SGL{Type: nvmewire.SGLKeyed, Addr: h.mr.TO(), Length: uint32(n), Key: h.mr.STag()}
}

func (h *hostQueue) connectSQE(c *nvmewire.Connect) nvmewire.SQE {
	var s nvmewire.SQE
	s.SetConnect(c)
	copy(h.mem, c.AppendData(nil))
	s.SGL = h.keyed(nvmewire.ConnectLen)
	return s
}

func adminConnect(nqn string) *nvmewire.Connect {
	return &nvmewire.Connect{SQSize: 31, HostID: [16]byte{1}, CntlID: 0xffff, SubNQN: nqn, HostNQN: hostNQN}
}

func (h *hostQueue) propertySet(offset uint32, v uint64) nvmewire.CQE {
	h.t.Helper()
	var s nvmewire.SQE
	s.SetProperty(nvmewire.FCPropertySet, nvmewire.Property{Offset: offset, Value: v})
	return h.want(nvmewire.OK, s)
}

func (h *hostQueue) propertyGet(offset uint32, wide bool) uint64 {
	h.t.Helper()
	var s nvmewire.SQE
	s.SetProperty(nvmewire.FCPropertyGet, nvmewire.Property{Offset: offset, Wide: wide})
	return h.want(nvmewire.OK, s).Result
}

// admin connects an admin queue and enables the controller. It returns the controller's number.
func admin(t testing.TB, addr, nqn string) (h *hostQueue, controller uint16) {
	t.Helper()
	h = open(t, addr, 0, 32)
	controller = uint16(h.want(nvmewire.OK, h.connectSQE(adminConnect(nqn))).Result)
	h.propertySet(nvmewire.PropCC, 0x460001)
	if v := h.propertyGet(nvmewire.PropCSTS, false); v != 1 {
		t.Fatalf("status %#x of the controller, want ready", v)
	}
	return h, controller
}

// ioQueue opens I/O queue id of a controller. The data of Connect is in the capsule.
func ioQueue(t testing.TB, addr string, controller, id uint16, depth int) *hostQueue {
	t.Helper()
	h := open(t, addr, id, depth)
	e := h.ioConnect(controller, id, depth)
	if e.Status != nvmewire.OK || uint16(e.Result) != controller {
		t.Fatalf("queue %d: %v, controller %d", id, e.Status, e.Result)
	}
	return h
}

func (h *hostQueue) ioConnect(controller, id uint16, depth int) nvmewire.CQE {
	c := adminConnect(defaultNQN)
	c.QID, c.SQSize, c.CntlID = id, uint16(depth-1), controller
	s := h.connectSQE(c)
	s.SGL = nvmewire.SGL{Type: nvmewire.SGLOffset, Length: nvmewire.ConnectLen}
	return h.do(s, c.AppendData(nil)...)
}

func setQueues(h *hostQueue, n uint32) nvmewire.CQE {
	return h.do(nvmewire.SQE{Opcode: nvmewire.OpSetFeatures,
		CDW: [6]uint32{nvmewire.FeatureQueues, (n - 1) | (n-1)<<16}})
}

// attach connects an admin queue and an I/O queue of the given depth.
func attach(t testing.TB, addr string, depth int) (adm, io *hostQueue) {
	t.Helper()
	adm, id := admin(t, addr, defaultNQN)
	if e := setQueues(adm, 4); e.Status != nvmewire.OK {
		t.Fatal(e.Status)
	}
	return adm, ioQueue(t, addr, id, 1, depth)
}

// rw returns a Read or Write of n bytes, starting at block first; blocks have 512 bytes.
func (h *hostQueue) rw(op uint8, first, n int) nvmewire.SQE {
	return nvmewire.SQE{Opcode: op, NSID: 1, SGL: h.keyed(n), CDW: [6]uint32{uint32(first), 0, uint32(n/512 - 1)}}
}

func (h *hostQueue) write(first int, b []byte) {
	h.t.Helper()
	copy(h.mem, b)
	h.want(nvmewire.OK, h.rw(nvmewire.OpWrite, first, len(b)))
}

func (h *hostQueue) read(first, n int) []byte {
	h.t.Helper()
	clear(h.mem[:n])
	h.want(nvmewire.OK, h.rw(nvmewire.OpRead, first, n))
	return bytes.Clone(h.mem[:n])
}

// ends waits until the target has ended the queue.
func (h *hostQueue) ends() {
	h.t.Helper()
	select {
	case <-h.qp.Ended():
	case <-h.qp.PeerClosed():
	case <-time.After(testkit.Patience):
		h.t.Error("the queue did not end")
	}
}

// left waits until the target has exactly n queues open.
func left(t testing.TB, tg *Target, n int) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience); len(tg.Queues()) != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d queues are left, want %d: %+v", len(tg.Queues()), n, tg.Queues())
		}
	}
}

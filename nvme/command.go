package nvme

import (
	"bytes"
	"io"
	"time"

	"viaduct/internal/nvmecore"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// A command is one command of a host, with its memory. A command belongs to one goroutine at a
// time: the queue's or a worker.
type command struct {
	q       *queue
	id      uint64
	head    [nvmewire.SQELen]byte // receives the capsule if it carries no data
	capsule *buffer               // receives the capsule if it carries data, otherwise nil
	inline  []byte                // data in the capsule
	sqe     nvmewire.SQE
	step    nvmecore.Step
	space   *space
	data    []byte  // data of the step: in the capsule, in buf, or in the backend
	buf     *buffer // nil if data is elsewhere
	stored  bool    // data is memory of the backend
	cqe     [nvmewire.CQELen]byte
	sg      [1]iwarp.SGE
}

// arrived starts the command whose capsule of n bytes was received.
func (c *command) arrived(n int) {
	q, t := c.q, c.q.t
	b := c.head[:min(n, len(c.head))]
	if c.capsule != nil {
		b = c.capsule.b[:n]
	}
	var err error
	if c.sqe, err = nvmewire.ParseSQE(b); err != nil { // [NVME-SQE-3]
		t.log.Info("capsule is too short", "queue", q.core.ID, "bytes", n)
		q.qp.Abort()
		return
	}
	c.inline, c.stored = b[nvmewire.SQELen:], false
	q.commands.Add(1)
	t.mu.Lock()
	c.step = q.core.Command(&c.sqe, len(c.inline))
	if c.space = t.spaces[c.step.NSID]; c.space != nil {
		c.space.users.n.Add(1)
	}
	t.unlock()
	c.begin()
}

func (c *command) begin() {
	q, s := c.q, &c.step
	switch s.Kind {
	case nvmecore.Answer:
		c.respond(s.Result, s.Status, s.Data)
	case nvmecore.Hold:
		q.release(c)
	case nvmecore.End:
		q.t.log.Info("more commands than the queue has", "queue", q.core.ID)
		q.qp.Abort()
	case nvmecore.Write:
		c.data = c.space.slice(s.Offset, s.Length, true)
		c.stored = c.data != nil
		c.fetch()
	case nvmecore.Connect, nvmecore.Compare, nvmecore.Discard:
		c.fetch()
	case nvmecore.Read:
		c.read()
	default:
		c.job()
	}
}

// read executes a Read. The bytes are sent directly from a backend in memory; otherwise a job reads
// the bytes.
func (c *command) read() {
	q, s := c.q, &c.step
	c.data = c.space.slice(s.Offset, s.Length, false)
	if c.stored = c.data != nil; !c.stored {
		c.memory()
		c.job()
		return
	}
	q.readBytes.Add(uint64(s.Length))
	c.respond(0, nvmewire.OK, c.data)
}

// memory allocates memory for the data of the step.
func (c *command) memory() {
	c.buf = c.q.t.buffers.data(int(c.step.Length))
	c.data = c.buf.b[:c.step.Length]
}

// fetch gets the data from the capsule or by an RDMA Read, and then calls fetched.
func (c *command) fetch() {
	g := c.sqe.SGL
	if g.Type == nvmewire.SGLOffset { // data in the capsule, as nvmecore has checked
		from := c.inline[g.Addr:][:c.step.Length]
		if !c.stored {
			c.data = from
		} else if err := regmem.Copy(c.data, from, c.space.mapped != nil); err != nil {
			c.respond(0, c.failed(err), nil)
			return
		}
		c.fetched()
		return
	}
	if !c.stored {
		c.memory()
	}
	c.sg[0] = c.element(c.data)
	wr := iwarp.SendWR{ID: idRead | c.id, Op: iwarp.OpRead, SG: c.sg[:],
		Remote: iwarp.RemoteAddr{STag: g.Key, TO: g.Addr}}
	if c.q.reads.post(wr) != nil {
		c.q.qp.Abort()
	}
}

// element returns the list element for data, in an RDMA request of the command.
func (c *command) element(data []byte) iwarp.SGE {
	if c.stored && c.space.mapped != nil {
		return c.space.mapped.SGE(int(c.step.Offset), len(data))
	}
	return iwarp.Buf(data)
}

// fetched continues the command when the data has arrived.
func (c *command) fetched() {
	q, t := c.q, c.q.t
	switch c.step.Kind {
	case nvmecore.Connect:
		t.mu.Lock()
		s := q.core.ConnectData(time.Now(), &c.sqe, c.data)
		t.unlock()
		if s.Status == nvmewire.OK {
			t.log.Info("host connected", "queue", q.core.ID, "controller", s.Result)
		}
		c.respond(s.Result, s.Status, nil)
		return
	case nvmecore.Write:
		q.writeBytes.Add(uint64(c.step.Length))
		if c.stored && !c.step.Durable {
			c.respond(0, nvmewire.OK, nil)
			return
		}
	}
	c.job()
}

// job executes the step at once if the backend never waits, and otherwise in a worker.
func (c *command) job() {
	c.q.jobs.Add(1)
	if c.space != nil && c.space.quick() {
		c.execute()
		return
	}
	c.q.t.workers.do(c)
}

// execute performs the step on the backend, and responds.
func (c *command) execute() {
	defer c.q.jobs.Done()
	s, p := &c.step, c.space
	var err error
	switch s.Kind {
	case nvmecore.Read:
		if err = readFull(p.Data, c.data, s.Offset); err == nil {
			c.q.readBytes.Add(uint64(s.Length))
			c.respond(0, nvmewire.OK, c.data)
			return
		}
	case nvmecore.Write:
		if !c.stored {
			_, err = p.Data.(io.WriterAt).WriteAt(c.data, s.Offset)
		}
	case nvmecore.Zero:
		err = p.zero(s.Offset, s.Length)
	case nvmecore.Compare:
		c.respond(0, c.compare(), nil)
		return
	case nvmecore.Discard:
		c.respond(0, c.discard(), nil)
		return
	case nvmecore.Flush:
		err = c.flush()
	}
	if err == nil && s.Durable { // [NVME-IO-2]
		err = p.sync()
	}
	c.respond(0, c.failed(err), nil)
}

// failed logs err, the error of a backend, and returns the status for err; OK if err is nil.
func (c *command) failed(err error) nvmewire.Status {
	if err == nil {
		return nvmewire.OK
	}
	s := &c.step
	c.q.t.log.Warn("backend failed", "namespace", s.NSID, "offset", s.Offset, "bytes", s.Length, "err", err)
	return nvmewire.InternalError
}

// readFull reads all of b, and accepts io.EOF with the last bytes, as io.ReaderAt allows.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	return err
}

func (c *command) compare() nvmewire.Status { // [NVME-IO-4]
	have := c.space.slice(c.step.Offset, c.step.Length, false)
	if have == nil {
		b := c.q.t.buffers.data(len(c.data))
		defer b.giveBack()
		have = b.b[:len(c.data)]
		if err := readFull(c.space.Data, have, c.step.Offset); err != nil {
			return c.failed(err)
		}
	}
	equal := false
	if err := regmem.Guard(func() { equal = bytes.Equal(have, c.data) }); err != nil {
		return c.failed(err) // the mapped file became shorter
	}
	if !equal {
		return nvmewire.CompareFailure
	}
	return nvmewire.OK
}

func (c *command) discard() nvmewire.Status { // [NVME-IO-5]
	t := c.q.t
	for b := c.data; len(b) > 0; b = b[nvmewire.DSMRangeLen:] {
		r, _ := nvmewire.ParseDSMRange(b)
		t.mu.Lock()
		off, n, st := t.core.DiscardRange(c.step.NSID, r)
		t.unlock()
		if st == nvmewire.OK && c.sqe.CDW[1]>>2&1 != 0 { // the other attributes are hints
			st = c.failed(c.space.discard(off, n))
		}
		if st != nvmewire.OK {
			return st
		}
	}
	return nvmewire.OK
}

// flush syncs the namespace of the command, or all namespaces if the command names none.
func (c *command) flush() error {
	if c.space != nil {
		return c.space.sync()
	}
	t := c.q.t
	t.mu.Lock()
	all := make([]*space, 0, len(t.spaces))
	for _, s := range t.spaces {
		s.users.n.Add(1)
		all = append(all, s)
	}
	t.mu.Unlock()
	var err error
	for _, s := range all {
		if err == nil {
			err = s.sync()
		}
		s.users.drop()
	}
	return err
}

// respond sends the response, preceded by data for the host.
func (c *command) respond(result uint64, st nvmewire.Status, data []byte) {
	t := c.q.t
	t.mu.Lock()
	e := c.q.core.Respond(&c.sqe, result, st)
	t.unlock()
	c.q.send(c, e, data)
}

package nvme

import (
	"context"
	"errors"
	"net"
	"sync"

	"viaduct/internal/nvmecore"
	"viaduct/internal/ulp"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// A queue is the stream of a host's queue, with the queue's commands. One goroutine handles all
// completions; workers only post responses.
type queue struct {
	t     *Target
	core  *nvmecore.Queue // guarded by t.mu, except ID and Depth
	qp    *iwarp.QueuePair
	cq    *iwarp.CompletionQueue
	reads readQueue      // used only by the goroutine of run
	jobs  sync.WaitGroup // commands in progress in workers
	counters

	free struct {
		sync.Mutex // also locked in the receive role, so no method of the stream is called under it
		all, list  []*command
	}
	post struct {
		sync.Mutex // never held together with free
		wr         [2]iwarp.SendWR
		sg         [2]iwarp.SGE
	}
}

// The upper half of the ID of a request is its kind, the lower half the index of the command.
const (
	idCommand  = iota << 32 // a receive
	idRead                  // an RDMA Read that fetches data from the host
	idWrite                 // an RDMA Write of data to the host; completes only if it fails
	idResponse              // a response; its completion frees the command
)

func newQueue(t *Target, core *nvmecore.Queue) *queue { return &queue{t: t, core: core} }

// open accepts the connection Request r, with send and receive queues as deep as the queue needs.
// [NVME-CM-3]
func (q *queue) open(r *iwarp.Request) (err error) {
	// A response completes when TCP has accepted it. The next command of the host may arrive before
	// the completion is handled, hence twice the depth. Each command may also need Reads, and a
	// Write before its response.
	sends, recvs := 4*q.core.Depth+16, 2*q.core.Depth
	if q.cq, err = q.t.dev.NewCQ(sends + recvs); err == nil {
		err = r.Configure(func(c *iwarp.Config) {
			c.SendCQ, c.RecvCQ, c.SendDepth, c.RecvDepth, c.Source = q.cq, q.cq, sends, recvs, q
		})
	}
	if err != nil {
		r.Reject(nvmewire.AppendReject(nil, nvmewire.RejectFull))
		return err
	}
	q.qp = r.QueuePair()
	q.reads.qp = q.qp
	q.t.mu.Lock()
	q.t.queues[q.core] = q
	closed := q.t.closed
	q.t.mu.Unlock()
	if closed {
		r.Reject(nil)
		return net.ErrClosed
	}
	_, err = r.Accept(nvmewire.AppendReply(nil, uint16(q.core.Depth+1)))
	return err
}

// run handles completions until the stream has ended.
func (q *queue) run() {
	for {
		c, err := q.cq.Wait(context.Background())
		if err != nil || c.Status != iwarp.StatusOK {
			break
		}
		q.completed(&c)
	}
	select {
	case <-q.qp.Ended():
	case <-q.qp.PeerClosed(): // [NVME-CM-4]
	default:
		q.qp.Abort()
	}
	q.qp.Close()
	for { // discard the completions of the remaining commands
		if _, ok := q.cq.Poll(); !ok {
			return
		}
	}
}

func (q *queue) completed(c *iwarp.Completion) {
	k := q.command(c.ID)
	switch c.ID &^ 0xffffffff {
	case idCommand:
		k.arrived(int(c.Len))
	case idRead:
		if q.reads.done() != nil {
			q.qp.Abort()
		}
		k.fetched()
	case idResponse:
		q.release(k)
	}
}

// command returns the command whose index is in the ID of a request.
func (q *queue) command(id uint64) *command {
	q.free.Lock()
	defer q.free.Unlock()
	return q.free.all[uint32(id)]
}

// take returns a free command, or nil if the host has sent more commands than the queue has room
// for.
func (q *queue) take() *command {
	f := &q.free
	f.Lock()
	defer f.Unlock()
	if n := len(f.list); n > 0 {
		c := f.list[n-1]
		f.list = f.list[:n-1]
		return c
	}
	if len(f.all) >= 3*q.core.Depth+nvmecore.MaxEvents {
		return nil
	}
	c := &command{q: q, id: uint64(len(f.all))}
	f.all = append(f.all, c)
	return c
}

// release frees the command and the command's memory.
func (q *queue) release(c *command) {
	for _, b := range []**buffer{&c.capsule, &c.buf} {
		if *b != nil {
			(*b).giveBack()
			*b = nil
		}
	}
	c.data = nil
	c.leaveSpace()
	q.free.Lock()
	q.free.list = append(q.free.list, c)
	q.free.Unlock()
}

// leaveSpace ends the use of the command's namespace.
func (c *command) leaveSpace() {
	if c.space != nil {
		c.space.users.drop()
		c.space = nil
	}
}

// abandon ends the use of namespaces by all commands, after the queue has ended.
func (q *queue) abandon() {
	for _, c := range q.free.all {
		c.leaveSpace()
	}
}

// NextRecv implements [ulp.Source], so that a command has memory only while received and
// executed.
func (q *queue) NextRecv(_ []byte, size int, last bool) (iwarp.RecvWR, bool) {
	c := q.take()
	if c == nil { // [NVME-SQE-3]
		return iwarp.RecvWR{}, false
	}
	c.sg[0] = iwarp.Buf(c.head[:])
	if n := q.core.CapsuleLen(); n > len(c.head) && (size > len(c.head) || !last) {
		c.capsule = q.t.buffers.capsule()
		c.sg[0] = iwarp.Buf(c.capsule.b[:n])
	}
	return iwarp.RecvWR{ID: idCommand | c.id, SG: c.sg[:]}, true
}

// The other methods of [ulp.Source]. Nothing is lent, so there is nothing to take back or to predict.

func (q *queue) SetStream(ulp.Stream[iwarp.SendWR])        {}
func (q *queue) Reclaim(uint64) (wr iwarp.RecvWR, ok bool) { return wr, false }
func (q *queue) Full(ulp.Pending) bool                     { return false }
func (q *queue) Keep() bool                                { return false }
func (q *queue) Guess() (g ulp.Guess)                      { return g }

// event sends the response to an event request.
func (q *queue) event(o *nvmecore.Output) {
	c := q.take()
	if c == nil {
		q.qp.Abort()
		return
	}
	c.sqe = o.SQE
	q.send(c, o.CQE, nil)
}

// send posts the response to a command, after a Write of data to the host. [NVME-SGL-2]
// [NVME-SGL-5]
func (q *queue) send(c *command, e nvmewire.CQE, data []byte) {
	if e.Status != nvmewire.OK {
		q.failed.Add(1)
		q.t.log.Debug("command failed", "queue", q.core.ID, "command", c.sqe.Name(q.core.ID == 0),
			"status", e.Status.String())
	}
	g := c.sqe.SGL
	p := &q.post
	p.Lock()
	defer p.Unlock()
	wrs := p.wr[1:]
	if len(data) > 0 {
		wrs = p.wr[:]
		p.sg[0] = c.element(data)
		p.wr[0] = iwarp.SendWR{ID: idWrite | c.id, Op: iwarp.OpWrite, SG: p.sg[:1], Unsignaled: true,
			Volatile: c.stored && c.space.mapped == nil, // other commands may write there meanwhile
			Remote:   iwarp.RemoteAddr{STag: g.Key, TO: g.Addr}}
	}
	p.sg[1] = iwarp.Buf(e.Append(c.cqe[:0]))
	w := &p.wr[1]
	*w = iwarp.SendWR{ID: idResponse | c.id, SG: p.sg[1:]}
	if g.Invalidates() {
		w.Op, w.Invalidate = iwarp.OpSendInvalidate, g.Key
	}
	if _, err := q.qp.PostBatch(wrs); err != nil && !errors.Is(err, net.ErrClosed) {
		q.t.log.Warn("response not sent", "queue", q.core.ID, "err", err)
		q.qp.Abort()
	}
}

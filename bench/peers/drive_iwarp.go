package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"viaduct/iwarp"
)

// iwarpEndpoint measures package iwarp.
type iwarpEndpoint struct{}

// iwarpHello is the peer's announcement.
type iwarpHello struct {
	Address string `json:"address"`
	STag    uint32 `json:"stag"`
	TO      uint64 `json:"to"`
}

const (
	// iwarpRecvs is how many receives each side keeps posted. iWARP has no flow control for Sends,
	// so the receiver answers after every iwarpRecvs/2 Sends.
	iwarpRecvs = 256

	// lastLen is the length in bytes of the last message of a stream, and of answers. No other
	// message of a stream has this length.
	lastLen = 1
)

func iwarpConfig(m measure) (*iwarp.Config, *iwarp.Device) {
	dev := iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: !m.CRC})
	c := &iwarp.Config{
		Device: dev, PD: dev.NewPD(), Congestion: m.Congestion, SameHost: m.sameHost(), IRD: 64, ORD: 64,
		SendDepth: 2*m.Depth + 16, RecvDepth: 2 * iwarpRecvs,
		Interop: iwarp.Interop{FPDUSize: 64766},
	}
	if m.FPDU > 0 {
		c.Interop.FPDUSize = m.FPDU
	}
	if m.Op == opIdle || m.Op == opSetup {
		c.SendDepth, c.RecvDepth, c.IRD, c.ORD = 0, 0, 0, 0
	}
	return c, dev
}

func (iwarpEndpoint) serve(m measure, announce func(any) error, mark func()) error {
	cfg, _ := iwarpConfig(m)
	mem, err := m.buffer()
	if err != nil {
		return err
	}
	mr, err := cfg.PD.Register(mem, iwarp.RemoteRead|iwarp.RemoteWrite)
	if err != nil {
		return err
	}
	cfg.Prepare = func(q *iwarp.QueuePair) error { return iwarpPostRecvs(q, m, iwarpSlots(mr, m)) }
	l, err := iwarp.Listen("127.0.0.1:0", cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	if m.Op == opIdle {
		mark() // before the first connection begins
	}
	if err := announce(iwarpHello{l.Addr().String(), mr.STag(), mr.TO()}); err != nil {
		return err
	}
	ctx := context.Background()
	if m.Op == opSetup {
		for {
			q, err := l.Accept(m.over)
			if m.over.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			go func() { <-q.Ended(); q.Close() }()
		}
	}
	var wg sync.WaitGroup
	var qs []*iwarp.QueuePair
	defer func() {
		for _, q := range qs {
			q.Abort()
		}
	}()
	for i := range m.Conns {
		q, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		qs = append(qs, q)
		if m.Op == opIdle {
			continue
		}
		if i == m.Conns-1 {
			mark()
		}
		wg.Go(func() { iwarpServeConn(q, mr, m) })
	}
	m.outlast(&wg, mark)
	return nil
}

func iwarpPostRecvs(q *iwarp.QueuePair, m measure, slot func(int) iwarp.SGE) error {
	n := 4
	switch m.Op {
	case opIdle, opSetup:
		n = 0
	case opPing:
		n = pingRecvs
	case opSend:
		n = iwarpRecvs
	}
	for i := range n {
		if err := iwarpPostRecv(q, slot, i); err != nil {
			return err
		}
	}
	return nil
}

func iwarpPostRecv(q *iwarp.QueuePair, slot func(int) iwarp.SGE, i int) error {
	return q.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{slot(i)}})
}

// iwarpSlots returns the buffer of receive i.
func iwarpSlots(mr *iwarp.MemoryRegion, m measure) func(i int) iwarp.SGE {
	return func(i int) iwarp.SGE { return mr.SGE(i%m.slots()*m.Size, m.Size) }
}

// iwarpAnswers returns the receive buffers of the initiator of a stream. Receive and send buffers
// do not overlap.
func iwarpAnswers(mr *iwarp.MemoryRegion, m measure) func(i int) iwarp.SGE {
	if m.Op == opPing {
		return iwarpSlots(mr, m)
	}
	answer := make([]byte, lastLen)
	return func(int) iwarp.SGE { return iwarp.Buf(answer) }
}

// iwarpServeConn serves a connection until the initiator ends it. It answers the last message of a
// stream, every message of a ping-pong, and every iwarpRecvs/2-th message of a stream of Sends.
func iwarpServeConn(q *iwarp.QueuePair, mr *iwarp.MemoryRegion, m measure) {
	cq := q.RecvCQ()
	reply := iwarp.SendWR{SG: []iwarp.SGE{mr.SGE(0, m.Size)}}
	if m.Op != opPing {
		reply.SG[0] = iwarp.Buf(make([]byte, lastLen))
	}
	slot := iwarpSlots(mr, m)
	got := 0
	for {
		c, err := iwarpTake(cq, m.Wait || m.Op != opPing)
		if err != nil || c.Err() != nil {
			return // the initiator has ended
		}
		got++
		answer := m.Op == opPing || c.Len == lastLen || m.Op == opSend && got%(iwarpRecvs/2) == 0
		if answer && q.Post(reply) != nil { // answer first, because the peer waits for it
			return
		}
		if iwarpPostRecv(q, slot, int(c.ID)) != nil {
			return
		}
		if answer {
			if c, err = iwarpTake(q.SendCQ(), m.Wait); err != nil || c.Err() != nil {
				return
			}
		}
	}
}

// iwarpTake returns the next completion, by polling or by waiting.
func iwarpTake(cq *iwarp.CompletionQueue, wait bool) (c iwarp.Completion, err error) {
	if wait {
		return cq.Wait(context.Background())
	}
	for {
		if c, ok := cq.Poll(); ok {
			return c, nil
		}
	}
}

// iwarpConn is a connection of a stream.
type iwarpConn struct {
	q    *iwarp.QueuePair
	mr   *iwarp.MemoryRegion
	slot func(int) iwarp.SGE // returns the buffer of a receive
	m    *measure
	wrs  []iwarp.SendWR
	next int
	sent int // Sends since the last answer
	done []iwarp.Completion
}

func (iwarpEndpoint) dial(m measure, hello json.RawMessage) (result, error) {
	var h iwarpHello
	if err := json.Unmarshal(hello, &h); err != nil {
		return result{}, err
	}
	cfg, dev := iwarpConfig(m)
	mem, err := m.buffer()
	if err != nil {
		return result{}, err
	}
	mr, err := cfg.PD.Register(mem, 0)
	if err != nil {
		return result{}, err
	}
	slot := iwarpAnswers(mr, m)
	cfg.Prepare = func(q *iwarp.QueuePair) error { return iwarpPostRecvs(q, m, slot) }
	ctx := context.Background()
	if m.Op == opSetup {
		return setups(m.Time, func() error {
			q, err := iwarp.Dial(ctx, h.Address, cfg)
			if err == nil {
				q.Abort()
			}
			return err
		})
	}
	if m.Conns > 1 && m.Op != opIdle {
		if cfg.SendCQ, err = dev.NewCQ(m.Conns * cfg.SendDepth); err != nil {
			return result{}, err
		}
	}
	before := now()
	cs := make([]*iwarpConn, m.Conns)
	lanes := make([]lane, m.Conns)
	byQP := make(map[*iwarp.QueuePair]int, m.Conns)
	for i := range cs {
		q, err := iwarp.Dial(ctx, h.Address, cfg)
		if err != nil {
			return result{}, fmt.Errorf("connection %d: %w", i, err)
		}
		defer q.Abort()
		c := &iwarpConn{q: q, mr: mr, slot: slot, m: &m}
		cs[i], lanes[i], byQP[q] = c, c, i
		if m.Op != opIdle {
			c.prepare(h)
		}
	}
	switch m.Op {
	case opIdle:
		return m.idle(before), nil
	case opPing:
		return cs[0].pings()
	}
	return measured(m, lanes, func() (int, error) {
		e, err := cfg.SendCQ.Wait(ctx)
		if err == nil {
			err = e.Err()
		}
		return byQP[e.QP], err
	})
}

func (c *iwarpConn) prepare(h iwarpHello) {
	op := map[string]iwarp.Op{opWrite: iwarp.OpWrite, opRead: iwarp.OpRead}[c.m.Op] // OpSend for other operations
	c.wrs = make([]iwarp.SendWR, c.m.Depth)
	c.done = make([]iwarp.Completion, min(c.m.Depth, 256))
	for i := range c.wrs {
		off := i % c.m.slots() * c.m.Size
		c.wrs[i] = iwarp.SendWR{Op: op, SG: []iwarp.SGE{c.mr.SGE(off, c.m.Size)}}
		if op != iwarp.OpSend {
			c.wrs[i].Remote = iwarp.RemoteAddr{STag: h.STag, TO: h.TO + uint64(off)}
		}
	}
}

// pings measures round trips. Two things are done while the message is in flight, because the peer
// does not wait for them: reposting the receive of the last answer, and reaping the completion of
// the Send.
func (c *iwarpConn) pings() (result, error) {
	used := -1 // ID of the receive of the last answer, or -1
	return roundTrips(c.m.Time, func() error {
		if err := c.q.Post(c.wrs[0]); err != nil {
			return err
		}
		if used >= 0 {
			if err := iwarpPostRecv(c.q, c.slot, used); err != nil {
				return err
			}
		}
		if _, err := iwarpTake(c.q.SendCQ(), c.m.Wait); err != nil {
			return err
		}
		a, err := iwarpTake(c.q.RecvCQ(), c.m.Wait)
		used = int(a.ID)
		if err == nil {
			err = a.Err()
		}
		return err
	})
}

// post posts the messages of a doorbell.
func (c *iwarpConn) post() error {
	if c.m.Op == opSend {
		for c.sent+c.m.Bell > iwarpRecvs-2 {
			if err := c.answer(); err != nil {
				return err
			}
			c.sent -= iwarpRecvs / 2
		}
		c.sent += c.m.Bell
	}
	n, err := c.q.PostBatch(c.wrs[c.next : c.next+c.m.Bell])
	c.next = (c.next + n) % len(c.wrs)
	return err
}

// answer waits for an answer of the peer and reposts the receive.
func (c *iwarpConn) answer() error {
	a, err := c.q.RecvCQ().Wait(context.Background())
	if err == nil {
		err = a.Err()
	}
	if err == nil {
		err = iwarpPostRecv(c.q, c.slot, int(a.ID))
	}
	return err
}

// finish waits for all outstanding answers, sends the last message and waits for the last answer.
func (c *iwarpConn) finish() error {
	for ; c.m.Op == opSend && c.sent >= iwarpRecvs/2; c.sent -= iwarpRecvs / 2 {
		if err := c.answer(); err != nil {
			return err
		}
	}
	if err := c.q.Post(iwarp.SendWR{SG: []iwarp.SGE{c.mr.SGE(0, lastLen)}}); err != nil {
		return err
	}
	c.sent++ // the receiver counts the last message too
	if c.m.Op == opSend && c.sent >= iwarpRecvs/2 {
		c.sent -= iwarpRecvs / 2
	}
	return c.answer()
}

// reap takes the ready completions and returns their number. If wait is set, reap waits for a
// completion.
func (c *iwarpConn) reap(wait bool) (int, error) {
	n := c.q.SendCQ().PollN(c.done)
	if n == 0 && wait {
		e, err := c.q.SendCQ().Wait(context.Background())
		if err != nil {
			return 0, err
		}
		c.done[0], n = e, 1
	}
	for i := range n {
		if err := c.done[i].Err(); err != nil {
			return i, err
		}
	}
	return n, nil
}

func (c *iwarpConn) settle() error {
	e, err := c.q.SendCQ().Wait(context.Background())
	if err != nil {
		return err
	}
	return e.Err()
}

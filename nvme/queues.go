package nvme

import (
	"net"
	"sync/atomic"
)

// Counters count what hosts have done. They only grow.
type Counters struct {
	Commands   uint64 // that have come
	Failed     uint64 // of them, answered by an error
	ReadBytes  uint64 // of namespaces
	WriteBytes uint64
}

// A QueueInfo describes a queue of a host.
type QueueInfo struct {
	Host       string // its NQN, "" before it has connected
	Remote     net.Addr
	Controller uint16
	Queue      uint16 // 0 for the admin queue
	Depth      int
	Counters
}

// Queues returns the queues that there are.
func (t *Target) Queues() []QueueInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []QueueInfo
	for core, q := range t.queues {
		i := QueueInfo{Remote: q.qp.RemoteAddr(), Queue: core.ID, Depth: core.Depth}
		q.addTo(&i.Counters)
		i.Controller, i.Host = core.Describe()
		all = append(all, i)
	}
	return all
}

// Totals returns the counters of all queues that there were, and are.
func (t *Target) Totals() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.ended
	for _, q := range t.queues {
		q.addTo(&c)
	}
	return c
}

// counters of a queue.
type counters struct {
	commands, failed, readBytes, writeBytes atomic.Uint64
}

func (q *counters) addTo(c *Counters) {
	c.Commands += q.commands.Load()
	c.Failed += q.failed.Load()
	c.ReadBytes += q.readBytes.Load()
	c.WriteBytes += q.writeBytes.Load()
}

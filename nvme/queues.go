package nvme

import (
	"net"
	"sync/atomic"
)

// Counters counts the commands of hosts. The counters never decrease.
type Counters struct {
	Commands   uint64 // commands received
	Failed     uint64 // commands answered with an error status
	ReadBytes  uint64 // bytes that hosts read from namespaces
	WriteBytes uint64
}

// A QueueInfo describes a queue of a host.
type QueueInfo struct {
	Host       string // NQN of the host, "" before Connect
	Remote     net.Addr
	Controller uint16
	Queue      uint16 // 0 for the admin queue
	Depth      int
	Counters
}

// Queues returns the open queues of all hosts, in no particular order.
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

// Totals returns the sums of the counters of all open and closed queues.
func (t *Target) Totals() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.ended
	for _, q := range t.queues {
		q.addTo(&c)
	}
	return c
}

// counters holds the counters of a queue.
type counters struct {
	commands, failed, readBytes, writeBytes atomic.Uint64
}

func (q *counters) addTo(c *Counters) {
	c.Commands += q.commands.Load()
	c.Failed += q.failed.Load()
	c.ReadBytes += q.readBytes.Load()
	c.WriteBytes += q.writeBytes.Load()
}

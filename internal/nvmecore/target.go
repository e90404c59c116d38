// Package nvmecore is what an NVMe target knows and decides, without input and output:
// its namespaces, its controllers, their queues, and which answer a command gets. It takes
// commands and the time, and returns the work to do. Package nvme moves the data.
//
// Nothing here is safe for concurrent use.
package nvmecore

import (
	"slices"
	"time"

	"viaduct/internal/wire/nvmewire"
)

// DiscoveryNQN names the discovery subsystem of every target.
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// Limits, our choice.
const (
	MaxDepth      = 128  // commands of an I/O queue
	AdminDepth    = 32   // commands of an admin queue
	MaxNamespaces = 1024 // greatest namespace id
	MaxEvents     = 4    // event requests that a controller holds
	InCapsule     = 8192 // bytes of data in a capsule of an I/O queue
	mdts          = 8    // 2^8 pages of 4 KiB: a host may send passthrough commands of 513 KiB
	maxTransfer   = 4096 << mdts
	version       = 0x10400
	firmware      = "1"

	connectTimeout = 10 * time.Second // [NVME-CM-5]
)

// ioCommands are the commands of I/O queues.
var ioCommands = []uint8{nvmewire.OpFlush, nvmewire.OpWrite, nvmewire.OpRead, nvmewire.OpCompare, nvmewire.OpWriteZeroes, nvmewire.OpDSM}

// A Config says what the target is called.
type Config struct {
	NQN, Serial, Model string
	MaxQueues          int // I/O queues of a controller
}

// A Namespace is a disk.
type Namespace struct {
	ID        uint32
	Blocks    uint64
	Shift     uint8 // log2 of the block's bytes
	ReadOnly  bool
	ReadsZero bool // discarded blocks read as zeroes
	UUID      [16]byte
}

// An Output is something to do for a queue that no command of it asked for.
type Output struct {
	Queue *Queue
	End   bool         // end the queue
	SQE   nvmewire.SQE // otherwise: the command to answer
	CQE   nvmewire.CQE
}

// A Target is one subsystem, with the discovery subsystem beside it.
type Target struct {
	cfg         Config
	spaces      map[uint32]*Namespace
	controllers map[uint16]*controller
	queues      map[*Queue]bool
	lastID      uint16 // of a controller
	lastSpace   uint32 // id of the namespace that was added last
	outputs     []Output
}

// New returns a target without namespaces.
func New(cfg Config) *Target {
	return &Target{cfg: cfg, spaces: make(map[uint32]*Namespace), controllers: make(map[uint16]*controller), queues: make(map[*Queue]bool)}
}

// Outputs returns the work that is due, and forgets it. Call it after every other call, before the
// next one.
func (t *Target) Outputs() []Output {
	o := t.outputs
	t.outputs = nil
	return o
}

// Put adds a namespace, or replaces the one of that id.
func (t *Target) Put(n Namespace) {
	if t.spaces[n.ID] == nil {
		t.lastSpace = n.ID
	}
	t.spaces[n.ID] = &n
	t.changed(n.ID)
}

// Remove removes a namespace and reports whether it was there.
func (t *Target) Remove(id uint32) bool {
	if t.spaces[id] == nil {
		return false
	}
	delete(t.spaces, id)
	t.changed(id)
	return true
}

// Space returns a namespace, nil if there is none of that id.
func (t *Target) Space(id uint32) *Namespace { return t.spaces[id] }

// FreeID returns an id that no namespace has, 0 if there is none. It returns the id of a removed
// namespace last: a host takes a disk with that id for the disk that it has used.
func (t *Target) FreeID() uint32 {
	for i := range uint32(MaxNamespaces) {
		if id := (t.lastSpace+i)%MaxNamespaces + 1; t.spaces[id] == nil {
			return id
		}
	}
	return 0
}

// ids returns the ids of namespaces above a number, in order. [NVME-ID-3]
func (t *Target) ids(above uint32) []uint32 {
	var ids []uint32
	for id := range t.spaces {
		if id > above {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (t *Target) changed(id uint32) {
	for _, c := range t.controllers {
		c.namespaceChanged(id)
	}
}

// Tick ends the controllers that were silent for too long, and the queues that never
// connected. It is to be called a few times a second.
func (t *Target) Tick(now time.Time) {
	for q := range t.queues {
		switch {
		case q.ctrl == nil && now.Sub(q.opened) > connectTimeout: // [NVME-CM-5]
			t.end(q)
		case q.ctrl != nil && q.active:
			q.active, q.ctrl.heard = false, now
		}
	}
	for _, c := range t.controllers { // [NVME-KA-1]
		if c.keepAlive > 0 && now.Sub(c.heard) > c.keepAlive+c.keepAlive/2 {
			c.end()
		}
	}
}

// end asks for the end of a queue, once.
func (t *Target) end(q *Queue) {
	if !q.ending {
		q.ending = true
		t.outputs = append(t.outputs, Output{Queue: q, End: true})
	}
}

// Closed ends a queue whose stream has ended. Without its admin queue a controller
// ends with all its queues. [NVME-CM-4]
func (t *Target) Closed(q *Queue) {
	q.ending = true
	delete(t.queues, q)
	c := q.ctrl
	if c == nil || c.queues[q.ID] != q {
		return
	}
	delete(c.queues, q.ID)
	if q.ID == 0 {
		c.end()
		delete(t.controllers, c.id)
	}
}

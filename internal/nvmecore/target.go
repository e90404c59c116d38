// Package nvmecore implements the decisions of an NVMe target without input or output. It manages
// namespaces, controllers and their queues, and determines the answer to each command. Its calls
// take commands and the time, and return the work to do. Package nvme transfers the data.
//
// No type is safe for concurrent use.
package nvmecore

import (
	"slices"
	"time"

	"viaduct/internal/wire/nvmewire"
)

// DiscoveryNQN is the name of the discovery subsystem of every target.
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// Limits chosen by package nvmecore.
const (
	MaxDepth      = 128  // commands of an I/O queue
	AdminDepth    = 32   // commands of an admin queue
	MaxNamespaces = 1024 // greatest namespace id
	MaxEvents     = 4    // event requests that a controller holds
	InCapsule     = 8192 // bytes of data in a capsule of an I/O queue
	mdts          = 8    // 2^8 pages of 4 KiB, because a host may send passthrough commands of 513 KiB
	maxTransfer   = 4096 << mdts
	version       = 0x10400
	firmware      = "1"

	connectTimeout = 10 * time.Second // [NVME-CM-5]
)

// ioCommands lists the opcodes supported by I/O queues.
var ioCommands = []uint8{nvmewire.OpFlush, nvmewire.OpWrite, nvmewire.OpRead, nvmewire.OpCompare,
	nvmewire.OpWriteZeroes, nvmewire.OpDSM}

// A Config holds the names and limits of a target.
type Config struct {
	NQN, Serial, Model string
	MaxQueues          int // maximum number of I/O queues of a controller
}

// A Namespace is a disk.
type Namespace struct {
	ID        uint32
	Blocks    uint64
	Shift     uint8 // log2 of the block size in bytes
	ReadOnly  bool
	ReadsZero bool // discarded blocks read as zeroes
	UUID      [16]byte
}

// An Output is work for a queue that does not result from a new command.
type Output struct {
	Queue *Queue
	End   bool         // the queue must end
	SQE   nvmewire.SQE // unless End is set: the command to answer
	CQE   nvmewire.CQE
}

// A Target is a subsystem, and the discovery subsystem.
type Target struct {
	cfg         Config
	spaces      map[uint32]*Namespace
	controllers map[uint16]*controller
	queues      map[*Queue]bool
	lastID      uint16 // last assigned controller number
	lastSpace   uint32 // id of the namespace that was added last
	outputs     []Output
}

// New returns a target without namespaces.
func New(cfg Config) *Target {
	return &Target{cfg: cfg, spaces: make(map[uint32]*Namespace), controllers: make(map[uint16]*controller),
		queues: make(map[*Queue]bool)}
}

// Outputs returns and removes the pending work. Call it after every other call.
func (t *Target) Outputs() []Output {
	o := t.outputs
	t.outputs = nil
	return o
}

// Put adds a namespace, or replaces the namespace with the same ID.
func (t *Target) Put(n Namespace) {
	if t.spaces[n.ID] == nil {
		t.lastSpace = n.ID
	}
	t.spaces[n.ID] = &n
	t.changed(n.ID)
}

// Remove removes a namespace. It returns false if there is none.
func (t *Target) Remove(id uint32) bool {
	if t.spaces[id] == nil {
		return false
	}
	delete(t.spaces, id)
	t.changed(id)
	return true
}

// Space returns the namespace with the given ID, or nil.
func (t *Target) Space(id uint32) *Namespace { return t.spaces[id] }

// FreeID returns an unused ID, or 0 if all are in use. The IDs of removed namespaces come last,
// because a host would take a new disk with such an ID for the old one.
func (t *Target) FreeID() uint32 {
	for i := range uint32(MaxNamespaces) {
		if id := (t.lastSpace+i)%MaxNamespaces + 1; t.spaces[id] == nil {
			return id
		}
	}
	return 0
}

// ids returns the sorted IDs of all namespaces above a given ID. [NVME-ID-3]
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

// Tick ends silent controllers, and queues that never connected. Call it a few times a second.
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

// end requests the end of a queue, once.
func (t *Target) end(q *Queue) {
	if !q.ending {
		q.ending = true
		t.outputs = append(t.outputs, Output{Queue: q, End: true})
	}
}

// Closed removes a queue whose stream has ended. The end of an admin queue also ends the
// controller, with all other queues of the controller. [NVME-CM-4]
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

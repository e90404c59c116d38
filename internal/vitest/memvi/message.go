package memvi

import (
	"sync"

	"viaduct/vi"
)

type kind uint8

const (
	sendMsg     kind = iota // a Send
	writeMsg                // an RDMA Write
	readMsg                 // the request of an RDMA Read
	readDataMsg             // its answer
	ackMsg                  // reliable reception: seq ended with status
	creditMsg               // flow control: length receives were posted so far
	byeMsg                  // the end of the connection
)

// A message is the unit that the network carries.
type message struct {
	kind    kind
	seq     uint64 // of the descriptor, at the side that posted it
	payload []byte

	immediate bool
	data      uint32
	remote    vi.RemoteSegment
	length    uint64    // of a Read; for a credit the number of receives
	status    vi.Status // of an acknowledgement, or a Read that was refused

	corrupt bool // injected: the payload was damaged on the way
	partial bool // injected: the rest of the payload is missing
	orderly bool // of a bye: the peer's consumer disconnected
}

// Limits of a wire: a sender stops at that many unhandled messages or bytes.
const (
	wireMessages = 64
	wireBytes    = 4 << 20
)

// A wire carries messages in one direction.
type wire struct {
	mu    sync.Mutex
	queue []message // guarded by mu
	bytes int       // guarded by mu
	cut   bool      // guarded by mu; no more messages pass
}

func (w *wire) push(m message) {
	w.mu.Lock()
	if !w.cut {
		w.queue = append(w.queue, m)
		w.bytes += len(m.payload)
	}
	w.mu.Unlock()
}

func (w *wire) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut || len(w.queue) >= wireMessages || w.bytes >= wireBytes
}

// pop removes the first message. room reports whether that allows the sender to continue.
func (w *wire) pop() (m message, room, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return m, false, false
	}
	was := len(w.queue) >= wireMessages || w.bytes >= wireBytes
	m = w.queue[0]
	w.queue[0] = message{}
	w.queue = w.queue[1:]
	w.bytes -= len(m.payload)
	return m, was, true
}

// lose ends the wire: its messages are lost, and the receiver finds it broken.
func (w *wire) lose() {
	w.mu.Lock()
	w.queue, w.bytes, w.cut = []message{{kind: byeMsg}}, 0, true
	w.mu.Unlock()
}

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

// A message is what crosses the network.
type message struct {
	kind    kind
	seq     uint64 // of the descriptor, at the side that posted it
	payload []byte

	immediate bool
	data      uint32
	remote    vi.RemoteSegment
	length    uint64    // of a Read; receives of a credit
	status    vi.Status // of an acknowledgement, or a Read that was refused

	corrupt bool // injected: the payload was damaged on the way
	partial bool // injected: the rest of the payload never came
	orderly bool // of a bye: the peer's consumer disconnected
}

// window of a wire: a sender stops at so many messages or bytes that were not
// taken yet.
const (
	wireMessages = 64
	wireBytes    = 4 << 20
)

// A wire carries messages in one direction.
type wire struct {
	mu    sync.Mutex
	queue []message // guarded by mu
	bytes int       // guarded by mu
	cut   bool      // guarded by mu; nothing passes any more
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

// pop takes the first message, and tells whether that made room for a sender.
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

// lose ends the wire: what is on it vanishes, and the receiver finds it dead.
func (w *wire) lose() {
	w.mu.Lock()
	w.queue, w.bytes, w.cut = []message{{kind: byeMsg}}, 0, true
	w.mu.Unlock()
}

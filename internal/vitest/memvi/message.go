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
	readDataMsg             // the data for a readMsg
	ackMsg                  // reliable reception: message seq ended with status
	creditMsg               // flow control: length is the number of receives posted so far
	byeMsg                  // the end of the connection
)

// A message is the unit carried by the network.
type message struct {
	kind    kind
	seq     uint64 // sequence number of the descriptor, at the side that posted it
	payload []byte

	immediate bool
	data      uint32
	remote    vi.RemoteSegment
	length    uint64    // length of a Read; for a credit the number of receives
	status    vi.Status // status in an acknowledgement, or of a refused Read

	corrupt bool // injected fault: the payload was damaged on the way
	partial bool // injected fault: the end of the payload is missing
	orderly bool // in a bye: the peer's consumer has disconnected
}

// A sender stops when a wire has wireMessages unhandled messages, or wireBytes unhandled bytes.
const (
	wireMessages = 64
	wireBytes    = 4 << 20
)

// A wire carries messages in a single direction.
type wire struct {
	mu    sync.Mutex
	queue []message // guarded by mu
	bytes int       // guarded by mu
	cut   bool      // guarded by mu; no message passes any more
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

// pop removes and returns the first message; ok is false if there is none. room is true if the wire
// was full before, so that a waiting sender may continue.
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

// lose ends the wire. Its messages are lost, and the receiver finds the wire broken.
func (w *wire) lose() {
	w.mu.Lock()
	w.queue, w.bytes, w.cut = []message{{kind: byeMsg}}, 0, true
	w.mu.Unlock()
}

// Package bench compares the transports. It measures between two processes. The transports take
// turns in rounds, and plain TCP is part of every run.
package bench

import (
	"context"
	"errors"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/samehost"
)

// Operations, named as on the command line.
const (
	OpWrite  = "write"  // RDMA Write, one-sided
	OpRead   = "read"   // RDMA Read, one-sided
	OpSend   = "send"   // messages into posted receives
	OpStream = "stream" // bytes of a stream
	OpPoll   = "poll"   // ping-pong, both sides polling
	OpWait   = "wait"   // ping-pong, both sides waiting
	OpRate   = "rate"   // small RDMA Writes (small writes of a stream), several per doorbell
	OpSetup  = "setup"  // connections made: until both ends can send
	OpChurn  = "churn"  // connections made and ended
	OpIdle   = "idle"   // memory of an idle connection
)

// Ops lists all operations, in the order of the report.
var Ops = []string{OpWrite, OpRead, OpSend, OpStream, OpPoll, OpWait, OpRate, OpSetup, OpChurn, OpIdle}

// A spec describes one measurement.
type spec struct {
	Transport  string `json:"transport"` // a scheme, followed by ? and parameters if there are any
	Op         string `json:"op"`
	Size       int    `json:"size"`
	Doorbell   int    `json:"doorbell"` // messages per doorbell
	Conns      int    `json:"conns"`
	Congestion string `json:"congestion,omitempty"`
	Host       string `json:"host"` // host where the server listens
}

func (s spec) scheme() string {
	for i, c := range s.Transport {
		if c == '?' {
			return s.Transport[:i]
		}
	}
	return s.Transport
}

func (s spec) query() string { return s.Transport[len(s.scheme()):] }

func (s spec) stream() bool { return s.scheme() == "tcp" || s.scheme() == "sdp" }

// applies reports whether a transport supports the operation. For a stream, write, read and send
// are the same as OpStream and do not apply.
func (s spec) applies() bool {
	switch s.Op {
	case OpStream:
		return s.stream()
	case OpRead, OpWrite, OpSend:
		return !s.stream()
	case OpPoll:
		return s.scheme() != "sdp"
	}
	return true
}

// window is how many operations are outstanding: enough for full bandwidth, with no more memory
// than fits into a cache.
func (s spec) window() int {
	switch s.Op {
	case OpPoll, OpWait, OpSetup, OpChurn, OpIdle:
		return 1
	case OpRate:
		return max(256, 4*s.Doorbell)
	}
	return max(4, min(128, footprint/max(1, s.Size)))
}

// bare reports whether the connections themselves are measured, so that the connections have hardly
// any memory.
func (s spec) bare() bool { return s.Op == OpIdle || s.Op == OpSetup || s.Op == OpChurn }

// footprint is the size of the memory each side of a connection uses.
const footprint = 1 << 20

// endSize is the length of the message that ends a measurement. Measured
// messages are longer.
const endSize = 1

// A target is memory of the server a client may use.
type target struct {
	Address uint64 `json:"address"`
	Handle  uint32 `json:"handle"`
}

// A lane is one connection of a measurement, with as little code as possible between the
// measurement and the transport. Only one goroutine may use a lane. If poll is set, the call polls
// instead of sleeping.
type lane interface {
	// post posts n operations of the spec with one doorbell.
	post(n int) error
	// reap waits for a completion or more, and returns the number of completions.
	reap(ctx context.Context, poll bool) (int, error)
	// send sends a message of n bytes and waits for the completion.
	send(ctx context.Context, n int, poll bool) error
	// recv receives a message and returns the length.
	recv(ctx context.Context, poll bool) (int, error)
	// close ends the connection. With OpSetup, close first waits until the other side has ended the
	// connection.
	close()
}

// A host accepts lanes, on the server's side.
type host interface {
	url() string
	accept(ctx context.Context) (lane, target, error)
	close()
}

var errShort = errors.New("bench: the connection ended during the measurement")

// open listens for the lanes of a spec.
func open(s spec) (host, error) {
	switch s.scheme() {
	case "vitcp", "fcvi":
		return openVI(s)
	case "iwarp":
		return openIWARP(s)
	}
	return openStream(s)
}

// A dialer makes lanes to one host.
type dialer interface {
	dial(ctx context.Context) (dialed, error)
	close()
}

func newDialer(s spec, at string) (dialer, error) {
	u, err := addr.Parse(at)
	if err != nil {
		return nil, err
	}
	switch s.scheme() {
	case "vitcp", "fcvi":
		return newVIDialer(s, u)
	case "iwarp":
		return newIWARPDialer(s, u)
	}
	return newStreamDialer(s, u)
}

// A dialed lane can be given memory for use by the client.
type dialed interface {
	lane
	use(t target)
	path() samehost.Path
}

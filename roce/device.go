package roce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"viaduct/internal/queue"
	"viaduct/internal/regmem"
	"viaduct/internal/roceudp"
)

// A Device is an address of this host, with port 4791, and the memory that is registered there. Safe for
// concurrent use.
type Device struct {
	port    *roceudp.Port
	regions *regmem.Registry
}

// Open opens the device of an address of this host.
func Open(addr netip.Addr) (*Device, error) {
	port, err := roceudp.Open(addr)
	if err != nil {
		return nil, fmt.Errorf("roce: %w", err)
	}
	return &Device{port, regmem.New(regmem.Limits{})}, nil
}

// Addr returns the address of the device.
func (d *Device) Addr() netip.Addr { return d.port.Addr() }

// NewPD returns a new, empty domain.
func (d *Device) NewPD() *ProtectionDomain { return &ProtectionDomain{d, regmem.NewDomain()} }

// Close closes all queue pairs of the device. Closing again returns an error that matches ErrClosed.
func (d *Device) Close() error {
	if err := d.port.Close(); errors.Is(err, net.ErrClosed) {
		return ErrClosed
	} else {
		return err
	}
}

// Stats returns how many packets were dropped because no queue pair took them.
func (d *Device) Stats() DeviceStats {
	c := d.port.Counters()
	return DeviceStats{Malformed: c.Malformed, WrongCRC: c.WrongCRC, NoQueuePair: c.NoPair, Stranger: c.Stranger, Unsent: c.Unsent}
}

// DeviceStats count packets of a Device that were dropped. They only grow.
type DeviceStats struct {
	Malformed   uint64 // no packet of RoCEv2
	WrongCRC    uint64
	NoQueuePair uint64 // no such queue pair, or one that does not receive
	Stranger    uint64 // for a connected queue pair, not from its peer
	Unsent      uint64 // packets that the system refused to send
}

// A Completion tells the end of a request.
type Completion struct {
	ID     uint64 // of the request
	QP     *QueuePair
	Op     Op     // OpRecv or OpRecvWrite for a receive
	Status Status // StatusOK, or why the request failed

	Len int // bytes received or read, with the 40 that a datagram begins with

	// For receives.
	Solicited   bool    // the peer asked for an event
	HasImm      bool    // Imm came with the message
	Imm         [4]byte // with HasImm
	Invalidated bool    // the message invalidated Key
	Key         uint32  // with Invalidated
	SourceQPN   uint32  // of a datagram

	Value uint64 // what the word was before an atomic operation
}

// Err returns a StatusError, nil if the request succeeded.
func (c *Completion) Err() error {
	if c.Status == StatusOK {
		return nil
	}
	return StatusError{c.Status}
}

// A CompletionQueue collects the completions of one or more queue pairs of a device. It grows as needed.
// Safe for concurrent use.
type CompletionQueue struct {
	q    *queue.Completions[Completion]
	port *roceudp.Port
}

// NewCQ returns a completion queue.
func (d *Device) NewCQ() *CompletionQueue {
	const first = 64
	return &CompletionQueue{queue.NewCompletions[Completion](first), d.port}
}

// Poll takes the first completion if there is one. If there is none it looks at the socket, without
// waiting: polling in a loop is the fastest way to learn of a completion.
func (c *CompletionQueue) Poll() (Completion, bool) {
	e, ok := c.q.Poll()
	if !ok && c.port.Poll() {
		e, ok = c.q.Poll()
	}
	return e, ok
}

// Wait takes the first completion and waits for one if there is none. It polls for a moment before it
// sleeps. The error is that of the context, which is how a wait is bounded.
func (c *CompletionQueue) Wait(ctx context.Context) (Completion, error) {
	return c.q.Wait(ctx, progress{c.port})
}

// A progress lets a consumer that waits receive. The goroutine of the port receives as well, so that there
// is nothing to be done when the consumer goes to sleep.
type progress struct{ port *roceudp.Port }

// Poll implements attend.Progress.
func (p progress) Poll() bool { return p.port.Poll() }

// Unpoll implements attend.Progress.
func (p progress) Unpoll() {}

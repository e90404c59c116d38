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

// A Device is UDP port 4791 of an address of this host, and the memory registered for use through
// the port. All methods are safe for concurrent use.
type Device struct {
	port    *roceudp.Port
	regions *regmem.Registry
}

// Open opens the device of addr, an address of this host. On Linux, devices of other processes of
// the same user, and of this process, may have the same address, unless the user is 65534, which
// stands for every unknown user. Open fails if any other socket has bound port 4791 of addr. The
// caller closes the device.
func Open(addr netip.Addr) (*Device, error) {
	port, err := roceudp.Open(addr)
	if err != nil {
		return nil, fmt.Errorf("roce: %w", err)
	}
	return &Device{port, regmem.New(regmem.Limits{})}, nil
}

// Addr returns the address of the device.
func (d *Device) Addr() netip.Addr { return d.port.Addr() }

// NewPD returns a new protection domain without regions.
func (d *Device) NewPD() *ProtectionDomain { return &ProtectionDomain{d, regmem.NewDomain()} }

// Close closes all queue pairs of the device and the UDP socket. A second call returns an error
// that matches ErrClosed.
func (d *Device) Close() error {
	if err := d.port.Close(); errors.Is(err, net.ErrClosed) {
		return ErrClosed
	} else {
		return err
	}
}

// Stats returns the counters of dropped packets.
func (d *Device) Stats() DeviceStats {
	c := d.port.Counters()
	return DeviceStats{Malformed: c.Malformed, WrongCRC: c.WrongCRC, NoQueuePair: c.NoPair,
		Stranger: c.Stranger, Unsent: c.Unsent}
}

// DeviceStats counts the packets a Device dropped. The counters never decrease.
type DeviceStats struct {
	Malformed   uint64 // not a RoCEv2 packet
	WrongCRC    uint64
	NoQueuePair uint64 // no such queue pair, or the queue pair does not receive
	Stranger    uint64 // the queue pair is connected, and the sender is not its peer
	Unsent      uint64 // packets that the operating system refused to send
}

// A Completion reports the end of a request or of a receive.
type Completion struct {
	ID     uint64 // ID of the request or receive
	QP     *QueuePair
	Op     Op     // the operation; OpRecv or OpRecvWrite for a receive
	Status Status // StatusOK, or why the request failed

	Len int // bytes received or read, including the 40 bytes in front of a datagram

	// For receives.
	Solicited   bool    // the peer requested an event
	HasImm      bool    // Imm is valid
	Imm         [4]byte // immediate data of the message
	Invalidated bool    // the message invalidated Key
	Key         uint32  // key that the message invalidated
	SourceQPN   uint32  // queue pair that sent the datagram

	Value uint64 // value of the word before an atomic operation
}

// Err returns nil if the request succeeded, and otherwise a StatusError.
func (c *Completion) Err() error {
	if c.Status == StatusOK {
		return nil
	}
	return StatusError{c.Status}
}

// A CompletionQueue collects the completions of one or more queue pairs of a device. It grows as
// needed. All methods are safe for concurrent use.
type CompletionQueue struct {
	q    *queue.Completions[Completion]
	port *roceudp.Port
}

// NewCQ returns an empty completion queue.
func (d *Device) NewCQ() *CompletionQueue {
	const first = 64
	return &CompletionQueue{queue.NewCompletions[Completion](first), d.port}
}

// Poll removes and returns the oldest completion. If the queue is empty, Poll receives packets from
// the socket without waiting and tries again; ok is false if the queue is still empty. Polling in a
// loop has the lowest latency.
func (c *CompletionQueue) Poll() (Completion, bool) {
	e, ok := c.q.Poll()
	if !ok && c.port.Poll() {
		e, ok = c.q.Poll()
	}
	return e, ok
}

// Wait removes and returns the oldest completion, and waits if the queue is empty. Wait polls for a
// short time before sleeping. The error is the error of ctx, which limits the wait.
func (c *CompletionQueue) Wait(ctx context.Context) (Completion, error) {
	return c.q.Wait(ctx, progress{c.port})
}

// A progress receives packets for a consumer that waits.
type progress struct{ port *roceudp.Port }

// Poll implements attend.Progress.
func (p progress) Poll() bool { return p.port.Poll() }

// Unpoll implements attend.Progress.
func (p progress) Unpoll() { p.port.Unpoll() }

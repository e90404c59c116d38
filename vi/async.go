package vi

import (
	"context"
	"fmt"
	"log/slog"

	"viaduct/internal/perturb"
)

// [VIA 5.2]

// An ErrorCode is the kind of an asynchronous error.
type ErrorCode uint32

const (
	ErrorPostDesc      ErrorCode = iota // the address or a handle in a posted descriptor is invalid
	ErrorConnLost                       // a connected VI has lost its peer; its state is Error
	ErrorRecvQEmpty                     // an incoming message found no receive descriptor
	ErrorVIOverrun                      // more descriptors were posted than the work queue can hold
	ErrorRDMAWProt                      // protection error on an incoming RDMA Write without immediate data
	ErrorRDMAWData                      // corrupted data in an incoming RDMA Write without immediate data
	ErrorRDMAWAbort                     // an incoming RDMA Write without immediate data was incomplete
	ErrorRDMARProt                      // protection error on an incoming RDMA Read
	ErrorCompProt                       // a completion could not be written
	ErrorRDMATransport                  // transport error of an RDMA operation, found late or at the target
	ErrorCatastrophic                   // the NIC or the VI is unusable

	// ErrorPostDesc [VIA-5.2-1].
)

// String returns the name of the code.
func (c ErrorCode) String() string {
	names := [...]string{
		"post descriptor error", "connection lost", "receive queue empty", "VI overrun",
		"RDMA Write protection error", "RDMA Write data error", "RDMA Write abort",
		"RDMA Read protection error", "completion protection error", "RDMA transport error",
		"catastrophic error",
	}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("ErrorCode(%#x)", uint32(c))
}

// [VIA 5.2]

// A Resource says which fields of an ErrorDescriptor are valid.
type Resource uint32

// These are the kinds of object an asynchronous error can concern.
const (
	ResourceNIC        Resource = iota
	ResourceVI                  // one connection
	ResourceCQ                  // a completion queue
	ResourceDescriptor          // one descriptor of a VI
)

// An ErrorDescriptor describes an asynchronous error. NIC is always set, VI
// for ResourceVI and ResourceDescriptor, CQ for ResourceCQ, Descriptor for
// ResourceDescriptor.
type ErrorDescriptor struct { // [VIA 5.2]
	NIC        *NIC
	VI         *VI
	CQ         *CompletionQueue
	Descriptor *Descriptor
	OpCode     Control // operation that failed, if known
	Resource   Resource
	Code       ErrorCode
}

// String describes the error.
func (d ErrorDescriptor) String() string { return "vi: " + d.Code.String() }

// async delivers asynchronous errors in order, never two at once. [VIA-5.4-2]
type async struct {
	nic *NIC
	d   dispatcher

	mu      perturb.Mutex
	handler func(ErrorDescriptor) // guarded by mu; nil is the default
}

func (a *async) init(n *NIC) { a.nic = n }

// ErrorCallback sets the handler of asynchronous errors. A nil handler restores the default, which
// writes one line to the NIC's logger. The handler runs in a separate goroutine, for one error at a
// time and in order, with no lock held. It may call any function, even close the NIC. If a thousand
// errors wait for a handler, errors of dropped messages are no longer reported.
func (n *NIC) ErrorCallback(handler func(ErrorDescriptor)) { // [VIA 5.1] [VIA 5.4] [VIA-5.4-1] [VIA-5.1-1] [VIA-8.3-19]
	n.async.mu.Lock()
	n.async.handler = handler
	n.async.mu.Unlock()
}

// maxPendingErrors is the maximum number of asynchronous errors waiting for a handler. It exists
// because at Unreliable Delivery a peer can cause an error with every message. Beyond the maximum,
// errors that leave the VI connected are dropped. An error ending a connection is always reported.
const maxPendingErrors = 1024

func (a *async) raise(d ErrorDescriptor) {
	d.NIC = a.nic
	if !a.reports() {
		return
	}
	if d.Code != ErrorConnLost && d.Code != ErrorCatastrophic && a.d.pending() >= maxPendingErrors {
		return
	}
	a.d.add(func() {
		a.mu.Lock()
		h := a.handler
		a.mu.Unlock()
		if h != nil {
			h(d)
			return
		}
		a.nic.cfg.Logger.Error("asynchronous error", slog.String("code", d.Code.String()),
			slog.Uint64("resource", uint64(d.Resource)))
	})
}

// reports returns false if errors go nowhere: there is no handler, and the logger is off.
func (a *async) reports() bool {
	a.mu.Lock()
	h := a.handler
	a.mu.Unlock()
	return h != nil || a.nic.cfg.Logger.Enabled(context.Background(), slog.LevelError)
}

// A dispatcher runs functions in sequence in a goroutine. The goroutine exists only while there are
// functions to run.
type dispatcher struct {
	mu      perturb.Mutex
	queue   []func()      // guarded by mu
	running chan struct{} // guarded by mu; closed when the goroutine ends, nil if there is no goroutine
	closed  bool          // guarded by mu
}

func (d *dispatcher) add(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.queue = append(d.queue, f)
	if d.running == nil {
		d.running = make(chan struct{})
		go d.run()
	}
}

// pending returns the number of unstarted functions.
func (d *dispatcher) pending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue)
}

// close drops the unstarted functions, and all functions added later. It does not wait for the
// running function, because the running function may be the caller.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue, d.closed = nil, true
}

// wait waits until every added function has run.
func (d *dispatcher) wait() {
	d.mu.Lock()
	running := d.running
	d.mu.Unlock()
	if running != nil {
		<-running
	}
}

func (d *dispatcher) run() {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.queue = nil
			close(d.running)
			d.running = nil
			d.mu.Unlock()
			return
		}
		f := d.queue[0]
		d.queue = d.queue[1:]
		d.mu.Unlock()
		f()
	}
}

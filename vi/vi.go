package vi

import (
	"fmt"
	"sync/atomic"

	"viaduct/internal/perturb"
	"viaduct/internal/regmem"
)

// [VIA 2.1]

// A State is the state of a VI. The values are VIPL's.
type State uint32

const (
	Idle           State = iota // no connection, and no connection attempt
	Connected                   // descriptors are processed
	ConnectPending              // a connection attempt is in progress
	Error                       // the connection broke; Disconnect returns to Idle

	// Idle [VIA-2.1-1].
)

// String returns the name of the state.
func (s State) String() string {
	switch s {
	case Idle:
		return "Idle"
	case Connected:
		return "Connected"
	case ConnectPending:
		return "Connect Pending"
	case Error:
		return "Error"
	}
	return fmt.Sprintf("State(%#x)", uint32(s))
}

// A VI is a Virtual Interface: one end of a connection, with a send queue and a receive queue.
//
// Lock order: mu before the locks of the queues. The provider's calls on the data path (the
// Endpoint's methods except Break) take only the locks of the queues, so that a Link can be stopped
// with mu held.
type VI struct { // [VIA 1]
	nic  *NIC
	send side
	recv side

	state atomic.Uint32            // a State; written with mu held
	conn  atomic.Pointer[Endpoint] // the connection; written with mu held

	carried atomic.Pointer[Traffic] // counters of the last ended connection; written with mu held

	closed atomic.Bool // equals gone, for readers that don't take mu

	mu       perturb.Mutex
	attrs    Attributes     // guarded by mu
	domain   *regmem.Domain // guarded by mu; of attrs.Ptag
	attempt  *attempt       // guarded by mu; connection attempt in progress, or nil
	peer     *attempt       // guarded by mu; peer-to-peer request whose result was not requested yet
	orderly  bool           // guarded by mu; in Error: the peer disconnected
	gone     bool           // guarded by mu; destroyed
	userData any            // guarded by mu
}

// CreateVI makes a VI in state Idle. Either work queue may be attached to a completion queue, and
// both may share a completion queue; nil attaches none.
//
// Errors: ErrInvalidParameter, ErrResource, ErrInvalidReliability, ErrInvalidMTU, ErrInvalidPtag,
// ErrInvalidRDMARead, ErrClosed.
func (n *NIC) CreateVI(a Attributes, sendCQ, recvCQ *CompletionQueue) (*VI, error) { // [VIA 6.4.3]
	if err := n.checkAttributes(&a); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	for _, c := range [...]*CompletionQueue{sendCQ, recvCQ} {
		if c != nil && (c.nic != n || c.gone) { // [VIA-1.1-2]
			return nil, fmt.Errorf("%w: completion queue", ErrInvalidParameter)
		}
	}
	if n.attrs.MaxVI > 0 && len(n.vis) >= n.attrs.MaxVI {
		return nil, fmt.Errorf("%w: %d VIs", ErrResource, len(n.vis)) // [VIA-8.2-1] [VIA-8.3-2]
	}
	d, err := n.usePtagLocked(a.Ptag)
	if err != nil {
		return nil, err
	}
	v := &VI{nic: n, attrs: a, domain: d} // [VIA-2.2-1] [VIA-1.1-3]
	v.send.init(v, sendCQ, false, n.attrs.MaxDescriptorsPerQueue)
	v.recv.init(v, recvCQ, true, n.attrs.MaxDescriptorsPerQueue)
	n.vis[v] = struct{}{}
	for _, c := range [...]*CompletionQueue{sendCQ, recvCQ} {
		if c != nil {
			c.attachLocked(v)
		}
	}
	return v, nil
}

// checkAttributes applies the rules of VI attributes and fills defaults in. [VIA-6.4-5]
func (n *NIC) checkAttributes(a *Attributes) error {
	if !a.Reliability.one() || a.Reliability&n.attrs.ReliabilityLevels == 0 { // [VIA-4.5-1]
		return fmt.Errorf("%w: %v", ErrInvalidReliability, a.Reliability)
	}
	if a.MaxTransferSize > n.attrs.MaxTransferSize {
		return fmt.Errorf("%w: %d, at most %d", ErrInvalidMTU, a.MaxTransferSize, n.attrs.MaxTransferSize)
	}
	if a.MaxTransferSize == 0 {
		a.MaxTransferSize = n.attrs.MaxTransferSize
	}
	if a.EnableRDMARead && a.Reliability&n.attrs.RDMAReadSupport == 0 { // [VIA-4.3-2]
		return fmt.Errorf("%w at %v", ErrInvalidRDMARead, a.Reliability)
	}
	if a.ReadWindow < 0 {
		return fmt.Errorf("%w: read window %d", ErrInvalidParameter, a.ReadWindow)
	}
	return nil
}

// Destroy ends an Idle VI with empty queues: not even a completed descriptor may be left. Destroy
// also removes the VI's Notify registrations and completion queue entries.
//
// Errors: ErrInvalidState, ErrResource, ErrClosed.
func (v *VI) Destroy() error { // [VIA 6.4.3] [VIA-2.2-14]
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.gone:
		return ErrClosed
	case v.State() != Idle: // [VIA-2.2-15]
		return fmt.Errorf("%w: %v", ErrInvalidState, v.State())
	case !v.send.empty() || !v.recv.empty(): // [VIA-2.2-17]
		return fmt.Errorf("%w: work queues are not empty", ErrResource)
	}
	v.removeLocked()
	return nil
}

func (v *VI) removeLocked() {
	v.gone = true
	v.closed.Store(true)
	// Flush descriptors posted since the connection ended, because nothing would wake a call
	// waiting for one. A later post checks closed.
	v.send.flush(StatusFlushed)
	v.recv.flush(StatusFlushed)
	v.send.cancelNotify() // [VIA-8.3-18]
	v.recv.cancelNotify()
	n := v.nic
	n.mu.Lock()
	delete(n.vis, v)
	n.dropPtagLocked(v.attrs.Ptag)
	for _, c := range [...]*CompletionQueue{v.send.cq, v.recv.cq} {
		if c != nil {
			c.detachLocked(v) // [VIA-4.7-3] [VIA-8.3-17]
		}
	}
	n.mu.Unlock()
}

// close disconnects and destroys the VI, whatever is in the queues.
func (v *VI) close() {
	v.disconnect()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.gone {
		v.removeLocked()
	}
}

// State returns the VI's current state.
func (v *VI) State() State { return State(v.state.Load()) }

// PeerDisconnected reports whether a VI is in state Error because its peer disconnected, and not
// because the connection broke. Flushed descriptors have the same status in both cases. It is safe
// for concurrent use.
func (v *VI) PeerDisconnected() bool { // [VIA-4.6-17]
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.State() == Error && v.orderly
}

// Query returns the VI's state, its attributes in force (while connected with the agreed
// MaxTransferSize), and whether its queues hold no descriptor at all.
func (v *VI) Query() (s State, a Attributes, sendEmpty, recvEmpty bool) { // [VIA 6.4.3] [VIA-6.4-6] [VIA-2.3-7]
	v.mu.Lock()
	s, a = v.State(), v.attrs
	if ep := v.conn.Load(); ep != nil {
		a.MaxTransferSize = ep.agreed.MaxTransferSize // [VIA-6.4-6]
	}
	v.mu.Unlock()
	return s, a, v.send.empty(), v.recv.empty()
}

// SetAttributes replaces the attributes of an Idle VI.
//
// Errors: as CreateVI, and ErrInvalidState.
func (v *VI) SetAttributes(a Attributes) error { // [VIA 6.4.3]
	n := v.nic
	if err := n.checkAttributes(&a); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gone {
		return ErrClosed
	}
	if v.State() != Idle { // [VIA-2.3-6]
		return fmt.Errorf("%w: %v", ErrInvalidState, v.State())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	d, err := n.usePtagLocked(a.Ptag)
	if err != nil {
		return err
	}
	n.dropPtagLocked(v.attrs.Ptag)
	v.attrs, v.domain = a, d // [VIA-1.5-3]
	return nil
}

// NIC returns the NIC the VI was made on.
func (v *VI) NIC() *NIC { return v.nic }

// SetUserData stores a value of the consumer with the VI.
func (v *VI) SetUserData(x any) { // [VIA 6.5]
	v.mu.Lock()
	v.userData = x
	v.mu.Unlock()
}

// UserData returns the value last stored by SetUserData, or nil.
func (v *VI) UserData() any {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.userData
}

// setStateLocked alone changes the state. [VIA-8.3-3]
func (v *VI) setStateLocked(s State) {
	old := v.State()
	v.state.Store(uint32(s)) // [VIA-2.2-16]
	v.nic.cfg.Logger.Debug("vi state", "from", old.String(), "to", s.String())
}

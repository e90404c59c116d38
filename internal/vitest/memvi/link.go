package memvi

import (
	"sync"

	"viaduct/vi"
)

// A link is a side of a connection. step makes all calls of the Endpoint, under mu. The worker
// goroutine and polling consumers call step. [VIA-4.4-2]
type link struct {
	net  *Network
	ep   *vi.Endpoint
	peer *link
	wire wire // messages from the peer

	reliability vi.Reliability
	flow        bool // descriptor flow control is on
	window      int  // number of RDMA Reads that this side may have outstanding

	wake chan struct{} // has one slot, which a pending wake-up fills
	quit chan struct{} // closed by Stop
	wg   sync.WaitGroup

	mu      sync.Mutex
	started bool                      // guarded by mu
	stopped bool                      // guarded by mu; ep must not be called afterwards
	dead    bool                      // guarded by mu; a goroutine calls Break
	open    map[uint64]*vi.Descriptor // guarded by mu; sends that wait for an answer
	reads   int                       // guarded by mu; number of Reads in open
	credits uint64                    // guarded by mu; number of receives that the peer has posted
	used    uint64                    // guarded by mu; number of sent messages that consume a receive
	granted uint64                    // guarded by mu; number of receives announced to the peer
	fault   fault                     // guarded by mu; fault to inject into the next message
}

type fault uint8

const (
	noFault fault = iota
	corruptFault
	partialFault
)

// join creates the links of both sides of a connection.
func (n *Network) join(a, b *vi.Endpoint) (la, lb *link) {
	la, lb = n.newLink(a, b), n.newLink(b, a)
	la.peer, lb.peer = lb, la
	return la, lb
}

func (n *Network) newLink(ep, remote *vi.Endpoint) *link {
	a := ep.Attributes()
	return &link{
		net: n, ep: ep, reliability: a.Reliability, flow: a.FlowControl,
		window: window(remote.Attributes()),
		wake:   make(chan struct{}, 1), quit: make(chan struct{}),
		open: make(map[uint64]*vi.Descriptor),
	}
}

func (l *link) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.started = true
		l.wg.Go(l.work)
	}
}

func (l *link) work() {
	for {
		l.mu.Lock()
		l.step()
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-l.quit:
			return
		}
	}
}

func (l *link) ring() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) SendPosted() { l.ring() }
func (l *link) RecvPosted() { l.ring() }

func (l *link) Poll() bool {
	if !l.mu.TryLock() {
		return false // the worker is running step
	}
	defer l.mu.Unlock()
	return l.step()
}

func (l *link) Unpoll() {} // the worker wakes for every message

func (l *link) Stop(reason vi.StopReason) {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	close(l.quit)
	l.tell(message{kind: byeMsg, orderly: reason == vi.StopDisconnect}) // [VIA-6.4-20]
}

func (l *link) Wait() { l.wg.Wait() }

// tell sends a message to the peer.
func (l *link) tell(m message) {
	l.peer.wire.push(m)
	l.peer.ring()
}

// breakLater calls Break in a new goroutine, because the caller holds mu.
func (l *link) breakLater(orderly bool) {
	l.dead = true
	l.wg.Go(func() { l.ep.Break(orderly) })
}

func (l *link) ready() bool { return l.started && !l.stopped && !l.dead }

// step handles arrived messages and sends posted descriptors. got is true if a message had arrived.
func (l *link) step() (got bool) {
	l.grant()
	for l.ready() {
		m, room, ok := l.wire.pop()
		if !ok {
			break
		}
		got = true
		if room {
			l.peer.ring()
		}
		l.handle(m)
	}
	for l.ready() && l.sendNext() {
	}
	return got
}

// grant announces new receives to the peer, if flow control is on.
func (l *link) grant() {
	if !l.flow || !l.ready() {
		return
	}
	if n := l.ep.RecvPosted(); n != l.granted {
		l.granted = n
		l.tell(message{kind: creditMsg, length: n})
	}
}

// sendNext sends the next descriptor. It returns false if there is no descriptor or the descriptor
// must wait.
func (l *link) sendNext() bool {
	d := l.ep.NextSend()
	if d == nil || l.peer.wire.full() {
		return false
	}
	op := d.Control.Op()
	consumes := op == vi.OpSendReceive || op == vi.OpRDMAWrite && d.Control&vi.Immediate != 0
	if l.flow && consumes && l.used >= l.credits {
		return false // the message waits for a receive [VIA-4.1-3]
	}
	if op == vi.OpRDMARead && l.reads >= l.window {
		return false // [VIA-4.3-4]
	}
	d, seq, bad := l.ep.StartSend()
	m := message{seq: seq, immediate: d.Control&vi.Immediate != 0, data: d.ImmediateData, remote: d.Remote}
	if bad == 0 && op != vi.OpRDMARead {
		m.payload, bad = l.gather(d)
	}
	if bad != 0 {
		l.finishSend(d, seq, bad)
		return true
	}
	switch op {
	case vi.OpSendReceive:
		m.kind = sendMsg
	case vi.OpRDMAWrite:
		m.kind = writeMsg
	case vi.OpRDMARead:
		m.kind, m.length = readMsg, uint64(d.Length)
		l.reads++
	}
	if consumes {
		l.used++
	}
	switch l.fault {
	case corruptFault:
		m.corrupt = true
	case partialFault:
		m.partial, m.payload = true, m.payload[:len(m.payload)/2]
	}
	l.fault = noFault
	answered := op == vi.OpRDMARead || l.reliability == vi.ReliableReception
	if answered {
		l.open[seq] = d
	}
	if l.reliability != vi.UnreliableDelivery || l.net.Lose == nil || !l.net.Lose() {
		l.tell(m)
	}
	if !answered { // [VIA-4.5-3]
		l.finishSend(d, seq, 0) // the payload was copied, so the buffers are free
	}
	return true
}

func (l *link) gather(d *vi.Descriptor) ([]byte, vi.Status) {
	b := make([]byte, 0, d.Length)
	var c vi.Cursor
	for {
		ref, bad := l.ep.Gather(vi.Memory{}, d, &c, int(d.Length)) // [VIA-4.6-2] [VIA-1.5-4]
		if bad != 0 || ref.Len() == 0 {
			return b, bad
		}
		n := len(b)
		b = b[:n+ref.Len()]
		err := ref.CopyTo(b[n:])
		ref.Release()
		if err != nil {
			return nil, vi.StatusProtectionError
		}
	}
}

func (l *link) scatter(d *vi.Descriptor, b []byte) vi.Status {
	var c vi.Cursor
	for len(b) > 0 {
		ref, bad := l.ep.Scatter(vi.Memory{}, d, &c, len(b)) // [VIA-4.6-7] [VIA-1.5-5] [VIA-1.5-6]
		if bad != 0 {
			return bad
		}
		err := ref.CopyFrom(b[:ref.Len()])
		b = b[ref.Len():]
		ref.Release()
		if err != nil {
			return vi.StatusProtectionError
		}
	}
	return 0
}

// finishSend completes a send. An error at a reliable level ends the connection.
func (l *link) finishSend(d *vi.Descriptor, seq uint64, bad vi.Status) {
	if l.ep.FinishSend(d, seq, bad) {
		l.breakLater(false)
	}
}

func (l *link) handle(m message) {
	switch m.kind {
	case sendMsg:
		l.handleSend(m)
	case writeMsg:
		l.handleWrite(m)
	case readMsg:
		l.handleRead(m)
	case readDataMsg, ackMsg:
		d := l.open[m.seq]
		delete(l.open, m.seq)
		if d.Control.Op() == vi.OpRDMARead {
			l.reads--
			if m.status == 0 {
				m.status = l.scatter(d, m.payload) // [VIA-4.6-15] [VIA-4.5-5]
			}
		}
		l.finishSend(d, m.seq, m.status)
	case creditMsg:
		l.credits = m.length
	case byeMsg:
		l.breakLater(m.orderly)
	}
}

// conclude reports the end of a message to the sender: at Unreliable Delivery never; at Reliable
// Delivery only an error, by ending the connection; at Reliable Reception always. [VIA 4.5]
// [VIA-4.5-4] [VIA-4.5-6]
func (l *link) conclude(m message, remote vi.Status) {
	if l.reliability == vi.ReliableReception {
		l.tell(message{kind: ackMsg, seq: m.seq, status: remote})
	}
	if remote != 0 && l.reliability != vi.UnreliableDelivery && !l.dead {
		l.breakLater(false)
	}
}

// finishRecv completes a receive and the consuming message.
func (l *link) finishRecv(m message, d *vi.Descriptor, seq uint64, r vi.Delivery, remote vi.Status) {
	if l.ep.FinishRecv(d, seq, r) {
		l.dead = true // no message may follow; conclude ends the connection
		defer l.breakLater(false)
	}
	l.conclude(m, remote)
}

func (l *link) handleSend(m message) {
	if m.corrupt && l.reliability == vi.UnreliableDelivery {
		return // a damaged message is never delivered as undamaged [VIA-4.5-2]
	}
	d, seq, bad, ok := l.ep.StartRecv()
	if !ok {
		l.ep.AsyncError(vi.ErrorRecvQEmpty, vi.OpSendReceive) // [VIA-4.6-4] [VIA-5.2-4]
		l.conclude(m, vi.StatusRemoteDescriptor)
		return
	}
	r := vi.Delivery{Immediate: m.immediate, Data: m.data}
	remote := vi.StatusRemoteDescriptor
	switch {
	case bad != 0:
		r.Status = bad
	case m.corrupt:
		r.Status, remote = vi.StatusTransportError, vi.StatusTransportError // [VIA-4.6-13]
	case uint64(len(m.payload)) > d.Capacity(): // [VIA-4.1-2] [VIA-4.6-5]
		r.Status = vi.StatusLengthError
	default:
		if r.Status = l.scatter(d, m.payload); r.Status == 0 {
			r.Length, remote = uint32(len(m.payload)), 0
		}
		if m.partial {
			r.Status, remote = r.Status|vi.StatusPartialError, vi.StatusTransportError // [VIA-4.6-12]
		}
	}
	l.finishRecv(m, d, seq, r, remote)
}

// place copies the payload of an RDMA Write to the target, and returns the error bits, or 0.
func (l *link) place(m message) vi.Status {
	if m.corrupt {
		return vi.StatusTransportError
	}
	if len(m.payload) == 0 {
		return 0
	}
	ref, ok := l.ep.Target(vi.Memory{}, m.remote.Handle, m.remote.Address, uint64(len(m.payload)), true) // [VIA-4.2-1] [VIA-1.5-7]
	if !ok {
		return vi.StatusRDMAProtection
	}
	defer ref.Release()
	if ref.CopyFrom(m.payload) != nil { // [VIA-4.2-5]
		return vi.StatusRDMAProtection
	}
	if m.partial {
		return vi.StatusPartialError
	}
	return 0
}

func (l *link) handleWrite(m message) {
	bad := l.place(m)
	remote := bad
	if bad == vi.StatusPartialError {
		remote = vi.StatusTransportError
	}
	if !m.immediate { // [VIA-4.2-2]
		switch bad {
		case vi.StatusRDMAProtection:
			l.ep.AsyncError(vi.ErrorRDMAWProt, vi.OpRDMAWrite) // [VIA-4.6-8] [VIA-5.2-6]
		case vi.StatusTransportError:
			l.ep.AsyncError(vi.ErrorRDMAWData, vi.OpRDMAWrite) // [VIA-4.6-10] [VIA-5.2-7]
		case vi.StatusPartialError:
			l.ep.AsyncError(vi.ErrorRDMAWAbort, vi.OpRDMAWrite) // [VIA-4.6-11]
		}
		l.conclude(m, remote)
		return
	}
	d, seq, badRecv, ok := l.ep.StartRecv()
	if !ok {
		l.ep.AsyncError(vi.ErrorRecvQEmpty, vi.OpRDMAWrite) // [VIA-4.6-18]
		l.conclude(m, vi.StatusRemoteDescriptor)
		return
	}
	r := vi.Delivery{RemoteWrite: true, Immediate: m.immediate, Data: m.data, Status: bad} // [VIA-4.2-3] [VIA-4.2-4] [VIA-4.6-9] [VIA-5.2-10]
	switch {
	case bad != 0:
	case badRecv != 0:
		r.Status, remote = badRecv, vi.StatusRemoteDescriptor
	default:
		r.Length = uint32(len(m.payload))
	}
	l.finishRecv(m, d, seq, r, remote)
}

func (l *link) handleRead(m message) { // [VIA-4.3-1] [VIA-4.4-3]
	answer := message{kind: readDataMsg, seq: m.seq}
	if m.length > 0 {
		ref, ok := l.ep.Target(vi.Memory{}, m.remote.Handle, m.remote.Address, m.length, false)
		if ok {
			answer.payload = make([]byte, m.length)
			if ref.CopyTo(answer.payload) != nil {
				ok = false
			}
			ref.Release()
		}
		if !ok {
			l.ep.AsyncError(vi.ErrorRDMARProt, vi.OpRDMARead) // [VIA-4.6-14] [VIA-5.2-8] [VIA-1.5-8]
			answer.payload, answer.status = nil, vi.StatusRDMAProtection
			l.tell(answer)
			l.breakLater(false)
			return
		}
	}
	l.tell(answer)
}

// Cut breaks the transport of v's connection. Messages in flight are lost. Both sides find the
// connection broken.
func Cut(v *vi.VI) {
	if l, ok := v.Link().(*link); ok {
		l.wire.lose()
		l.peer.wire.lose()
		l.ring()
		l.peer.ring()
	}
}

// CorruptNext damages the next message sent by v.
func CorruptNext(v *vi.VI) { setFault(v, corruptFault) }

// TruncateNext removes the end of the next message sent by v.
func TruncateNext(v *vi.VI) { setFault(v, partialFault) }

func setFault(v *vi.VI, f fault) {
	if l, ok := v.Link().(*link); ok {
		l.mu.Lock()
		l.fault = f
		l.mu.Unlock()
	}
}

// Stall makes v handle no messages until resume is called. Without a connection, Stall does
// nothing.
func Stall(v *vi.VI) (resume func()) {
	l, ok := v.Link().(*link)
	if !ok {
		return func() {}
	}
	l.mu.Lock()
	return func() {
		l.mu.Unlock()
		l.ring()
	}
}

// Backlog returns the number of arrived messages not yet handled by v.
func Backlog(v *vi.VI) int {
	l, ok := v.Link().(*link)
	if !ok {
		return 0
	}
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	return len(l.wire.queue)
}

package vi

// ReportRecvs reports n completions of v's receive queue. The engine makes such a report when a
// descriptor can be reaped, and sometimes only after the reap.
func ReportRecvs(v *VI, n int) { v.recv.completed(n) }

// MaxPendingErrors is the maximum number of asynchronous errors waiting for a slow handler.
const MaxPendingErrors = maxPendingErrors

// Raise raises an asynchronous error of v.
func Raise(v *VI, c ErrorCode) {
	v.nic.async.raise(ErrorDescriptor{VI: v, Resource: ResourceVI, Code: c})
}

// StopLink stops a link of n for reason r.
func (n *NIC) StopLink(l Link, r StopReason) { n.stop(l, r) }

// EndLink ends the network connection of a stopped link.
func (n *NIC) EndLink(l Link) { n.end(l) }

// Ending returns the number of stopped, not ended links.
func (n *NIC) Ending() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ending)
}

// PostSendAcross posts d like PostSend, and calls between after d was prepared and before d is in
// the queue.
func PostSendAcross(v *VI, d *Descriptor, between func()) {
	v.send.postAcross(d, between)
	v.sendDoorbell()
}

// PostRecvAcross is PostSendAcross for the receive queue.
func PostRecvAcross(v *VI, d *Descriptor, between func()) {
	v.recv.postAcross(d, between)
	v.recvDoorbell()
}

func (s *side) postAcross(d *Descriptor, between func()) {
	if err := s.prepare(d); err != nil {
		panic(err)
	}
	between()
	if _, err := s.q.Post(d); err != nil {
		panic(err)
	}
}

// WaitForErrors waits until the handler has handled all asynchronous errors.
func WaitForErrors(n *NIC) { n.async.d.wait() }

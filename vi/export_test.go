package vi

// ReportRecvs reports n completions of v's receive queue, as the engine does
// after a descriptor became reapable, and at times after it was reaped.
func ReportRecvs(v *VI, n int) { v.recv.completed(n) }

// MaxPendingErrors is how many asynchronous errors wait for a slow handler.
const MaxPendingErrors = maxPendingErrors

// Raise raises an asynchronous error of v.
func Raise(v *VI, c ErrorCode) {
	v.nic.async.raise(ErrorDescriptor{VI: v, Resource: ResourceVI, Code: c})
}

// StopLink ends a link of nic's.
func (n *NIC) StopLink(l Link, r StopReason) { n.stop(l, r) }

package vi

// ReportRecvs reports n completions of v's receive queue, as the engine does
// after a descriptor became reapable, and at times after it was reaped.
func ReportRecvs(v *VI, n int) { v.recv.completed(n) }

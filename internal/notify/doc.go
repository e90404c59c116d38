// Package notify answers system calls of another program, unmodified and
// unprivileged, by the kernel's seccomp user notification (Linux on amd64 and
// arm64). It knows nothing of what the calls mean.
//
//	func main() {
//		notify.MaybeStub() // first: the program is started by this same binary
//		...
//	}
//
//	child, err := notify.Start(&notify.Command{
//		Path:  "/usr/bin/curl",
//		Args:  []string{"curl", url},
//		Rules: []notify.Rule{{Nr: unix.SYS_CONNECT, Do: notify.Notify}},
//	})
//	for {
//		call, err := child.Listener.Recv() // io.EOF when no task is left
//		...
//		call.Continue() // or Return, Inject, from any goroutine, now or later
//	}
//
// # What a call is
//
// A Call stands for a thread that waits in the kernel. It may be answered at
// once or later, by any goroutine, exactly once. A signal to that thread takes
// the call back: answers then fail with ErrGone, and if the call is restarted it
// comes again as a new Call. So serving a call has to be idempotent. The
// flag WAIT_KILLABLE_RECV, which would defer signals, is not set on purpose: a
// call that is held would otherwise not be interrupted as the native one is.
//
// The numbers and pointers of a call are the program's, and another of its
// threads may change what they lead to at any moment. Read once, check Valid,
// and act on the copy. After Continue the kernel reads them again.
//
// # Death
//
// When the process that receives calls dies, every notified call would fail with
// ENOSYS, and those already received would wait for ever. A second process that
// holds the listener (Listener.File, FromFile) may call Guard, which lets all
// calls pass, and Wake for those that wait. A process that is killed in the
// middle of Inject leaves the call answered with 0; the kernel has no cure.
package notify

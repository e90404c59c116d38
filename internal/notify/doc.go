// Package notify answers system calls of another program, unmodified and unprivileged, by the
// kernel's seccomp user notification (Linux on amd64 and arm64). The package does not interpret the
// calls.
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
// A Call represents a thread waiting in the kernel. The call may be answered at once or later, by
// any goroutine, exactly once. A signal to the thread withdraws the call: answers then fail with
// ErrGone, and a restarted call arrives as a new Call. So serving a call must be idempotent. The
// flag WAIT_KILLABLE_RECV would defer signals. The flag is deliberately not set, because signals
// must interrupt a held call like a native one. Besides, a signal interrupts a call also before it
// is received, with the flag as well; a Restarter makes the kernel restart such a call.
//
// In rare cases the kernel reports an answer as delivered, and restarts the call nevertheless: when
// a signal wakes the thread while the answer is being delivered.
//
// The numbers and pointers of a call belong to the program. Another thread of the program may change
// the memory behind a pointer at any time, so read the memory once, check Valid, and use the copy.
// After Continue the kernel reads the memory again.
//
// # Death
//
// If the process that receives calls dies, every notified call fails with ENOSYS, and calls already
// received wait forever. A second process that holds the listener (Listener.File, FromFile) can
// prevent this: Guard lets all calls pass, and Wake interrupts calls that already wait. If the
// process is killed in the middle of Inject, the call is answered with 0; the kernel has no cure.
package notify

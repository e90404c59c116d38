package notify

import "golang.org/x/sys/unix"

// registers holds the registers of a stopped thread.
type registers struct{ unix.PtraceRegs }

func (r *registers) get(tid int) error { return unix.PtraceGetRegs(tid, &r.PtraceRegs) }
func (r *registers) set(tid int) error { return unix.PtraceSetRegs(tid, &r.PtraceRegs) }

const (
	errRestart       = 512 // ERESTARTSYS: restart unless a handler without SA_RESTART runs
	errRestartAlways = 513 // ERESTARTNOINTR
	callLen          = 2   // bytes of the instruction that makes a call
)

const canRestart = true

// restarting returns the interrupted call of a thread that is stopped at a signal. ok is false if
// the thread was in no call, or the call restarts or fails whatever the handler's flags.
func (r *registers) restarting() (n Native, ok bool) {
	return Native{int(r.Orig_rax), [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}},
		int64(r.Rax) == -errRestart && int64(r.Orig_rax) >= 0
}

// restartAlways makes the kernel restart the interrupted call even after a handler without
// SA_RESTART.
func (r *registers) restartAlways() { r.Rax = ^uint64(errRestartAlways - 1) }

// interrupted reports whether the thread was interrupted in c and would restart c on continuing.
func (r *registers) interrupted(c *Call) bool {
	return int64(r.Rax) == -errRestart && r.Orig_rax == uint64(c.Nr)
}

// prepare moves the thread back to the system call instruction and sets the registers for the call
// n.
func (r *registers) prepare(n Native) {
	r.Rip -= callLen
	r.Orig_rax = ^uint64(0) // prevents the kernel from restarting the interrupted call
	r.Rax = uint64(n.Nr)
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9 = n.Args[0], n.Args[1], n.Args[2], n.Args[3], n.Args[4], n.Args[5]
}

// answer moves the thread past the system call instruction, with result as the call's result.
func (r *registers) answer(result int64) {
	r.Orig_rax = ^uint64(0)
	r.Rax = uint64(result)
}

func (r *registers) result() int64 { return int64(r.Rax) }

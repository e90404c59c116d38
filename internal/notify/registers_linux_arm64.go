package notify

import "golang.org/x/sys/unix"

// registers holds the registers of a stopped thread.
type registers struct{ unix.PtraceRegsArm64 }

const prStatus = 1 // NT_PRSTATUS

func (r *registers) get(tid int) error {
	return unix.PtraceGetRegSetArm64(tid, prStatus, &r.PtraceRegsArm64)
}

func (r *registers) set(tid int) error {
	return unix.PtraceSetRegSetArm64(tid, prStatus, &r.PtraceRegsArm64)
}

const callLen = 4 // bytes of the instruction that makes a call

// canRestart is false, because the kernel of arm64 decides about a restart before the tracer can
// change the registers.
const canRestart = false

func (r *registers) restarting() (Native, bool) { return Native{}, false }

func (r *registers) restartAlways() {}

// interrupted reports whether the thread was interrupted in c and would restart c on continuing.
// The kernel has already moved the thread back to the system call instruction.
func (r *registers) interrupted(c *Call) bool {
	return r.Regs[8] == uint64(c.Nr) && r.Regs[0] == c.Args[0]
}

// prepare moves the thread back to the system call instruction and sets the registers for the call
// n.
func (r *registers) prepare(n Native) {
	copy(r.Regs[:6], n.Args[:])
	r.Regs[8] = uint64(n.Nr)
}

// answer moves the thread past the system call instruction, with result as the call's result.
func (r *registers) answer(result int64) {
	r.Pc += callLen
	r.Regs[0] = uint64(result)
}

func (r *registers) result() int64 { return int64(r.Regs[0]) }

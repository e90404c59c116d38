//go:build linux && (amd64 || arm64)

package rdma

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

// Restarts reports whether the kernel's driver would not have let a signal interrupt a call. This
// holds for all calls on uverbs files, and for the commands of rdma_cm except get_event.
//
// A signal may interrupt a call before the call is received. If the signal's handler lacks
// SA_RESTART, the call fails then with EINTR, for which programs are not prepared.
func Restarts(tid int, n notify.Native) bool {
	at := procFD(tid, int(int32(n.Args[0])))
	to, err := os.Readlink(at)
	switch {
	case err != nil:
		return false
	case strings.HasPrefix(to, "/memfd:"+arenaName):
		return true
	case n.Nr != unix.SYS_WRITE || !strings.HasPrefix(to, "pipe:"):
		return false
	}
	// The link's mode is how the descriptor was opened. The kernel does not wait in a write to a
	// pipe that was opened for reading, so the write was notified.
	const writable = 0o200
	if st, err := os.Lstat(at); err != nil || st.Mode()&writable != 0 {
		return false
	}
	var b [4]byte
	_, err = unix.ProcessVMReadv(tid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}},
		[]unix.RemoteIovec{{Base: uintptr(n.Args[1]), Len: len(b)}}, 0)
	return err == nil && abi.CMCommand(binary.NativeEndian.Uint32(b[:])) != abi.CMGetEvent
}

// protect makes calls of a thread's process restart after signals, see Restarts, if the process
// catches the signal of a timer. Other processes are left alone, because no debugger can attach to
// a process that is traced for this purpose.
func (x *context) protect(tid int) {
	if x.s.opt.Restart == nil || x.protected.Load() || !catchesTimer(tid) {
		return
	}
	if pid, _, ok := processOf(tid); ok && x.protected.CompareAndSwap(false, true) {
		x.s.opt.Restart(pid)
	}
}

// catchesTimer reports whether a thread's process has a handler for the signal of a timer. It
// returns false for programs in Go, whose handlers have SA_RESTART. Only programs in Go catch every
// real-time signal that the C library does not use itself.
func catchesTimer(tid int) bool {
	const timers = 1<<(unix.SIGALRM-1) | 1<<(unix.SIGVTALRM-1) | 1<<(unix.SIGPROF-1)
	const realTime = (1<<30 - 1) << 34 // signals 35 to 64
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "\nSigCgt:")
	mask, _, _ := strings.Cut(rest, "\n")
	caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return err == nil && caught&timers != 0 && caught&realTime != realTime
}

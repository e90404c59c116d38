//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// known has, for a moment, the descriptors of uverbs files that commands came by. Whether the next command comes by
// the same file one call of the kernel tells (kcmp); that its descriptor is fetched, looked at and closed takes three. Nothing is
// taken for granted: what a number stands for changes by close, dup2, exec and others, of which no notification tells.
//
// What is kept here holds the file open, as a descriptor of the program's does, so Sweep drops all of it before it
// looks for files that no process has. Files of rdma_cm are not kept: an epoll instance knows them, and goes on to
// report what a program has closed while it is open elsewhere.
type known struct {
	pid     int // of this process
	numbers numbers

	mu  sync.Mutex
	at  map[int]knownFile // guarded by mu; by the program's number, the last process that had it there
	off bool              // guarded by mu; the kernel does not compare, or it is not allowed
}

type knownFile struct {
	fd int
	x  *context
}

// begin returns what a number of a call's process stands for, if that is known, with the call counted in calls; else nil.
func (k *known) begin(c *notify.Call, number int) *context {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.at[number]
	if !ok {
		return nil
	}
	const file = 0 // KCMP_FILE
	switch order, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(c.TID), uintptr(k.pid), file, uintptr(number), uintptr(f.fd), 0); {
	case e == unix.ENOSYS || e == unix.EPERM:
		k.off = true
		k.dropLocked()
	case e == 0 && order == 0:
		// Under mu: Sweep does not find it abandoned before.
		f.x.calls.Add(1)
		return f.x
	}
	return nil
}

// keep takes over a descriptor that is a copy of a number of a process.
func (k *known) keep(number, fd int, x *context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.off || !k.numbers.has(number) {
		unix.Close(fd)
		return
	}
	if k.at == nil {
		k.at = map[int]knownFile{}
	}
	if old, ok := k.at[number]; ok {
		unix.Close(old.fd)
	}
	k.at[number] = knownFile{fd, x}
}

// drop forgets all.
func (k *known) drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked()
}

func (k *known) dropLocked() {
	for _, f := range k.at {
		unix.Close(f.fd)
	}
	clear(k.at)
}

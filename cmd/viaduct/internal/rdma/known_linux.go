//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// known caches the descriptors of uverbs files by the program's numbers. To get, check and close a
// copy of a descriptor takes three system calls. kcmp checks in a single call whether the number
// still refers to the same file. The check is needed for every command, because close, dup2 and
// exec change descriptors without a notification.
//
// A cached descriptor keeps the file open, like a descriptor of the program. Therefore Sweep
// empties the cache before searching for files no process has. Files of rdma_cm are not cached:
// epoll would still report a file closed by the program, while the file is open elsewhere.
type known struct {
	pid     int // number of this process
	numbers numbers

	mu  sync.Mutex
	at  map[int]knownFile // guarded by mu; by the program's descriptor number; the latest process counts
	off bool              // guarded by mu; kcmp is missing or not allowed
}

type knownFile struct {
	fd int
	x  *context
}

// begin returns the context a number of the calling process refers to, and counts the call in the
// context's calls. It returns nil if the context is not cached.
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
		// The call is counted under mu. Otherwise Sweep could release the context before.
		f.x.calls.Add(1)
		return f.x
	}
	return nil
}

// keep caches fd, a copy of the program's descriptor number, for the context x. It owns fd, and
// closes fd at once if kcmp is not available or the number is not reserved.
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

// drop empties the cache.
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

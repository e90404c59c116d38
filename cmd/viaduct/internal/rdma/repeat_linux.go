//go:build linux && (amd64 || arm64)

package rdma

import (
	"bytes"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

// repeats keeps the answers that threads did not get because a signal took them out
// of their calls: the kernel has them make the same call again behind the handler,
// and what the command did must not be done, or refused, a second time.
type repeats struct {
	mu    sync.Mutex
	of    map[int]repeat // guarded by mu; by thread
	begun map[int]begun  // guarded by mu; by thread: commands whose answer comes later
}

// A begun is a command that is being dealt with, and the call that last made it.
type begun struct {
	command []byte
	call    *notify.Call
}

// A repeat is an answer that was not taken.
type repeat struct {
	command  []byte
	value    int64
	errno    unix.Errno
	response []abi.Put
}

// maxRepeats is the number of answers kept of one file: threads may end before they
// repeat a call.
const maxRepeats = 256

// begin tells that the answer of a call comes later. A repeated call gets it then.
func (r *repeats) begin(c *notify.Call, command []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == nil {
		r.begun = map[int]begun{}
	}
	r.begun[c.TID] = begun{command, c}
}

// give answers a call and reports true if it repeats the command of the same thread
// whose answer was not taken, or will answer it if that has yet to come. The answer of
// any other command is forgotten.
func (r *repeats) give(c *notify.Call, command []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b, ok := r.begun[c.TID]; ok {
		if bytes.Equal(b.command, command) {
			r.begun[c.TID] = begun{command, c}
			return true
		}
		delete(r.begun, c.TID)
	}
	a, ok := r.of[c.TID]
	delete(r.of, c.TID)
	if !ok || !bytes.Equal(a.command, command) {
		return false
	}
	r.answerLocked(c, a, true)
	return true
}

// answer answers a call, or keeps the answer if the thread is not there any more. It
// is false if the response could not be written, which the answer says then.
func (r *repeats) answer(c *notify.Call, a repeat) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, begun := r.begun[c.TID]
	if begun = begun && bytes.Equal(b.command, a.command); begun {
		delete(r.begun, c.TID)
		c = b.call
	}
	// A command that has failed did nothing, and the interruption may be why: it may
	// be tried once more.
	return r.answerLocked(c, a, begun || a.errno == 0)
}

func (r *repeats) answerLocked(c *notify.Call, a repeat, keep bool) (ok bool) {
	ok = true
	for _, p := range a.response {
		if _, err := c.WriteMem(p.At, p.Bytes); err != nil && !errors.Is(err, notify.ErrGone) {
			a.value, a.errno, a.response = 0, unix.EFAULT, nil
			ok = false
			break
		}
	}
	if c.Return(a.value, a.errno) == nil || !keep {
		return ok
	}
	if r.of == nil || len(r.of) >= maxRepeats {
		r.of = map[int]repeat{}
	}
	r.of[c.TID] = a
	return ok
}

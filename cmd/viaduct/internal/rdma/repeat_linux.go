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

// repeats keeps answers threads did not get because a signal interrupted their calls. After the
// signal handler, the kernel repeats the call. The command must not be executed a second time, nor
// be refused then.
type repeats struct {
	mu    sync.Mutex
	of    map[int]repeat // guarded by mu; by thread
	begun map[int]begun  // guarded by mu; by thread: commands that will be answered later
}

// A begun is a command in progress, and the last call that made the command.
type begun struct {
	command []byte
	call    *notify.Call
}

// A repeat is an answer the thread did not get.
type repeat struct {
	command  []byte
	value    int64
	errno    unix.Errno
	response []abi.Put
}

// maxRepeats bounds the answers kept for a file, because threads may end before repeating a call.
const maxRepeats = 256

// begin records a call to be answered later. A repetition of the call then gets the same answer.
func (r *repeats) begin(c *notify.Call, command []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == nil {
		r.begun = map[int]begun{}
	}
	r.begun[c.TID] = begun{command, c}
}

// give reports whether a call repeats the unanswered command of a thread. It answers a repetition,
// now or when the answer is known. The kept answer to any other command is dropped.
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

// answer answers a call, or keeps the answer if the thread has left the call. If the response
// cannot be written, answer answers with EFAULT and returns false.
func (r *repeats) answer(c *notify.Call, a repeat) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, begun := r.begun[c.TID]
	if begun = begun && bytes.Equal(b.command, a.command); begun {
		delete(r.begun, c.TID)
		c = b.call
	}
	// The answer of a failed command is not kept: the command did nothing, and the interruption may
	// be the reason of the failure, so that the command may be executed again.
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

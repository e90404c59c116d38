//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
	"viaduct/internal/sock"
)

// A channel carries events to the program. It is a pipe, and the program has the reading end, so
// that the kernel serves reads and polls.
type channel struct {
	id inode

	mu     sync.Mutex
	w      int         // guarded by mu; the writing end, -1 after close
	size   int         // guarded by mu; bytes of each event, 0 before the first
	unread []*notifier // guarded by mu; owners of the events that may be unread, oldest first
}

// newChannel makes a channel, and returns the reading end of the pipe, owned by the caller. The
// reading end is in blocking mode, like the kernel's.
func newChannel() (*channel, int, error) {
	r, w, err := newPipe()
	if err != nil {
		return nil, -1, err
	}
	if err := unix.SetNonblock(r, false); err != nil {
		unix.Close(r)
		unix.Close(w)
		return nil, -1, err
	}
	id, err := inodeOf(r)
	if err != nil {
		unix.Close(r)
		unix.Close(w)
		return nil, -1, err
	}
	return &channel{id: id, w: w}, r, nil
}

func (ch *channel) close() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.w >= 0 {
		ch.forgetReadLocked()
		for _, owner := range ch.unread { // nobody can read their events any more
			owner.sent--
		}
		ch.unread = nil
		unix.Close(ch.w)
		ch.w = -1
	}
}

// giveChannel makes a channel, and gives the program the reading end as the descriptor n. After a
// failure, giveChannel answers the command with an error and returns a nil ch.
func (k *command) giveChannel() (ch *channel, n int) {
	ch, theirs, err := newChannel()
	if err != nil {
		k.fail(errnoOf(err))
		return nil, 0
	}
	defer unix.Close(theirs)
	if n, err = k.Add(theirs, unix.O_CLOEXEC); err != nil {
		ch.close()
		k.fail(errnoOf(err))
		return nil, 0
	}
	return ch, n
}

// createCompChannel makes a completion channel.
func (k *command) createCompChannel() {
	x := k.x
	ch, n := k.giveChannel()
	if ch == nil {
		return
	}
	x.addChannel(ch)
	k.answer(abi.Words(uint32(n)))
}

// addChannel records a completion channel. No event reports a close by the program. Therefore
// addChannel removes the closed channels whenever their number has doubled.
func (x *context) addChannel(ch *channel) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.chs) >= x.chsMost {
		for id, old := range x.chs {
			if old.orphaned() {
				old.close()
				delete(x.chs, id)
			}
		}
		x.chsMost = 2*len(x.chs) + 16
	}
	x.chs[ch.id] = ch
}

// orphaned reports whether no process has the reading end any more. It is false after close.
func (ch *channel) orphaned() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return withoutReader(ch.w)
}

// withoutReader reports whether no process has the reading end of a pipe any more. w is the writing
// end, or -1 for a closed end. The result for -1 is false.
func withoutReader(w int) bool {
	p := []unix.PollFd{{Fd: int32(w)}}
	n, err := sock.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&unix.POLLERR != 0
}

// channel returns the completion channel of a descriptor of the program, or nil if the descriptor
// is no completion channel of the context.
func (x *context) channel(c *notify.Call, number int32) *channel {
	fd, err := c.Borrow(int(number))
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	id, err := inodeOf(fd)
	if err != nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.chs[id]
}

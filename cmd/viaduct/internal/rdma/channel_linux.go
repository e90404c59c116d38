//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

// A channel carries events to the program: a pipe of which it has the reading
// end, so that reading and polling are the kernel's.
type channel struct {
	id inode

	mu   sync.Mutex
	w    int   // guarded by mu; the writing end, -1 after close
	size int   // guarded by mu; bytes of an event
	sent []any // guarded by mu; whose the events are that may be unread, in order
}

// newChannel makes a channel; the reading end belongs to the caller. It waits when it is
// read, as the kernel's does.
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
		unix.Close(ch.w)
		ch.w = -1
	}
}

// send gives the program an event of an object. A pipe that is full has
// thousands of events that were not read: one more would tell nothing new. It
// reports whether the event was sent.
func (ch *channel) send(of any, event []byte) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.w < 0 {
		return false
	}
	ch.size = len(event)
	if n, err := unix.Write(ch.w, event); err != nil || n != len(event) {
		return false
	}
	ch.sent = append(ch.sent, of)
	if len(ch.sent) >= 64 {
		ch.forgetReadLocked()
	}
	return true
}

// forgetReadLocked drops what the program has read from the list.
func (ch *channel) forgetReadLocked() {
	n, err := unix.IoctlGetInt(ch.w, unix.TIOCINQ) // what is unread
	if err != nil || ch.size == 0 {
		return
	}
	unread := min(n/ch.size, len(ch.sent))
	ch.sent = append(ch.sent[:0], ch.sent[len(ch.sent)-unread:]...)
}

// takeBack removes the unread events of an object and returns how many they
// were. Those of others keep their order.
func (ch *channel) takeBack(of any) (n int) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.w < 0 {
		return 0
	}
	ch.forgetReadLocked()
	found := false
	for _, o := range ch.sent {
		found = found || o == of
	}
	if !found {
		return 0
	}
	r, err := reopen(ch.w, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return 0
	}
	defer unix.Close(r)
	b := make([]byte, ch.size)
	var keep [][]byte
	var owners []any
	ch.forgetReadLocked()
	for _, o := range ch.sent {
		if k, err := unix.Read(r, b); err != nil || k != len(b) {
			break // the program has read it meanwhile
		}
		if o == of {
			n++
			continue
		}
		keep = append(keep, append([]byte(nil), b...))
		owners = append(owners, o)
	}
	for _, e := range keep {
		unix.Write(ch.w, e)
	}
	ch.sent = owners
	return n
}

// giveChannel makes a channel whose other end the program has at number n. With a nil
// channel the command has failed.
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

// addChannel notes a completion channel. Nothing tells when the program closes one: the
// closed ones are looked for as often as the number of channels has doubled.
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

// orphaned reports whether no reading end is left.
func (ch *channel) orphaned() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return withoutReader(ch.w)
}

// withoutReader reports whether no process has the reading end of a pipe any more.
func withoutReader(w int) bool {
	p := []unix.PollFd{{Fd: int32(w)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&unix.POLLERR != 0
}

// channel returns the completion channel of one of the program's descriptors.
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

//go:build linux && (amd64 || arm64)

package rdma

import (
	"slices"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A notifier sends and counts the events of an object on a channel. Every object needs a notifier
// for each kind of event. The destroy call of libibverbs waits until the program has acknowledged
// as many events as the answer says. If the number is too large, the call never returns. If the
// number is too small, an event names memory the program has freed.
//
// The zero notifier has no channel, and drops all events.
type notifier struct {
	ch      *channel
	sent    uint32 // guarded by ch.mu
	retired bool   // guarded by ch.mu
}

// send sends the program an event, unless the channel is closed or full of unread events.
func (n *notifier) send(event []byte) {
	if n.ch != nil {
		n.ch.send(n, event)
	}
}

// raise sends an asynchronous event of the object whose handle in the program is userHandle.
func (n *notifier) raise(userHandle uint64, t abi.AsyncType) { n.send(abi.AsyncEvent(userHandle, t)) }

// retire removes the unread events from the channel, and returns how many events the program has
// read. It is called once, when the object can no longer be found. No event may be sent afterwards.
func (n *notifier) retire() (read uint32) {
	if n.ch == nil {
		return 0
	}
	n.ch.mu.Lock()
	defer n.ch.mu.Unlock()
	n.retired = true
	return n.sent - n.ch.takeBackLocked(n)
}

// send writes an event of a notifier into the pipe. If the pipe is full, the event is dropped; the
// pipe then holds thousands of unread events.
func (ch *channel) send(of *notifier, event []byte) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.w < 0 || of.retired {
		return
	}
	ch.size = len(event)
	if n, err := unix.Write(ch.w, event); err != nil || n != len(event) {
		return
	}
	of.sent++
	ch.unread = append(ch.unread, of)
	if len(ch.unread) >= 64 {
		ch.forgetReadLocked()
	}
}

// forgetReadLocked removes from ch.unread the events already read by the program.
func (ch *channel) forgetReadLocked() {
	n, err := unix.IoctlGetInt(ch.w, unix.TIOCINQ) // unread bytes
	if err != nil || ch.size == 0 {
		return
	}
	ch.keepLastLocked(n / ch.size)
}

// keepLastLocked shortens ch.unread to the newest n events.
func (ch *channel) keepLastLocked(n int) {
	n = min(n, len(ch.unread))
	ch.unread = append(ch.unread[:0], ch.unread[len(ch.unread)-n:]...)
}

// takeBackLocked removes the unread events of a notifier from the pipe and returns their number.
// The others keep their order.
func (ch *channel) takeBackLocked(of *notifier) (n uint32) {
	if ch.w < 0 {
		return 0
	}
	ch.forgetReadLocked()
	if !slices.Contains(ch.unread, of) {
		return 0
	}
	r, err := reopen(ch.w, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return 0
	}
	defer unix.Close(r)
	// One read empties the pipe. The program cannot read in between, so that the bytes are the
	// newest events of the list.
	all := make([]byte, len(ch.unread)*ch.size)
	got, err := unix.Read(r, all)
	if err != nil {
		got = 0 // the program has read the events meanwhile
	}
	ch.keepLastLocked(got / ch.size)
	others := ch.unread[:0]
	for i, owner := range ch.unread {
		if owner == of {
			n++
			continue
		}
		others = append(others, owner)
		unix.Write(ch.w, all[i*ch.size:(i+1)*ch.size])
	}
	ch.unread = others
	return n
}

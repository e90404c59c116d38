package sock

import (
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/budget"
	"viaduct/internal/shm"
)

// rings is the state of a Socket whose bytes go through shared memory. The TCP connection stays
// open and silent.
//
// Two AF_UNIX streams to the peer's process, the bells, wake a sleeping end. A byte in bell
// announces bytes of the stream; a byte in room announces room to write. A reader sleeps at bell
// instead of the TCP socket. A stream is better than an eventfd here, because a stream hangs up
// when the peer's process dies, and a write never blocks, whatever the other process does.
type rings struct {
	in   *shm.Consumer
	out  *shm.Producer
	mem  *shm.Memory
	tcp  int   // the TCP socket
	bell int   // the bell for arrivals; equal to Socket.fd
	room int   // the bell for room
	seat *seat // place in a pair; nil for none

	front int         // offset where Peek begins [reader]
	empty uint32      // consecutive reads that found nothing [reader]
	gone  atomic.Bool // the peer's process has hung up

	// Before an engine takes the socket, any number of goroutines may read and write. The locks
	// admit a single reader and a single writer at a time.
	reading, writing sync.Mutex

	spins budget.Budget // polling for room [writer]
}

// emptyReads is the number of consecutive empty reads after which a read checks whether the peer's
// process still exists. Only a polling reader needs the check: a sleeping reader is woken by the
// bell when the process ends.
const emptyReads = 256

// copying is the assumed speed of the peer's copies, in bytes per nanosecond.
const copying = 4

func newRings(mem *shm.Memory, first bool, bell, room int) *rings {
	r := &rings{mem: mem, tcp: -1, bell: bell, room: room}
	r.in, r.out = mem.Ends(first)
	r.out.Wake = func() { r.ring(r.bell) }
	r.out.Tell = r.tell
	r.in.Wake = func() { r.ring(r.room) }
	r.out.Offer = r.offer
	r.in.Offered = r.ask // ask consumes bytes of the bell, which may be the bytes meant for a sleeper
	return r
}

// offer sends fd, memory of samehost.Alloc, to the peer's process, together with a byte for the
// bell. again is true if a later call may succeed, because the bell is full now.
func (r *rings) offer(fd int) (sent, again bool) {
	err := unix.Sendmsg(r.bell, []byte{0}, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err == nil, err == unix.EAGAIN || err == unix.EINTR
}

// hushBell is hush for the bell for arrivals. A descriptor of the peer's memory may come with the
// bytes; hushBell hands it to the consumer.
func (r *rings) hushBell() {
	var b [64]byte
	for {
		n, files, err := recvRights(r.bell, b[:], 1)
		for _, fd := range files {
			r.in.Borrow(fd)
			unix.Close(fd)
		}
		switch {
		case err == ErrWouldBlock:
			return
		case err != nil || n == 0:
			r.gone.Store(true)
			return
		}
	}
}

// ring wakes a sleeper at the other end of a bell. If the bell is full, the earlier bytes wake the
// sleeper.
func (r *rings) ring(bell int) {
	if _, err := send(bell, []byte{0}); err != nil && err != ErrWouldBlock {
		r.gone.Store(true)
	}
}

// tell wakes the peer by the pair, or by the connection's own bell if there is no pair.
func (r *rings) tell() {
	if s := r.seat; s == nil || s.pair == nil || !s.pair.Tell(s.slot) {
		r.ring(r.bell)
	}
}

// hush empties a bell, so that only later bytes wake a sleeper. hush reads until nothing is left:
// the peer's process may have hung up after the last byte, and epoll may report the byte and the
// hang-up by a single event.
func (r *rings) hush(bell int) {
	var b [64]byte
	for {
		switch n, err := recv(bell, b[:], unix.MSG_DONTWAIT); {
		case err == ErrWouldBlock:
			return
		case err != nil || n == 0:
			r.gone.Store(true)
			return
		}
	}
}

// ask makes the next arrival ring the bell, after discarding the bell's bytes from earlier
// arrivals.
func (r *rings) ask() {
	r.hushBell()
	r.in.Ask()
}

// result converts the results of reading the ring to the results of reading a socket. The error is
// ErrWouldBlock if nothing has arrived, and ECONNRESET if the peer's process has hung up and all
// received bytes are read.
func (r *rings) result(n int, err error) (int, error) {
	switch err {
	case nil:
		r.empty = 0
		raceAcquire(r.tcp)
		return n, nil
	case shm.ErrWouldBlock:
		if r.empty++; r.empty%emptyReads == 0 {
			r.look()
		}
		if r.gone.Load() {
			// Bytes published by the peer before the hang-up are still there.
			if n, err := r.in.Available(); n > 0 || err != shm.ErrWouldBlock {
				return 0, ErrWouldBlock // the next read takes the bytes, or finds the end
			}
			return 0, os.NewSyscallError("recv", unix.ECONNRESET)
		}
		return 0, ErrWouldBlock
	case io.EOF:
		return 0, nil
	}
	return 0, os.NewSyscallError("recv", err)
}

// look sets gone if the peer's process has hung up.
func (r *rings) look() {
	var b [1]byte
	if n, err := peek(r.bell, b[:]); err == nil && n == 0 || err != nil && err != ErrWouldBlock {
		r.gone.Store(true)
	}
}

func (r *rings) read(p []byte) (int, error) { return r.result(r.in.Read(p)) }

func (r *rings) peekAt(off int, p []byte) (int, error) { return r.result(r.in.Peek(off, p)) }

// peekAbove is peekAt(0, p), but returns ErrWouldBlock if at most have bytes are available and more
// can follow. If the stream ends after the available bytes, the result is 0 without an error.
func (r *rings) peekAbove(p []byte, have int) (int, error) {
	ended := r.in.Ending() || r.gone.Load()
	n, err := r.peekAt(0, p)
	switch {
	case err != nil || n == 0 || n > have:
		return n, err
	case ended:
		return 0, nil
	}
	return 0, ErrWouldBlock
}

func (r *rings) readable() (bool, error) {
	n, err := r.result(r.in.Available())
	return n > 0, err
}

func (r *rings) write(n int, err error) (int, error) {
	switch err {
	case nil:
		return n, nil
	case shm.ErrWouldBlock:
		if r.gone.Load() {
			err = unix.EPIPE
			break
		}
		return n, ErrWouldBlock
	case io.ErrClosedPipe:
		err = unix.EPIPE
	}
	return n, os.NewSyscallError("send", err)
}

// askRoom makes the peer ring r.room after making room. It returns false if there is room already,
// the stream has ended, or the peer has hung up. [writer]
func (r *rings) askRoom() bool {
	r.hush(r.room)
	return r.out.Ask() && !r.gone.Load()
}

// poll polls for room by the row Room, and reports whether there is room. If the peer still has to
// copy bytes from the writer's memory, poll lasts longer by the time of the copy, at the rate copying.
// poll returns false at once on a single processor, or if polling has seldom succeeded lately.
// [writer]
func (r *rings) poll() bool {
	if runtime.GOMAXPROCS(0) == 1 || !r.spins.Worth() {
		return false
	}
	return r.spins.PollLonger(&budget.Room, time.Duration(r.out.Owed()/copying), func() budget.Outcome {
		if r.out.Roomy() {
			return budget.Found
		}
		return budget.Nothing
	}) == budget.Found
}

// finish ends the sending direction. If the peer's process has hung up, finish resets the stream
// instead, as TCP does for a broken connection.
func (r *rings) finish() {
	if r.gone.Load() {
		r.out.Abort()
	} else {
		r.out.Finish()
	}
}

// close ends both directions and releases everything except the TCP socket.
func (r *rings) close(reset bool) {
	if reset {
		r.out.Abort()
	} else {
		r.finish()
	}
	r.in.Leave()
	// Socket.Close has waited for the writer by a semaphore, but to the race detector the semaphore
	// means no order. So the lock orders the writer's last use of the memory before the unmapping.
	r.writing.Lock()
	r.mem.Close()
	r.writing.Unlock()
	closeAll([]int{r.bell, r.room})
	r.in.Close()
	if r.seat != nil {
		r.seat.leave()
	}
}

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
// Two AF_UNIX streams to the peer's process, the bells, wake a sleeping end: a byte in one of
// them means that something has arrived, and in the other that there is room. Whatever would sleep
// at the TCP socket sleeps at the first one. A bell is better than an eventfd here, because it
// hangs up when the peer's process dies, and a write to it never blocks, whatever the other process
// does.
type rings struct {
	in   *shm.Consumer
	out  *shm.Producer
	mem  *shm.Memory
	tcp  int // the TCP socket
	bell int // the bell for arrivals; equal to Socket.fd
	room int // the bell for room

	front int         // offset where Peek begins [reader]
	empty uint32      // consecutive reads that found nothing [reader]
	gone  atomic.Bool // the peer's process has hung up

	// Before an engine exists, any number of goroutines may read and write. These locks do then
	// what the two roles of an engine do later.
	reading, writing sync.Mutex

	spins budget.Budget // polling for room [writer]
}

// emptyReads is the number of consecutive empty reads after which a read checks whether the peer's
// process still exists. A consumer that sleeps is woken when the process ends.
const emptyReads = 256

// awaitRoom is the time a writer polls for room before it sleeps. If the peer still has to copy
// bytes from the writer's memory, the time the copy takes is added.
const (
	awaitRoom = 20 * time.Microsecond
	copying   = 4 // bytes per nanosecond
)

// roomy is the back-off rule for polling for room.
var roomy = budget.Rule{Grace: 2, Max: 63}

func newRings(mem *shm.Memory, first bool, bell, room int) *rings {
	r := &rings{mem: mem, tcp: -1, bell: bell, room: room}
	r.in, r.out = mem.Ends(first)
	r.out.Wake = func() { r.ring(r.bell) }
	r.in.Wake = func() { r.ring(r.room) }
	r.out.Offer = r.offer
	r.in.Offered = r.ask // offer may consume a ring that was meant for a sleeper
	return r
}

// offer sends the memory of samehost.Alloc to the peer's process, together with a byte for its
// bell. again means that a later call may succeed.
func (r *rings) offer(fd int) (sent, again bool) {
	err := unix.Sendmsg(r.bell, []byte{0}, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err == nil, err == unix.EAGAIN || err == unix.EINTR
}

// hushBell is hush for the bell for arrivals, with which the peer's memory may arrive.
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

// ring wakes a sleeper at the other end of a bell. A full bell wakes the sleeper anyway.
func (r *rings) ring(bell int) {
	if _, err := send(bell, []byte{0}); err != nil && err != ErrWouldBlock {
		r.gone.Store(true)
	}
}

// hush empties a bell, so that only later bytes wake. It reads until nothing is left, because the
// peer's process may have hung up after the last byte, and one report may stand for both.
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

// ask makes the next arrival ring the bell. It first discards what earlier arrivals wrote to the
// bell.
func (r *rings) ask() {
	r.hushBell()
	r.in.Ask()
}

// result converts the results of reading the ring to the results of reading a socket.
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
			// The peer has published nothing since.
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

// look checks whether the peer's process has hung up.
func (r *rings) look() {
	var b [1]byte
	if n, err := peek(r.bell, b[:]); err == nil && n == 0 || err != nil && err != ErrWouldBlock {
		r.gone.Store(true)
	}
}

func (r *rings) read(p []byte) (int, error) { return r.result(r.in.Read(p)) }

func (r *rings) peekAt(off int, p []byte) (int, error) { return r.result(r.in.Peek(off, p)) }

// peekAbove is peekAt(0, p), except that it finds nothing if at most have bytes are available and
// more can follow. If nothing can follow them, it reports the end of the stream.
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

// askRoom makes room ring its bell. It returns false if there is room already, or if there is
// nothing to wait for. [writer]
func (r *rings) askRoom() bool {
	r.hush(r.room)
	return r.out.Ask() && !r.gone.Load()
}

// poll polls for room for a moment, and reports whether there is room. [writer]
func (r *rings) poll() bool {
	if runtime.GOMAXPROCS(0) == 1 || !r.spins.Worth() {
		return false
	}
	most := awaitRoom + time.Duration(r.out.Owed()/copying)
	for start := time.Now(); ; {
		for range 8 {
			if r.out.Roomy() {
				r.spins.Hit(&roomy)
				return true
			}
		}
		if time.Since(start) > most {
			r.spins.Miss(&roomy)
			return false
		}
	}
}

// finish ends the sending direction. As on TCP, a connection that was found broken does not end in
// an orderly way.
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
	// A writer that slept may have checked the references that end here. Socket.Close has waited
	// for the writer by a semaphore, which means no order to the race detector; this lock does.
	r.writing.Lock()
	r.mem.Close()
	r.writing.Unlock()
	closeAll([]int{r.bell, r.room})
	r.in.Close()
}

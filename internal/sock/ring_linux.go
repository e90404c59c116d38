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

// rings are what a Socket has whose bytes go through shared memory. The TCP
// connection stays open and silent.
//
// An end that sleeps is woken by a byte in one of two AF_UNIX streams to the
// peer's process, the bells: one for what has arrived, at which everything sleeps
// that would sleep at a TCP socket, and one for room. A bell is better than an
// eventfd here: it hangs up when the peer's process dies, and writing to it never
// blocks, whatever the other process does to it.
type rings struct {
	in   *shm.Consumer
	out  *shm.Producer
	mem  *shm.Memory
	tcp  int // the TCP socket
	bell int // for arrivals; Socket.fd is the same
	room int // the bell for room

	front int         // where Peek begins [reader]
	empty uint32      // consecutive reads that found nothing [reader]
	gone  atomic.Bool // the peer's process has hung up

	// Held around what the two roles of an engine do without: before there is one,
	// any number of goroutines may read and write.
	reading, writing sync.Mutex

	spins budget.Budget // polling for room [writer]
}

// emptyReads is how many reads have to find nothing, one after the other, for one
// of them to look whether the peer's process is still there. A consumer that
// sleeps hears of it at once.
const emptyReads = 256

// awaitRoom is how long a writer polls for room before it sleeps, and longer by the time
// that the peer needs to copy what it is to copy from where it is.
const (
	awaitRoom = 20 * time.Microsecond
	copying   = 4 // bytes in a nanosecond
)

// roomy is the rule of that.
var roomy = budget.Rule{Grace: 2, Max: 63}

func newRings(mem *shm.Memory, first bool, bell, room int) *rings {
	r := &rings{mem: mem, tcp: -1, bell: bell, room: room}
	r.in, r.out = mem.Ends(first)
	r.out.Wake = func() { r.ring(r.bell) }
	r.in.Wake = func() { r.ring(r.room) }
	r.out.Offer = r.offer
	r.in.Offered = r.ask // a ring that it takes may have been for one that sleeps
	return r
}

// offer sends the memory of samehost.Alloc to the peer's process, with a ring of its bell.
func (r *rings) offer(fd int) (sent, again bool) {
	err := unix.Sendmsg(r.bell, []byte{0}, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err == nil, err == unix.EAGAIN || err == unix.EINTR
}

// hushBell is hush for the bell for arrivals, with which memory of the peer's may come.
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

// ring wakes what sleeps at the other end of a bell. If the bell is full, it will
// be woken anyway.
func (r *rings) ring(bell int) {
	if _, err := send(bell, []byte{0}); err != nil && err != ErrWouldBlock {
		r.gone.Store(true)
	}
}

// hush takes what is in a bell, so that only what comes later wakes. It reads until
// there is nothing: behind the last byte the peer's process may have hung up, which
// one report may have told of together with the byte.
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

// ask has the next arrival reported at the bell. What came before need not be.
func (r *rings) ask() {
	r.hushBell()
	r.in.Ask()
}

// result makes what a read of the ring returned what a read of a socket returns.
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
			// It has published nothing since.
			if n, err := r.in.Available(); n > 0 || err != shm.ErrWouldBlock {
				return 0, ErrWouldBlock // the next read takes it, or finds the end
			}
			return 0, os.NewSyscallError("recv", unix.ECONNRESET)
		}
		return 0, ErrWouldBlock
	case io.EOF:
		return 0, nil
	}
	return 0, os.NewSyscallError("recv", err)
}

// look finds out whether the peer's process has hung up.
func (r *rings) look() {
	var b [1]byte
	if n, err := peek(r.bell, b[:]); err == nil && n == 0 || err != nil && err != ErrWouldBlock {
		r.gone.Store(true)
	}
}

func (r *rings) read(p []byte) (int, error) { return r.result(r.in.Read(p)) }

func (r *rings) peekAt(off int, p []byte) (int, error) { return r.result(r.in.Peek(off, p)) }

// peekAbove is peekAt(0, p), but no more than have bytes are none yet, unless
// nothing can follow them; that is an end of the stream.
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

// askRoom has room reported at its bell. It is false if there is room already, or
// nothing to wait for. [writer]
func (r *rings) askRoom() bool {
	r.hush(r.room)
	return r.out.Ask() && !r.gone.Load()
}

// poll polls for room for a moment. [writer]
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

// finish ends the sending direction. As on TCP, the end of a connection that was
// found broken is no orderly one.
func (r *rings) finish() {
	if r.gone.Load() {
		r.out.Abort()
	} else {
		r.out.Finish()
	}
}

// close ends both directions and gives everything back but the TCP socket.
func (r *rings) close(reset bool) {
	if reset {
		r.out.Abort()
	} else {
		r.finish()
	}
	r.in.Leave()
	// A writer that slept has looked at the references that end here. Socket.Close has waited
	// for it, by a semaphore that orders nothing for the race detector: the lock does.
	r.writing.Lock()
	r.mem.Close()
	r.writing.Unlock()
	closeAll([]int{r.bell, r.room})
	r.in.Close()
}

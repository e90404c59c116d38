package sock

import (
	"net"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
)

// Shared moves the bytes of a TCP connection within this process to shared memory, and returns the
// ends, for tests. a and b are returned unchanged if the zero value of [samehost.Policy] does not
// permit shared memory. Shared panics if the memory cannot be created.
func Shared(a, b net.Conn) (net.Conn, net.Conn) {
	if !SharesByDefault {
		return a, b
	}
	x, ok := Own(a).(*conn)
	y, ok2 := Own(b).(*conn)
	if !ok || !ok2 {
		return a, b
	}
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	mem, fd, err := shm.Create(shm.DefaultRing)
	must(err)
	defer unix.Close(fd)
	other, err := shm.Open(fd, shm.DefaultRing)
	must(err)
	bells, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	rooms, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	must(x.s.adopt(newRings(mem, true, bells[0], rooms[0])))
	must(y.s.adopt(newRings(other, false, bells[1], rooms[1])))
	return x, y
}

// Cut, for tests, breaks a connection through shared memory for both ends, as the death of the
// peer's process does. It returns false if nc does not go through shared memory.
func Cut(nc net.Conn) bool {
	h, ok := nc.(handle)
	if !ok {
		return false
	}
	s := h.s
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed || s.rings == nil {
		return false
	}
	for _, fd := range []int{s.rings.bell, s.rings.room} {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	return true
}

// PairOf returns the pair of a connection, or nil, for tests.
func PairOf(nc net.Conn) *Pair {
	p, _ := nc.(*conn).s.Pair()
	return p
}

//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// getname serves getsockname and getpeername, without blocking. A carried socket shows the names of
// the transport's connection.
func (s *supervisor) getname(c *notify.Call) {
	if !s.names.used.Load() {
		c.Continue()
		return
	}
	fd, err := c.Borrow(int(int32(c.Args[0])))
	switch {
	case outOfDescriptors(err):
		go s.getnameShort(c)
	case err != nil:
		c.Continue()
	default:
		s.showName(c, fd)
	}
}

// getnameShort is getname when this process has only the spare descriptors left. The call cannot be
// left to the kernel, because a carried socket is connected to the supervisor, not to the peer.
func (s *supervisor) getnameShort(c *notify.Call) {
	fd, err := -1, error(unix.EMFILE)
	s.spare.use(func() bool {
		fd, err = c.Borrow(int(int32(c.Args[0])))
		if err == nil {
			s.showName(c, fd)
		}
		return !outOfDescriptors(err)
	})
	switch {
	case outOfDescriptors(err):
		c.Return(0, unix.ENOBUFS)
	case err != nil:
		c.Continue()
	}
}

// showName answers a call for a name of the socket fd, a copy of the program's descriptor. It
// closes fd.
func (s *supervisor) showName(c *notify.Call, fd int) {
	b := &borrowed{fd: fd}
	defer b.close()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		b.close()
		c.Continue()
		return
	}
	if c.Nr == unix.SYS_GETPEERNAME {
		// For an unconnected socket, the call returns the kernel's error. The call must not be left
		// to the kernel, because the socket may be connected by then, and would show the
		// supervisor's address.
		if _, err := unix.Getpeername(fd); err != nil {
			errno, _ := err.(unix.Errno)
			b.close()
			c.Return(0, errno)
			return
		}
	}
	n, ok := s.names.get(cookie) // a socket of ours has names before it is connected
	if !ok {
		b.close()
		c.Continue()
		return
	}
	s.pairs.goesOn(cookie)
	family := n.family
	if family == 0 {
		family, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	}
	show := n.local
	if c.Nr == unix.SYS_GETPEERNAME {
		show = n.remote
	}
	b.close()
	if !c.Valid() {
		return
	}
	if c.Return(0, s.short.store(c, c.TID, c.Args[1], c.Args[2], appendSockaddr(nil, show, family))) == nil {
		s.short.answered(c.TID)
	}
}

// A programMemory is the memory of the calling program.
type programMemory interface {
	ReadMem(addr uint64, b []byte) (int, error)
	WriteMem(addr uint64, b []byte) (int, error)
}

// shortNames records the calls with a buffer too short for the name, until the program has the
// answer. The answer replaces the buffer's length by the whole length of the name. If a signal
// prevents the answer, the kernel repeats the call, with the whole length. Without the record, the
// name would then be written beyond the end of the buffer.
type shortNames struct {
	mu sync.Mutex
	m  map[int]shortName // guarded by mu; by thread
}

// A shortName is a call with too short a buffer.
type shortName struct {
	addr, length uint64 // the arguments
	room         int    // length of the buffer
	written      int    // the length that was written since
}

// room returns how many bytes of a name may be written for a call. n is the length of the buffer
// according to the call, full the length of the name.
func (t *shortNames) room(thread int, addr, length uint64, n, full int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.m[thread]; ok && e.addr == addr && e.length == length && e.written == n {
		n = e.room
	}
	delete(t.m, thread)
	if n >= full {
		return full
	}
	if t.m == nil {
		t.m = map[int]shortName{}
	}
	t.m[thread] = shortName{addr, length, n, full}
	return n
}

// answered records that a thread has the answer of its call.
func (t *shortNames) answered(thread int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, thread)
}

// store writes a name like the kernel: as much as fits, and the whole length of the name. The
// caller calls answered once the call is answered.
func (t *shortNames) store(p programMemory, thread int, addr, length uint64, name []byte) unix.Errno {
	var n [4]byte
	if _, err := p.ReadMem(length, n[:]); err != nil {
		return unix.EFAULT
	}
	room := int32(binary.NativeEndian.Uint32(n[:]))
	if room < 0 {
		return unix.EINVAL
	}
	fits := t.room(thread, addr, length, int(room), len(name))
	binary.NativeEndian.PutUint32(n[:], uint32(len(name)))
	if _, err := p.WriteMem(addr, name[:fits]); err != nil {
		return unix.EFAULT
	}
	if _, err := p.WriteMem(length, n[:]); err != nil {
		return unix.EFAULT
	}
	return 0
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappings reads the list of mappings of a process. The list is needed because /proc/PID/mem lets a
// tracer write memory the process itself may not write, for example constants and code. Therefore
// every write is checked here first. fd refers to the same address space for good, like the
// descriptor of the memory.
type mappings struct {
	fd int // descriptor of /proc/PID/maps
	// each calls visit for the mapping at an address and for the following mappings, in order,
	// until visit returns false. It is queryMappings or, on kernels before 6.11, readMappings.
	each    func(fd int, addr uint64, visit func(mapping) bool)
	written atomic.Pointer[permit]
}

// A mapping is a range of addresses with the same rights.
type mapping struct {
	start, end  uint64
	read, write bool
}

// A permit records a range found writable a moment ago. A program may make a million small writes a
// second, and to query the mapping takes longer than a small write.
type permit struct {
	start, end uint64
	until      time.Time
}

// permitFor is how long a permit is valid. A write may still be made for this time after the end of
// the mapping.
const permitFor = time.Millisecond

// openMappings opens the list of mappings of a thread's process.
func openMappings(tid int) (*mappings, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/maps", tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	m := &mappings{fd: fd, each: queryMappings}
	if _, e := query(fd, 0, new(mapQuery)); e == unix.ENOTTY || e == unix.EINVAL {
		m.each = readMappings
	}
	return m, nil
}

func (m *mappings) close() { unix.Close(m.fd) }

// hold reports whether all of a range may be read, or written. It makes the same check as the
// kernel's pinning (ib_umem_get): no hole, and the right in every mapping.
func (m *mappings) hold(addr, length uint64, write bool) bool {
	at, end := addr, addr+length
	m.each(m.fd, addr, func(p mapping) bool {
		if p.start > at || write && !p.write || !write && !p.read {
			return false
		}
		if at == addr && write {
			m.written.Store(&permit{p.start, p.end, time.Now().Add(permitFor)})
		}
		at = p.end
		return at < end
	})
	return at >= end
}

// mayWrite is like hold, for an imminent write. It may use a recent permit.
func (m *mappings) mayWrite(addr, length uint64) bool {
	if p := m.written.Load(); p != nil && addr >= p.start && addr+length <= p.end && time.Now().Before(p.until) {
		return true
	}
	return m.hold(addr, length, true)
}

// A mapQuery is struct procmap_query.
type mapQuery struct {
	size, flags, addr              uint64
	start, end, rights, page, from uint64
	inode                          uint64
	major, minor                   uint32
	nameSize, idSize               uint32
	name, id                       uint64
}

const (
	procmapQuery = 0xc0686611 // PROCMAP_QUERY
	mayRead      = 1
	mayWrite     = 2
)

func query(fd int, addr uint64, q *mapQuery) (*mapQuery, unix.Errno) {
	*q = mapQuery{size: uint64(unsafe.Sizeof(*q)), addr: addr}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapQuery, uintptr(unsafe.Pointer(q)))
	return q, e
}

// queryMappings queries the kernel for each mapping by address. It ends at a hole.
func queryMappings(fd int, addr uint64, visit func(mapping) bool) {
	for {
		q, e := query(fd, addr, new(mapQuery))
		if e != 0 || !visit(mapping{q.start, q.end, q.rights&mayRead != 0, q.rights&mayWrite != 0}) {
			return
		}
		addr = q.end
	}
}

// readMappings reads the list from the beginning, and visits each mapping that ends after addr.
func readMappings(fd int, addr uint64, visit func(mapping) bool) {
	var rest []byte
	buf := make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := unix.Pread(fd, buf, at)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		at += int64(n)
		rest = append(rest, buf[:n]...)
		for {
			line, more, whole := bytes.Cut(rest, []byte{'\n'})
			if !whole {
				break
			}
			rest = more
			var m mapping
			var rights string
			if _, err := fmt.Sscanf(string(line), "%x-%x %4s", &m.start, &m.end, &rights); err != nil || m.end <= addr {
				continue
			}
			m.read, m.write = rights[0] == 'r', rights[1] == 'w'
			if !visit(m) {
				return
			}
		}
	}
}

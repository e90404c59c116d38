package iwarp

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A segmentProbe asks the kernel for the segment size of a connection.
type segmentProbe struct {
	info unix.TCPInfo
	size int
	ask  func(fd uintptr)
}

var segmentProbes = sync.Pool{New: func() any {
	p := new(segmentProbe)
	p.ask = p.look
	return p
}}

func (p *segmentProbe) look(fd uintptr) {
	n := uint32(unsafe.Sizeof(p.info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&p.info)), uintptr(unsafe.Pointer(&n)), 0)
	if e == 0 {
		p.size = int(p.info.Snd_mss)
	} else if m, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
		p.size = m
	}
}

// askSegmentSize returns the kernel's segment size, or 0 if unknown.
func askSegmentSize(c controller) int {
	p := segmentProbes.Get().(*segmentProbe)
	defer segmentProbes.Put(p)
	p.size = 0
	_ = c.Control(p.ask)
	return p.size
}

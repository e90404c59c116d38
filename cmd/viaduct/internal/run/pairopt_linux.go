//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// A pair's shadow, a TCP socket without data, has the options of TCP and IP, such as TCP_NODELAY,
// because unix sockets lack these options. All other options are set on the unix socket.

// pairFilter returns the rules to notify the supervisor of calls for the shadow's options.
func pairFilter() (rules []notify.Rule) {
	for _, level := range []uint32{unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_IPV6} {
		is := []notify.Cond{{Arg: 1, Low: level, High: level}}
		rules = append(rules, notify.Rule{Nr: unix.SYS_SETSOCKOPT, If: is, Do: notify.Notify},
			notify.Rule{Nr: unix.SYS_GETSOCKOPT, If: is, Do: notify.Notify})
	}
	return append(rules, notify.Rule{Nr: unix.SYS_GETSOCKOPT, Do: notify.Notify, If: []notify.Cond{
		{Arg: 1, Low: unix.SOL_SOCKET, High: unix.SOL_SOCKET}, {Arg: 2, Low: unix.SO_PROTOCOL, High: unix.SO_DOMAIN}}})
}

// shadowOptions are the options this process can set safely for the program, in spite of possible
// extra privileges: the values hold no pointers, and setting the options loads no module. A pair
// has no other options of TCP and IP.
var shadowOptions = map[int][]int{
	unix.SOL_SOCKET: {unix.SO_PROTOCOL, unix.SO_DOMAIN},
	unix.IPPROTO_TCP: {unix.TCP_NODELAY, unix.TCP_MAXSEG, unix.TCP_CORK, unix.TCP_KEEPIDLE,
		unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_SYNCNT,
		unix.TCP_LINGER2, unix.TCP_DEFER_ACCEPT, unix.TCP_WINDOW_CLAMP, unix.TCP_INFO,
		unix.TCP_QUICKACK, unix.TCP_CONGESTION,
		unix.TCP_THIN_LINEAR_TIMEOUTS, unix.TCP_THIN_DUPACK, unix.TCP_USER_TIMEOUT, unix.TCP_FASTOPEN,
		unix.TCP_NOTSENT_LOWAT,
		unix.TCP_FASTOPEN_CONNECT},
	unix.IPPROTO_IP: {unix.IP_TOS, unix.IP_TTL, unix.IP_RECVTOS, unix.IP_MTU_DISCOVER,
		unix.IP_RECVERR, unix.IP_FREEBIND, unix.IP_BIND_ADDRESS_NO_PORT},
	unix.IPPROTO_IPV6: {unix.IPV6_V6ONLY, unix.IPV6_TCLASS, unix.IPV6_RECVTCLASS,
		unix.IPV6_UNICAST_HOPS, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR,
		unix.IPV6_AUTOFLOWLABEL},
}

// maxOption is the length of the longest option, TCP_INFO, with room to grow.
const maxOption = 1024

// option serves getsockopt and setsockopt. It must not block.
func (s *supervisor) option(c *notify.Call) {
	p, err := s.findPair(c)
	if err == nil {
		p.option(c)
		return
	}
	go func() { // the kernel would answer that unix sockets have no such option
		if p, err = s.findPairShort(c); err != nil {
			c.Return(0, unix.ENOBUFS)
			return
		}
		p.option(c)
	}()
}

// option serves getsockopt and setsockopt. p is nil if the socket is no pair.
func (p *pair) option(c *notify.Call) {
	if p == nil {
		c.Continue()
		return
	}
	p.answered.Store(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	level, name := int(int32(c.Args[1])), int(int32(c.Args[2]))
	switch {
	case p.shadow < 0: // closed meanwhile
		c.Return(0, unix.EBADF)
	case !slices.Contains(shadowOptions[level], name):
		c.Return(0, unix.ENOPROTOOPT)
	case c.Nr == unix.SYS_SETSOCKOPT:
		c.Return(0, p.set(c, level, name))
	default:
		c.Return(0, p.get(c, level, name))
	}
}

func (p *pair) set(c *notify.Call, level, name int) unix.Errno {
	n := int(int32(c.Args[4]))
	if n < 0 {
		return unix.EINVAL
	}
	b := make([]byte, min(n, 64)+1)
	if _, err := c.ReadMem(c.Args[3], b[:len(b)-1]); err != nil {
		return unix.EFAULT
	}
	if level == unix.IPPROTO_TCP && name == unix.TCP_CONGESTION && !allowedCongestion(unix.ByteSliceToString(b)) {
		return unix.ENOENT
	}
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(p.shadow), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)-1), 0)
	return e
}

// allowedCongestion reports whether any user may choose an algorithm.
func allowedCongestion(name string) bool {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	return err == nil && slices.Contains(strings.Fields(string(b)), name)
}

func (p *pair) get(c *notify.Call, level, name int) unix.Errno {
	var length [4]byte
	if _, err := c.ReadMem(c.Args[4], length[:]); err != nil {
		return unix.EFAULT
	}
	n := int32(binary.NativeEndian.Uint32(length[:]))
	if n < 0 {
		return unix.EINVAL
	}
	b := make([]byte, maxOption)
	n = min(n, maxOption)
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(p.shadow), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return e
	}
	if level == unix.IPPROTO_TCP && name == unix.TCP_INFO {
		b[0] = tcpEstablished
	}
	if _, err := c.WriteMem(c.Args[3], b[:n]); err != nil {
		return unix.EFAULT
	}
	binary.NativeEndian.PutUint32(length[:], uint32(n))
	if _, err := c.WriteMem(c.Args[4], length[:]); err != nil {
		return unix.EFAULT
	}
	return 0
}

// copiedOptions are the integer options of any socket. They are copied from the program's TCP
// socket to the replacing unix socket.
var copiedOptions = []int{unix.SO_KEEPALIVE, unix.SO_OOBINLINE, unix.SO_RCVLOWAT, unix.SO_PRIORITY,
	unix.SO_REUSEADDR, unix.SO_REUSEPORT, unix.SO_BUSY_POLL}

// copyOptions sets the program's options of a TCP socket on a unix socket.
func copyOptions(to, from int) {
	copyOwner(to, from)
	for _, o := range copiedOptions {
		v, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, o)
		if was, gerr := unix.GetsockoptInt(to, unix.SOL_SOCKET, o); err == nil && gerr == nil && v != was {
			unix.SetsockoptInt(to, unix.SOL_SOCKET, o, v)
		}
	}
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if tv, err := unix.GetsockoptTimeval(from, unix.SOL_SOCKET, o); err == nil && tv.Nano() != 0 {
			unix.SetsockoptTimeval(to, unix.SOL_SOCKET, o, tv)
		}
	}
	if l, err := getLinger(from); err == nil && l.Onoff != 0 {
		unix.SetsockoptLinger(to, unix.SOL_SOCKET, unix.SO_LINGER, l)
	}
	// Buffer sizes are copied only if set by the program, because the kernel's own choice differs
	// by family.
	locked, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	if err != nil {
		return
	}
	for bit, o := range map[int]int{unix.SOCK_SNDBUF_LOCK: unix.SO_SNDBUF, unix.SOCK_RCVBUF_LOCK: unix.SO_RCVBUF} {
		if v, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, o); err == nil && locked&bit != 0 {
			unix.SetsockoptInt(to, unix.SOL_SOCKET, o, v/2) // the kernel doubles it
		}
	}
}

// copyOwner copies the owner of F_SETOWN, so that the unix socket sends SIGURG to the same process.
func copyOwner(to, from int) {
	var owner struct{ kind, id int32 } // struct f_owner_ex
	_, _, e := unix.Syscall(unix.SYS_FCNTL, uintptr(from), unix.F_GETOWN_EX, uintptr(unsafe.Pointer(&owner)))
	if e == 0 && owner.id != 0 {
		unix.Syscall(unix.SYS_FCNTL, uintptr(to), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
	}
	if sig, err := unix.FcntlInt(uintptr(from), unix.F_GETSIG, 0); err == nil && sig != 0 {
		unix.FcntlInt(uintptr(to), unix.F_SETSIG, sig)
	}
}

func getLinger(fd int) (*unix.Linger, error) {
	var l unix.Linger
	n := uint32(unsafe.Sizeof(l))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&l)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return nil, e
	}
	return &l, nil
}

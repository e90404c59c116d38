package roceudp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/rocecore"
	"viaduct/internal/sock"
	"viaduct/internal/wire/ib"
)

// bufferLen is the requested size of the socket buffers in bytes, which is more than a window of
// packets. Without a privilege the system may grant less.
const bufferLen = 8 << 20

// pollReads reports whether Poll reads the socket itself. Only then can the goroutine of a port leave
// the socket to a consumer that polls.
const pollReads = true

// A socket sends and receives packets in batches. It is the UDP socket of a port, or a connection
// of a lane.
type socket struct {
	c   io.Closer
	raw syscall.RawConn
	tx  *sync.Pool // contains *transmission

	// The runtime does not watch a UDP socket, because it would wake a thread for each packet, even if
	// a polling consumer receives the packet. These watches wake only a goroutine that waits.
	in, out *sock.Watch // nil for a lane

	trailer []byte // of a lane: follows each packet, which has no destination then
}

// A batchSys holds the arguments and results of recvmmsg for a batch.
type batchSys struct {
	hdr  [batchLen]unix.Mmsghdr
	iov  [batchLen]unix.Iovec
	name [batchLen]unix.RawSockaddrInet6

	n      int
	failed bool // the last call

	receive func(fd uintptr) // recvmmsg; made once, because each function value is an allocation
}

func newBatch() *batch {
	b := new(batch)
	s := &b.sys
	for i := range batchLen {
		s.iov[i].Base = &b.buf[i][0]
		s.iov[i].SetLen(len(b.buf[i]))
		h := &s.hdr[i].Hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&s.name[i])), unix.SizeofSockaddrInet6
		h.Iov, h.Iovlen = &s.iov[i], 1
	}
	s.receive = s.recvmmsg
	return b
}

// recvmmsg receives packets without waiting, and sets s.n and s.failed.
func (s *batchSys) recvmmsg(fd uintptr) {
	for {
		r, _, e := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&s.hdr[0])),
			batchLen, unix.MSG_DONTWAIT, 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e == 0 {
			s.n = int(r)
		}
		s.failed = e != 0 && e != unix.EAGAIN
		return
	}
}

func newSocket(at netip.AddrPort, shared bool) (socket, error) {
	c, err := listen(at, shared)
	if err != nil {
		return socket{}, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return socket{}, err
	}
	var f *os.File
	in, out := new(sock.Watch), new(sock.Watch)
	if cerr := raw.Control(func(fd uintptr) {
		if f, err = unwatched(int(fd)); err == nil && !(in.Open(int(f.Fd()), unix.EPOLLIN) && out.Open(int(f.Fd()), unix.EPOLLOUT)) {
			err = unix.EMFILE
		}
	}); err == nil {
		err = cerr
	}
	var s socket
	if err == nil {
		s, err = socketOf(f)
	}
	if err != nil {
		in.Close()
		out.Close()
		f.Close()
		return socket{}, err
	}
	s.in, s.out = in, out
	return s, nil
}

// unwatched duplicates a descriptor. The runtime does not watch the duplicate, because it is in
// blocking mode; every call of a socket says that it must not block.
func unwatched(fd int) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(dup, false); err != nil {
		unix.Close(dup)
		return nil, err
	}
	return os.NewFile(uintptr(dup), "udp"), nil
}

// listen opens a UDP socket with the options RoCEv2 needs. Shared sockets of one user can have the
// same address.
func listen(at netip.AddrPort, shared bool) (*net.UDPConn, error) {
	var cfg net.ListenConfig
	if shared {
		cfg.Control = share
	}
	pc, err := cfg.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return nil, err
	}
	c := pc.(*net.UDPConn)
	raw, err := c.SyscallConn()
	if err == nil {
		var bad error
		if err = raw.Control(func(fd uintptr) { bad = setOptions(int(fd), at.Addr()) }); err == nil {
			err = bad
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// socketOf returns a socket that uses the descriptor of c.
func socketOf(c interface {
	io.Closer
	syscall.Conn
}) (socket, error) {
	raw, err := c.SyscallConn()
	return socket{c: c, raw: raw, tx: &sync.Pool{New: func() any { return new(transmission) }}}, err
}

// setOptions makes a socket send IPv4 packets with identification 0 and DF, and without a UDP
// checksum, because the invariant CRC replaces it. own is the address of the socket.
// [ROCE-NET-2] [ROCE-NET-3]
func setOptions(fd int, own netip.Addr) error {
	for _, o := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, bufferLen)
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferLen) // needs a privilege
	if !own.Is4() {
		// Send packets to an IPv6 group through the interface that has the address. For IPv4 the
		// bound address selects the interface.
		if index, err := interfaceOf(own); err == nil {
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index)
		}
		// rxe sends no checksum over IPv6 either. Without this option the socket drops such
		// packets.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
}

func (s *socket) close() error {
	if s.in != nil {
		s.in.Close()
		s.out.Close()
	}
	return s.c.Close()
}

// wait calls f, which receives, and waits for packets if f returns false. It returns an error if the
// socket is closed.
func (s *socket) wait(f func() bool) error {
	if s.in == nil {
		return s.raw.Read(func(uintptr) bool { return f() })
	}
	if f() {
		return nil
	}
	return s.sleep(s.in)
}

// sleep waits for a report of one of the watches.
func (s *socket) sleep(w *sock.Watch) (err error) {
	if cerr := s.raw.Control(func(fd uintptr) {
		err = w.Sleep(func(uintptr) bool { return w.Ready(int(fd)) })
	}); cerr != nil {
		return cerr
	}
	return err
}

// receive reads packets into b without waiting, and returns their number. over is true if the
// socket failed, which only the socket of a lane does.
func (s *socket) receive(b *batch) (n int, over bool) {
	for i := range b.sys.n { // changed by the previous call
		b.sys.hdr[i].Hdr.Namelen = unix.SizeofSockaddrInet6
		b.sys.hdr[i].Hdr.Flags = 0
	}
	b.sys.n, b.sys.failed = 0, false
	s.raw.Control(b.sys.receive) // does nothing if the socket is closed
	n, over = b.sys.n, b.sys.failed
	for i := range n {
		h := &b.sys.hdr[i]
		b.len[i] = int(h.Len)
		if h.Hdr.Flags&unix.MSG_TRUNC != 0 {
			b.len[i] = len(b.buf[i]) + 1
		}
		b.from[i] = address(&b.sys.name[i])
	}
	return n, over
}

// address converts a socket address. An IPv4 address mapped to IPv6 becomes an IPv4 address.
func address(a *unix.RawSockaddrInet6) netip.AddrPort {
	port := func(p *uint16) uint16 { b := (*[2]byte)(unsafe.Pointer(p)); return uint16(b[0])<<8 | uint16(b[1]) }
	if a.Family == unix.AF_INET {
		a4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom4(a4.Addr), port(&a4.Port))
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), port(&a.Port))
}

// sockaddr stores an address and a port in a, and returns the length of the address in bytes.
func sockaddr(a *unix.RawSockaddrInet6, to netip.Addr, port uint16) uint32 {
	put := func(p *uint16) { b := (*[2]byte)(unsafe.Pointer(p)); b[0], b[1] = byte(port>>8), byte(port) }
	*a = unix.RawSockaddrInet6{}
	if to.Is4() {
		a4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
		a4.Family, a4.Addr = unix.AF_INET, to.As4()
		put(&a4.Port)
		return unix.SizeofSockaddrInet4
	}
	a.Family, a.Addr = unix.AF_INET6, to.As16()
	put(&a.Port)
	return unix.SizeofSockaddrInet6
}

// A transmission holds the arguments of sendmmsg.
type transmission struct {
	hdr  [batchLen]unix.Mmsghdr
	iov  [batchLen][2]unix.Iovec // the packet, and the trailer in a lane
	name [batchLen]unix.RawSockaddrInet6
}

// send sends the packets of out from number first to number end, exclusive. Packets without a
// destination go to peer. taken is the number of packets the socket accepted, less than the number
// of packets if the socket is full. refused is the number of taken packets the system refused to
// send; refused packets count as lost. A closed socket takes and refuses all packets.
func (s *socket) send(out *rocecore.Output, first, end int, peer netip.Addr) (taken, refused int) {
	t := s.tx.Get().(*transmission)
	defer s.tx.Put(t)
	for at := first; at < end; {
		n := min(batchLen, end-at)
		for i := range n {
			b, to := out.Packet(at + i)
			if !to.IsValid() {
				to = peer
			}
			iov := &t.iov[i]
			iov[0].Base = &b[0]
			iov[0].SetLen(len(b))
			h := &t.hdr[i].Hdr
			if s.trailer != nil {
				iov[1].Base = &s.trailer[0]
				iov[1].SetLen(len(s.trailer))
				*h = unix.Msghdr{Iov: &iov[0], Iovlen: 2}
				continue
			}
			*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&t.name[i])),
				Namelen: sockaddr(&t.name[i], to, ib.Port), Iov: &iov[0], Iovlen: 1}
		}
		done, bad, err := s.sendBatch(t, n)
		at, taken, refused = at+done, taken+done, refused+bad
		if err != nil { // the socket is closed
			return end - first, refused + end - at
		}
		if done < n {
			break
		}
	}
	return taken, refused
}

// sendBatch sends the first n packets of t. done is the number of packets the socket accepted,
// refused the number of accepted packets that the system refused to send. The error means that the
// socket is closed.
func (s *socket) sendBatch(t *transmission, n int) (done, refused int, err error) {
	err = s.raw.Control(func(fd uintptr) {
		for done < n {
			r, _, e := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&t.hdr[done])),
				uintptr(n-done), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
			switch e {
			case 0:
				done += int(r)
			case unix.EINTR:
			case unix.EAGAIN:
				return
			default: // an error of the first packet
				done++
				refused++
			}
		}
	})
	return done, refused, err
}

// sendOne sends a message through a lane without waiting.
func (s *socket) sendOne(b []byte) error {
	var bad error
	if err := s.raw.Control(func(fd uintptr) {
		bad = unix.Send(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}); err != nil {
		return err
	}
	return bad
}

// waitRoom calls f, which sends, until f returns true. It waits for room in the socket between the
// calls. It returns an error if the socket is closed.
func (s *socket) waitRoom(f func() bool) error {
	if s.out == nil {
		return s.raw.Write(func(uintptr) bool { return f() })
	}
	for !f() {
		if err := s.sleep(s.out); err != nil {
			return err
		}
	}
	return nil
}

package roceudp

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
	"viaduct/internal/wire/ib"
)

// Shares and lanes use AF_UNIX sockets with abstract names. Such a name belongs to a network
// namespace, as UDP ports do, and the kernel removes the name with the process. Every process can
// have such a socket, so both ends of a lane ask the kernel for the user of the other end.

// reserveSlot takes a free slot by a name, for a process of user uid. Slot 0 means that none is free,
// or that other processes cannot tell which user uid is and so refuse lanes.
func reserveSlot(uid int) (slot uint8, name io.Closer) {
	if uid == sock.OverflowUID {
		return 0, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil
	}
	f := os.NewFile(uintptr(fd), "share")
	first := rand.IntN(lastSlot)
	for i := range lastSlot {
		slot := firstSlot + uint8((first+i)%lastSlot)
		if unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@viaduct-roce-share-%d", slot)}) == nil {
			return slot, f
		}
	}
	f.Close()
	return 0, nil
}

// laneAddr returns the address at which the port of a slot accepts lanes.
func laneAddr(own netip.Addr, slot uint8) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@viaduct-roce-%v-%d", own, slot)}
}

// meetTimeout bounds the time in which the other ports of an address have to answer. A port that
// is stopped for longer is connected when it goes on.
const meetTimeout = 5 * time.Second

// meet connects the port with the other ports of its address, and accepts connections of later
// ports. slot is the slot of the port. An error means that the port can't be shared.
func (p *Port) meet(slot uint8) error {
	l, err := net.ListenUnix("unixpacket", laneAddr(p.addr, slot))
	if err != nil {
		return err
	}
	p.keep(l)
	p.slot = slot
	p.ended.Go(func() { p.accept(l) })
	var asked sync.WaitGroup
	for other := uint8(firstSlot); other <= lastSlot; other++ {
		if other == slot {
			continue
		}
		c, err := net.DialUnix("unixpacket", nil, laneAddr(p.addr, other))
		if err != nil || !p.keep(c) {
			continue
		}
		asked.Add(1)
		p.ended.Go(func() { p.greet(c, other, asked.Done) })
	}
	met := make(chan struct{})
	go func() { asked.Wait(); close(met) }()
	select {
	case <-met:
	case <-time.After(meetTimeout):
	}
	return nil
}

// greet opens a lane by a connection to the port of another slot. It calls met when the lane is
// open or can't be opened.
func (p *Port) greet(c *net.UnixConn, other uint8, met func()) {
	defer p.drop(c)
	s, err := laneSocket(p.addr, c)
	if err == nil {
		if _, err = c.Write([]byte{p.slot}); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
	}
	var l *lane
	if err == nil {
		l = p.addLane(other, s, nil)
	}
	met()
	if l != nil {
		p.serveLane(l)
	}
}

// accept accepts lanes until the listener is closed.
func (p *Port) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			select {
			case <-p.done:
				return
			case <-time.After(10 * time.Millisecond): // no descriptors
				continue
			}
		}
		if p.keep(c) {
			p.ended.Go(func() { p.welcome(c) })
		}
	}
}

// welcome answers the greeting of another port.
func (p *Port) welcome(c *net.UnixConn) {
	defer p.drop(c)
	s, err := laneSocket(p.addr, c)
	if err != nil {
		return
	}
	var b [1]byte
	if n, err := c.Read(b[:]); err != nil || n != 1 || b[0] < firstSlot || b[0] > lastSlot || b[0] == p.slot {
		return
	}
	if l := p.addLane(b[0], s, []byte{p.slot}); l != nil {
		p.serveLane(l)
	}
}

// laneSocket prepares a connection for packets from the address own. A connection with a process of
// another user is an error.
func laneSocket(own netip.Addr, c *net.UnixConn) (socket, error) {
	s, err := socketOf(c)
	if err != nil {
		return s, err
	}
	s.trailer = make([]byte, trailerLen)
	trailer{from: netip.AddrPortFrom(own, ib.Port), start: finalStop}.put(s.trailer)
	cerr := s.raw.Control(func(fd uintptr) {
		_, err = sock.SameUser(int(fd))
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, bufferLen)
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bufferLen) // needs a privilege
	})
	if err == nil {
		err = cerr
	}
	return s, err
}

// share lets other sockets of the user bind the same address.
func share(_, _ string, c syscall.RawConn) error {
	var bad error
	if err := c.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); err != nil {
		return err
	}
	return bad
}

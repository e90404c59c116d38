//go:build !linux

package roceudp

import (
	"errors"
	"net"
	"net/netip"

	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// pollReads is false, because only wait reads the socket: Poll gets what wait has read.
const pollReads = false

// A socket is a UDP socket. A goroutine reads one packet at a time in wait, and hands it to receive
// through the channel.
type socket struct {
	c       *net.UDPConn
	arrived chan arrival
}

type arrival struct {
	b    []byte
	from netip.AddrPort
}

type batchSys struct{}

func newBatch() *batch { return new(batch) }

func listen(at netip.AddrPort, _ bool) (*net.UDPConn, error) {
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
}

func newSocket(at netip.AddrPort, shared bool) (socket, error) {
	c, err := listen(at, shared)
	return socket{c, make(chan arrival, 1)}, err
}

func (s *socket) close() error { return s.c.Close() }

// wait waits for a packet and calls f, which receives, until the packet is handled. It returns an
// error if the socket is closed.
func (s *socket) wait(f func() bool) error {
	b := make([]byte, maxPacket+1)
	n, from, err := s.c.ReadFromUDPAddrPort(b)
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	if err == nil {
		s.arrived <- arrival{b[:n], netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
		for f() || len(s.arrived) > 0 {
		}
	}
	return nil
}

// receive copies a packet into b, and returns 1, or 0 if none has arrived.
func (s *socket) receive(b *batch) (n int, over bool) {
	select {
	case a := <-s.arrived:
		copy(b.buf[0][:], a.b)
		b.len[0], b.from[0] = len(a.b), a.from
		return 1, false
	default:
		return 0, false
	}
}

// send sends the packets of out from number first to number end, exclusive. Packets without a
// destination go to peer. It waits while the socket is full, so the socket accepts all packets.
// refused is the number of packets that the system refused to send; they count as lost.
func (s *socket) send(out *rocecore.Output, first, end int, peer netip.Addr) (taken, refused int) {
	for i := first; i < end; i++ {
		b, to := out.Packet(i)
		if !to.IsValid() {
			to = peer
		}
		if _, err := s.c.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, ib.Port)); err != nil {
			refused++
		}
	}
	return end - first, refused
}

// sendOne returns errors.ErrUnsupported, because lanes are implemented for Linux only.
func (s *socket) sendOne([]byte) error { return errors.ErrUnsupported }

// waitRoom calls f until f returns true. On this system f itself waits for room.
func (s *socket) waitRoom(f func() bool) error {
	for !f() {
	}
	return nil
}

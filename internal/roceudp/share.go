package roceudp

import (
	"io"
	"net/netip"
	"os"

	"viaduct/internal/wire/ib"
)

// A Share is a range of queue pair numbers that only its owner uses. The owners of different shares
// can have ports of the same address if they belong to the same user. The kernel gives an arriving
// packet to any of these ports; the queue pair number of the packet says to which port it belongs.
// See [lane].
//
// A share has 65536 numbers. Their upper 8 bits are the slot of the share. There are lastSlot
// shares in a network namespace.
type Share struct {
	slot uint8     // 0 if there is no share for this process
	name io.Closer // reserves the slot; nil for slot 0
}

const (
	slotShift = 16
	firstSlot = 1   // the numbers of slot 0 include ManagementQPN
	lastSlot  = 254 // the numbers of slot 255 include MulticastQPN
)

func slotOf(qpn uint32) uint8 { return uint8(qpn >> slotShift) }

// NewShare reserves a free share. If there is none, or if the process is of the user that stands for
// unknown users (65534), the result has all numbers, and its ports are exclusive: no other port can
// have their addresses. There are no shares on systems other than Linux.
func NewShare() *Share {
	s := new(Share)
	s.slot, s.name = reserveSlot(os.Geteuid())
	return s
}

// Close makes the share free. The owner must not use its numbers any more.
func (s *Share) Close() error {
	if s.name == nil {
		return nil
	}
	return s.name.Close()
}

// Numbers returns the first and the last queue pair number of the share.
func (s *Share) Numbers() (first, last uint32) {
	if s.slot == 0 {
		const reserved = 17 // lower numbers are for management
		return reserved, ib.MulticastQPN - 1
	}
	first = uint32(s.slot) << slotShift
	return first, first + 1<<slotShift - 1
}

// Has reports whether a queue pair number belongs to the share.
func (s *Share) Has(qpn uint32) bool { return s.slot == 0 || slotOf(qpn) == s.slot }

// Open binds port 4791 of addr, an address of this host, and starts to receive. [ROCE-NET-1]
// [ROCE-NET-2]
func (s *Share) Open(addr netip.Addr) (*Port, error) { return s.open(addr, ib.Port) }

// Open opens the port of addr like [Share.Open], with a share of its own, which it closes with the
// port.
func Open(addr netip.Addr) (*Port, error) {
	s := NewShare()
	p, err := s.Open(addr)
	if err != nil {
		s.Close()
		return nil, err
	}
	p.keep(s)
	return p, nil
}

package sockdiag

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// TCP's states, as the kernel numbers them.
const (
	tcpEstablished = 1
	tcpSynRecv     = 3
	tcpListen      = 10
)

// A TCPSocket is one end of a TCP connection, as the kernel's socket monitor shows it. The zero
// value is no socket.
type TCPSocket struct {
	state byte
	uid   uint32
	inode uint32 // number of the socket's file; 0 until an accept call has made the file
}

// Established reports whether the connection is open in both directions.
func (s TCPSocket) Established() bool { return s.state == tcpEstablished }

// Accepted reports whether the socket has a file: an accept call has taken the connection from its
// listener's queue.
func (s TCPSocket) Accepted() bool { return s.inode != 0 }

// Deferred reports whether the connection is not yet in the listener's queue: the kernel waits for
// the first bytes (TCP_DEFER_ACCEPT), or for room in a full queue.
func (s TCPSocket) Deferred() bool { return s.state == tcpSynRecv }

// UID returns the number of the user who owns the socket.
func (s TCPSocket) UID() uint32 { return s.uid }

// FindServerEnd returns the listener's end of a connection; local is the address of that end. It
// returns the zero value if there is no such connection, or if the query fails.
func FindServerEnd(local, remote netip.AddrPort) TCPSocket {
	c, err := Open()
	if err != nil {
		return TCPSocket{}
	}
	defer c.Close()
	s, _ := c.Find(local, remote)
	return s
}

// A Listener is a TCP socket that listens.
type Listener struct {
	Addr netip.Addr
	UID  int // number of the user who made it
}

// Listeners returns the TCP sockets that listen at a port.
func Listeners(port uint16) (found []Listener, err error) {
	c, err := Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var r [tcpRequestLen]byte
		tcpRequest(r[:], family, 1<<tcpListen)
		binary.BigEndian.PutUint16(r[8:], port)
		err := c.dump(r[:], func(m []byte) {
			if len(m) < tcpMessageLen || binary.BigEndian.Uint16(m[4:]) != port {
				return
			}
			l := Listener{netip.AddrFrom4([4]byte(m[8:12])), int(binary.NativeEndian.Uint32(m[64:]))}
			if family == unix.AF_INET6 {
				l.Addr = netip.AddrFrom16([16]byte(m[8:24])).Unmap()
			}
			found = append(found, l)
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Owners returns the users whose TCP sockets listen at a port, once for each socket.
func Owners(port uint16) (uids []int, err error) {
	all, err := Listeners(port)
	for _, l := range all {
		uids = append(uids, l.UID)
	}
	return uids, err
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// UnixSockets returns the cookies of all unix sockets.
func UnixSockets() (map[uint64]bool, error) {
	c, err := Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all := map[uint64]bool{}
	var r [24]byte // struct unix_diag_req
	r[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0))
	err = c.dump(r[:], func(m []byte) {
		if len(m) >= 16 { // struct unix_diag_msg
			all[uint64(binary.NativeEndian.Uint32(m[8:]))|uint64(binary.NativeEndian.Uint32(m[12:]))<<32] = true
		}
	})
	return all, err
}

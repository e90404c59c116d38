package iwarp

import (
	"encoding/binary"
	"io"
)

// RemoteAddr is an address in the peer's memory, as sent by the peer.
type RemoteAddr struct {
	STag uint32 // names the peer's region
	TO   uint64 // Tagged Offset, bytes
}

// RemoteAddrLen is the length in bytes of an encoded RemoteAddr.
const RemoteAddrLen = 12

// Append appends the RemoteAddrLen bytes of a to b: STag, then TO, big-endian. No RFC defines this
// encoding, because applications send addresses in their own messages.
func (a RemoteAddr) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, a.STag), a.TO)
}

// ParseRemoteAddr decodes the RemoteAddr at the front of b. The error is io.ErrUnexpectedEOF if b is
// too short. The address is input from the network: the peer checks each use.
func ParseRemoteAddr(b []byte) (RemoteAddr, error) {
	if len(b) < RemoteAddrLen {
		return RemoteAddr{}, io.ErrUnexpectedEOF
	}
	return RemoteAddr{STag: binary.BigEndian.Uint32(b), TO: binary.BigEndian.Uint64(b[4:])}, nil
}

// Add returns the address n bytes further.
func (a RemoteAddr) Add(n int) RemoteAddr {
	a.TO += uint64(n)
	return a
}

// Remote returns the peer's address of the byte at offset off, without checking off.
func (r *MemoryRegion) Remote(off int) RemoteAddr {
	return RemoteAddr{STag: r.STag(), TO: r.TO()}.Add(off)
}

package vitcpwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// CELen is the length in bytes of the fixed part of a CE header. Security information follows in
// the segment. [VIT-3.2-1] [V-04]
const CELen = 44

// MaxDiscriminator is the maximum length of a discriminator in bytes. It is the size of the field
// in the header. [V-04]
const MaxDiscriminator = 16

// MaxSecurity is the maximum length of the security information in bytes. It must fit into the
// single segment of a connect message. [V-06]
const MaxSecurity = MaxSegment - HeaderLen - CELen

// ErrDiscriminator reports a discriminator longer than MaxDiscriminator. A request with such a
// discriminator matches no VI. [V-04]
var ErrDiscriminator = errors.New("vitcpwire: discriminator longer than 16 bytes")

// A Discriminator distinguishes the VI applications of a host. Two values are equal (==) if their
// lengths and bytes are equal. Padding is ignored. [VIT-3.2-3] [V-04]
type Discriminator struct {
	n uint8
	b [MaxDiscriminator]byte
}

// MakeDiscriminator returns a discriminator with a copy of b. b may be empty. The error is
// ErrDiscriminator if b is longer than MaxDiscriminator.
func MakeDiscriminator(b []byte) (d Discriminator, err error) {
	if len(b) > MaxDiscriminator {
		return d, ErrDiscriminator
	}
	d.n = uint8(copy(d.b[:], b))
	return d, nil
}

// Len returns the length of d in bytes.
func (d Discriminator) Len() int { return int(d.n) }

// Append appends the bytes of d, without padding, to b.
func (d Discriminator) Append(b []byte) []byte { return append(b, d.b[:d.n]...) }

// Compare compares the bytes of d and e, padded with zeros, and then their lengths. It returns -1
// if d comes before e, 0 if they are equal, and 1 otherwise. [V-32]
func (d Discriminator) Compare(e Discriminator) int {
	for i, v := range d.b {
		if w := e.b[i]; v != w {
			return sign(int(v) - int(w))
		}
	}
	return sign(int(d.n) - int(e.n))
}

func sign(v int) int {
	switch {
	case v < 0:
		return -1
	case v > 0:
		return 1
	}
	return 0
}

// String returns d as quoted text if printable ASCII, and in hexadecimal otherwise.
func (d Discriminator) String() string {
	for _, c := range d.b[:d.n] {
		if c < 0x20 || c > 0x7e {
			return fmt.Sprintf("0x%x", d.b[:d.n])
		}
	}
	return fmt.Sprintf("%q", d.b[:d.n])
}

// A CE is the header of a message of connection set-up. "Calling" always means the sender: a
// Connect Accept has the acceptor's own attributes and window in the calling fields. [VIT 3.2]
// [V-16]
type CE struct {
	Attributes Attributes
	MTU        uint32        // maximum message length in bytes; proposed in a request, agreed in an accept [VIT-3.2-4] [V-14]
	Calling    Discriminator // discriminator of the sender
	ReadWindow uint16        // number of RDMA Reads that the sender serves at once [V-26]
	Called     Discriminator // discriminator of the receiver
}

// Append appends the CELen bytes of c to b. The caller appends the security information, if there
// is any.
func (c CE) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(c.Attributes))
	b = binary.BigEndian.AppendUint16(b, uint16(c.Calling.n))
	b = binary.BigEndian.AppendUint32(b, c.MTU)
	b = append(b, c.Calling.b[:]...)
	b = binary.BigEndian.AppendUint16(b, c.ReadWindow)
	b = binary.BigEndian.AppendUint16(b, uint16(c.Called.n))
	return append(b, c.Called.b[:]...)
}

// ParseCE decodes the header at the front of b and returns its length. The error is
// io.ErrUnexpectedEOF if b is too short, and ErrDiscriminator if a discriminator is too long. In
// that case c has the other fields.
func ParseCE(b []byte) (c CE, n int, err error) {
	if len(b) < CELen {
		return CE{}, 0, io.ErrUnexpectedEOF
	}
	c.Attributes = Attributes(binary.BigEndian.Uint16(b))
	c.MTU = binary.BigEndian.Uint32(b[4:])
	c.ReadWindow = binary.BigEndian.Uint16(b[24:])
	callingOK := c.Calling.set(binary.BigEndian.Uint16(b[2:]), b[8:24])
	calledOK := c.Called.set(binary.BigEndian.Uint16(b[26:]), b[28:44])
	if !callingOK || !calledOK {
		return c, CELen, ErrDiscriminator
	}
	return c, CELen, nil
}

// set copies the first n of the 16 bytes of field to d. It returns false if n is out of range.
func (d *Discriminator) set(n uint16, field []byte) bool {
	if n > MaxDiscriminator {
		return false
	}
	d.n = uint8(copy(d.b[:], field[:n]))
	return true
}

// String describes c in one line.
func (c CE) String() string {
	return fmt.Sprintf("calling=%v called=%v mtu=%d window=%d %v", c.Calling, c.Called, c.MTU,
		c.ReadWindow, c.Attributes)
}

// LogValue describes c for logs.
func (c CE) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("calling", c.Calling.String()),
		slog.String("called", c.Called.String()),
		slog.Uint64("mtu", uint64(c.MTU)),
		slog.Int("window", int(c.ReadWindow)),
		slog.String("attributes", c.Attributes.String()),
	)
}

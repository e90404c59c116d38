package ddp

// A Cutter divides a message into segments. Every segment except the last is as long as MULPDU
// allows. Offsets rise. A message without payload takes exactly one segment. [DDP-5.2-1]
// [DDP-5.2-3] [DDP-5.2-8] [DDP-5.3-2]
type Cutter struct {
	left uint64
	off  uint64
	room uint64
	done bool
}

// NewCutter returns a Cutter for a message of n bytes. mulpdu is the maximum length of a ULPDU in
// bytes, including the header. header is TaggedLen or UntaggedLen.
func NewCutter(n uint64, mulpdu, header int) Cutter {
	if mulpdu <= header {
		panic("ddp: MULPDU without room for payload")
	}
	return Cutter{left: n, room: uint64(mulpdu - header)}
}

// Next returns the offset and length of the next segment's payload, and whether it is the last
// segment. ok is false if there is no further segment. The offset goes into MO, or is added to the
// TO of the message. [DDP-5.2-5] [DDP-5.2-7] [DDP-4.1-3] [DDP-4.1-4] [DDP-4.1-5] [DDP-4.1-6]
// [DDP-4.3-10] [MPA-3-3] [MPA-4.5-5]
func (c *Cutter) Next() (off uint64, n int, last, ok bool) {
	if c.done {
		return 0, 0, false, false
	}
	k := min(c.left, c.room)
	off = c.off
	c.off += k
	c.left -= k
	c.done = c.left == 0
	return off, int(k), c.done, true
}

// Rest returns the offset of the next segment, the number of remaining bytes, and the payload
// length of a segment before the last.
func (c *Cutter) Rest() (off, n uint64, room int) { return c.off, c.left, int(c.room) }

// Segments returns the number of segments for a message of n bytes. The other arguments are as for
// NewCutter.
func Segments(n uint64, mulpdu, header int) uint64 {
	room := uint64(mulpdu - header)
	return max(1, (n+room-1)/room)
}

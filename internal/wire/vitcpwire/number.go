package vitcpwire

// A Number is a message number. Numbers rise by 1 and wrap at 2^32. They are compared in serial
// arithmetic: if two numbers are less than 2^31 apart, the later number counts as greater.
// [VIT-3.1-10] [V-37]
type Number uint32

// Less reports whether n comes before m.
func (n Number) Less(m Number) bool { return int32(n-m) < 0 }

// Add returns the number k messages after n.
func (n Number) Add(k int) Number { return n + Number(uint32(k)) }

// Sub returns the number of messages from m to n. It is negative if n comes before m.
func (n Number) Sub(m Number) int { return int(int32(n - m)) }

// A Count is the number of receive descriptors posted in the life of a connection, modulo 2^16.
// [VIT-3.1-16] [V-20]
type Count uint16

// Less reports whether c is the earlier of two counts less than 2^15 apart.
func (c Count) Less(d Count) bool { return int16(c-d) < 0 }

// Add returns the count after k more descriptors.
func (c Count) Add(k int) Count { return c + Count(uint16(k)) }

// Sub returns c-d. It is negative if c is the earlier count.
func (c Count) Sub(d Count) int { return int(int16(c - d)) }

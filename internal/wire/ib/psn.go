package ib

// A PSN is a packet sequence number: 24 bits that wrap. [ROCE-BTH-5]
type PSN uint32

const (
	psnMask = 1<<24 - 1
	psnHalf = 1 << 23
)

// Add returns the number n packets after p. n may be negative.
func (p PSN) Add(n int) PSN { return PSN(int(p)+n) & psnMask }

// Sub returns how many packets p is after q, negative if p is before q. Because the numbers wrap,
// the result is between -2^23 and 2^23-1. [ROCE-BTH-5]
func (p PSN) Sub(q PSN) int {
	d := int(p-q) & psnMask
	if d >= psnHalf {
		return d - psnMask - 1
	}
	return d
}

// Less reports whether p is before q.
func (p PSN) Less(q PSN) bool { return p.Sub(q) < 0 }

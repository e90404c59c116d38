package portmap

import "time"

// [SDP 7.3.1.4] [SDP-7.3.1.4-6] [SDP-7.3.1.4-7] [SDP-7.3.1.4-8]

// A PmTime is the lifetime of an answer in wire form: two scales with a gap.
//
//	0         for one connection, not to be kept
//	1..127    in units of 250 ms, up to 31.75 s
//	128..254  in seconds, 128 s to 254 s
//	255       for ever
type PmTime uint8

const (
	// Once means that the answer is for a single connection and must not be cached.
	Once PmTime = 0
	// Forever means that the answer may be cached without limit.
	Forever PmTime = 255

	// defaultPmTime is 30 s, long enough for any connection set-up and short enough for a moved
	// service. [SDP-7.3.1.4-9] [D-68]
	defaultPmTime PmTime = 120
)

// forever is the duration of PmTime 255. Such an answer is kept until a connection fails, and
// renewed once a day. [D-64]
const forever = 24 * time.Hour

// Duration returns how long an answer may be kept after receipt: 0 for Once, and a day for Forever.
func (p PmTime) Duration() time.Duration {
	switch {
	case p == Forever:
		return forever
	case p >= 128:
		return time.Duration(p) * time.Second
	}
	return time.Duration(p) * 250 * time.Millisecond
}

// PmTimeFor returns the longest lifetime of at most d: for example, 500 ms for 600 ms. For any d
// above 254 s the result is 254 s, because Forever has no end.
func PmTimeFor(d time.Duration) PmTime {
	switch {
	case d < 250*time.Millisecond:
		return Once
	case d >= 254*time.Second:
		return 254
	case d >= 128*time.Second:
		return PmTime(d / time.Second)
	}
	return PmTime(min(d/(250*time.Millisecond), 127))
}

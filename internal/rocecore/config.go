package rocecore

import (
	"time"

	"viaduct/internal/wire/ib"
)

// A Config holds the parameters of the receiving side of a connection.
type Config struct {
	Transport ib.Transport // RC or UC
	MTU       int          // bytes of payload: 256, 512, 1024, 2048 or 4096 [ROCE-NET-6]
	PeerQPN   uint32
	PKey      uint16 // 0 means the default partition

	PSN       ib.PSN // first PSN of the peer
	Access    Access // limits the peer in addition to the rights of regions
	MaxServed int    // Reads and atomic operations remembered for repetition [ROCE-RESP-20]
	RNRTimer  uint8  // timer code of RNR NAKs, 0 to 31
}

// A SendConfig holds the parameters of the sending side of a connection.
type SendConfig struct {
	PSN      ib.PSN        // number of the first packet
	MaxReads int           // greatest number of outstanding Reads and atomic operations
	Timeout  time.Duration // time without an acknowledgement until retransmission; 0 means never
	Retries  int           // retransmissions without progress until the peer is given up
	RNRRetry int           // retransmissions after RNR NAKs until the peer is given up; RNRForever means no limit
	Window   int           // greatest number of unacknowledged packets; 0 means MaxWindow
}

const (
	// MaxWindow is the greatest number of unacknowledged packets. [ROCE-REQ-5]
	MaxWindow = 128

	// RNRForever is the value of SendConfig.RNRRetry for no limit. [ROCE-REQ-12]
	RNRForever = 7

	// MaxMessage is the greatest length of a message in bytes.
	MaxMessage = 1 << 31
)

// AckTimeout returns the time a code of an ACK timeout, 0 to 31, stands for. Code 0 means no
// timeout, and gives 0. [ROCE-REQ-9]
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << (code & 31)
}

// ValidMTU reports whether n bytes is a payload both ends can agree on: a power of two from 256 to
// 4096. [ROCE-NET-6]
func ValidMTU(n int) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

package rocecore

import (
	"time"

	"viaduct/internal/wire/ib"
)

// A Config is what a connection needs to receive.
type Config struct {
	Transport ib.Transport // RC or UC
	MTU       int          // bytes of payload: 256, 512, 1024, 2048 or 4096 [ROCE-NET-6]
	PeerQPN   uint32
	PKey      uint16 // 0 means the default partition

	PSN       ib.PSN // that the peer begins with
	Access    Access // what the peer may do at all
	MaxServed int    // Reads and atomic operations of the peer that are remembered [ROCE-RESP-20]
	RNRTimer  uint8  // code of the time that a peer waits which finds no receive
}

// A SendConfig is what a connection needs to send.
type SendConfig struct {
	PSN      ib.PSN        // of the first packet
	MaxReads int           // Reads and atomic operations outstanding at a time
	Timeout  time.Duration // without acknowledgement until packets go again; 0 means for ever
	Retries  int           // how often packets go again without progress
	RNRRetry int           // how often a peer that has no receive is tried again; RNRForever for no end
	Window   int           // packets without acknowledgement; 0 means MaxWindow
}

const (
	// MaxWindow is the greatest number of packets without acknowledgement. [ROCE-REQ-5]
	MaxWindow = 128

	// RNRForever as SendConfig.RNRRetry tries again without an end. [ROCE-REQ-12]
	RNRForever = 7

	// MaxMessage is the greatest length in bytes of a message.
	MaxMessage = 1 << 31
)

// AckTimeout returns the time that the code of an ACK timeout stands for, 0 to 31. [ROCE-REQ-9]
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << (code & 31)
}

// ValidMTU reports whether n is the payload of a packet that both ends can agree on. [ROCE-NET-6]
func ValidMTU(n int) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

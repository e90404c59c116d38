package ddp

import (
	"errors"
	"fmt"

	"viaduct/internal/fault"
)

// Version is the protocol version in every segment. [DDP-4.1-10] [DDP-4.1-11] [MPA-C-1]
const Version = 1

// MaxMessage is the maximum length of a message in bytes. [DDP-5.2-2] [DDP-1.2-2]
const MaxMessage = 1<<32 - 1

// These constants describe the DDP control octet. Reserved bits are sent as zero and ignored on
// receipt. [DDP-4.1-8] [DDP-4.1-9] [I-30]
//
//	 0 1 2 3 4 5 6 7
//	+-+-+-------+---+
//	|T|L| Rsvd  |DV |
//	+-+-+-------+---+
const (
	ctrlTagged  = 0x80
	ctrlLast    = 0x40
	ctrlVersion = 0x03
)

// ErrVersion reports a segment with a DDP version other than Version.
var ErrVersion = errors.New("ddp: unknown version")

// ErrModel reports a header of the other buffer model than the parser decodes.
var ErrModel = errors.New("ddp: header of the other buffer model")

// IsTagged reports whether the segment whose control octet is c uses the Tagged Buffer Model. This
// bit is valid even if the version is unknown. [DDP-4.1-1] [DDP-4.1-2] [I-44]
func IsTagged(c byte) bool { return c&ctrlTagged != 0 }

// IsLast reports whether the segment with control octet c ends a message. [DDP-4.1-3]
func IsLast(c byte) bool { return c&ctrlLast != 0 }

// HeaderLen returns the header length in bytes of a segment whose control octet is c.
func HeaderLen(c byte) int {
	if IsTagged(c) {
		return TaggedLen
	}
	return UntaggedLen
}

func control(tagged, last bool) byte {
	c := byte(Version)
	if tagged {
		c |= ctrlTagged
	}
	if last {
		c |= ctrlLast
	}
	if fault.On("ddp-reserved-bits") {
		c |= 0x04
	}
	return c
}

func checkControl(c byte, tagged bool) error {
	if c&ctrlVersion != Version && !fault.On("ddp-version-unchecked") {
		return fmt.Errorf("%w %d", ErrVersion, c&ctrlVersion)
	}
	if IsTagged(c) != tagged {
		return ErrModel
	}
	return nil
}

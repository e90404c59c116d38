//go:build linux && (amd64 || arm64)

package run

import (
	"golang.org/x/sys/unix"

	"viaduct/sdp"
)

// How much a relay takes from a sender whose peer reads nothing. The program's own sockets
// take what those of a TCP connection take. On the way between them are the receive buffer of
// this process's socket, a piece in either relay, the Private Buffers of SDP and what is not
// sent yet: each is bounded here, to less than 1 MB together. A program that writes with a
// time-out, or that is told by poll when to go on, depends on that.

const (
	// pumpSize is the size of the pieces that a relay moves.
	pumpSize = 64 << 10
	// nearReceive is SO_RCVBUF of the sockets that programs' sockets are connected to.
	// The kernel doubles it for its own needs.
	nearReceive = 128 << 10
	// unsent is how many bytes the kernel takes that it can't send yet.
	unsent = 64 << 10
	// sdpBuffers Private Buffers, each for a piece, are there at first. A stream that is
	// read has up to maxSDPBuffers, which is 8 MB for a path with a long round trip.
	sdpBuffers    = 8
	maxSDPBuffers = 128
	sdpHeader     = 64 // bytes, at most, of a message with payload
)

// boundSDP fills in the sizes that the environment does not name.
func boundSDP(opt *sdp.Options) {
	if opt.RecvBuffers == 0 {
		opt.RecvBuffers, opt.MaxRecvBuffers = sdpBuffers, maxSDPBuffers
	}
	if opt.RecvBufferSize == 0 {
		opt.RecvBufferSize, opt.NoResize = pumpSize+sdpHeader, true
	}
	if opt.SendBuffer == 0 {
		opt.SendBuffer = unsent
	}
	if opt.ReceiveBuffer == 0 {
		opt.ReceiveBuffer = unsent
	}
}

// boundNear bounds what a socket of this process holds that the program has sent.
func boundNear(fd int) { unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, nearReceive) }

// boundUnsent bounds what a TCP socket takes beyond what its peer has room for.
func boundUnsent(fd int) { unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent) }

//go:build linux && (amd64 || arm64)

package run

import (
	"golang.org/x/sys/unix"

	"viaduct/sdp"
)

// Limits of the bytes a relay accepts from a sender whose peer does not read. The program's own
// sockets buffer as much as any TCP socket. The bytes between them are in the receive buffer of
// this process's socket, in one piece for each relay, in the Private Buffers of SDP, and in the
// kernel, unsent. Together these are limited to less than 1 MB. Programs depend on a limit if they
// write with a time-out, or wait for poll before they write.

const (
	// pumpSize is the size of the pieces a relay moves.
	pumpSize = 64 << 10
	// nearReceive is SO_RCVBUF of this process's end of the connections to programs. The kernel
	// doubles the value for its own use.
	nearReceive = 128 << 10
	// unsent is the number of bytes beyond the peer's window that the kernel accepts.
	unsent = 64 << 10
	// A connection starts with sdpBuffers Private Buffers of one piece each. A stream that is read
	// gets up to maxSDPBuffers, which is 8 MB, for paths with a long round trip.
	sdpBuffers    = 8
	maxSDPBuffers = 128
	sdpHeader     = 64 // bytes, at most, of a message with payload
)

// boundSDP sets the sizes that the environment has left at 0.
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

// boundNear bounds the bytes from the program that a socket of this process holds.
func boundNear(fd int) { unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, nearReceive) }

// boundUnsent bounds the bytes a TCP socket accepts beyond its peer's window.
func boundUnsent(fd int) { unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent) }

//go:build linux && (amd64 || arm64)

package run

import (
	"golang.org/x/sys/unix"

	"viaduct/sdp"
)

// Limits of the bytes a relay accepts from a sender whose peer does not read. The program's own
// sockets buffer as much as any TCP socket. The bytes between the programs' sockets are in the
// receive buffer of this process's socket, in a piece for each relay, in the Private Buffers of
// SDP, and in the kernel, unsent. The limits together are below 1 MB. Programs that write with a
// time-out, or wait for poll before a write, depend on a limit.

const (
	// pumpSize is the size of the pieces a relay moves.
	pumpSize = 64 << 10
	// nearReceive is SO_RCVBUF of this process's end of the connections to programs. The kernel
	// doubles the value for internal use.
	nearReceive = 128 << 10
	// unsent is the number of bytes beyond the peer's window the kernel accepts.
	unsent = 64 << 10
	// A connection starts with sdpBuffers Private Buffers of a piece each. A stream with a reader
	// gets up to maxSDPBuffers, 8 MB, for paths with a long round trip.
	sdpBuffers    = 8
	maxSDPBuffers = 128
	sdpHeader     = 64 // bytes, at most, of a message with payload
)

// boundSDP sets the sizes left at 0 by the environment.
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

// boundNear bounds the bytes from the program in a socket of this process.
func boundNear(fd int) { unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, nearReceive) }

// boundUnsent bounds the bytes a TCP socket accepts beyond the peer's window.
func boundUnsent(fd int) { unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent) }

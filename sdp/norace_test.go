//go:build !race

package sdp

const tinyBuffers = 3 // the smallest number [SDP-10-2]

//go:build !race

package sdp

const tinyBuffers = 3 // the smallest number of buffers [SDP-10-2]

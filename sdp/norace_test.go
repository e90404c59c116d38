//go:build !race

package sdp

const tinyBuffers = 3 // the least there may be [SDP-10-2]

//go:build race

package sdp

// tinyBuffers is larger here, because the smallest number of buffers moves one message of 21 bytes
// per round trip. Under the race detector that takes longer than the minute that nettest allows.
const tinyBuffers = 48

//go:build race

package sdp

// tinyBuffers is larger here, because the smallest number of buffers moves a single message of 21
// bytes per round trip. Under the race detector, nettest's limit of a minute would be too short for
// so many round trips.
const tinyBuffers = 48

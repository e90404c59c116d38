//go:build race

package transport

// Three private buffers move one message per round trip, 21 bytes; under the
// race detector that takes longer than the minute nettest allows.
const tinyBuffers = 48

//go:build race

package sdp

// The smallest pools move one message per round trip, 21 bytes; under the race
// detector that takes longer than the minute nettest allows.
const tinyBuffers = 48

//go:build race

package transport

// Three private buffers move one message per round trip, 21 bytes; under the
// race detector that takes longer than the minute nettest allows.
const tinyBuffers = 48

// raceMemory is how much more memory a process takes with the race detector, which
// keeps several bytes for each byte that is used.
const raceMemory = 5

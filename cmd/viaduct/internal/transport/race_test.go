//go:build race

package transport

// The smallest number, 3, moves a message of 21 bytes per round trip. With the race detector, the
// test takes longer than nettest's limit of a minute.
const tinyBuffers = 48

// raceMemory is the factor by which the race detector increases the memory of a process: the
// detector keeps several bytes for each used byte.
const raceMemory = 5

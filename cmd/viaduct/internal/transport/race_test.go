//go:build race

package transport

// The smallest number, 3, moves one message of 21 bytes per round trip. With the race detector that
// takes longer than the minute that nettest allows.
const tinyBuffers = 48

// raceMemory is the factor by which the race detector increases the memory of a process: it keeps
// several bytes for each byte that is used.
const raceMemory = 5

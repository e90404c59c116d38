//go:build !race

package transport

const tinyBuffers = 3 // the smallest number that SDP allows

// raceMemory is the factor by which the race detector increases the memory of a process.
const raceMemory = 1

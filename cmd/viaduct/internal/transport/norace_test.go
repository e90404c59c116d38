//go:build !race

package transport

const tinyBuffers = 3 // the least there may be

// raceMemory is how much more memory a process takes with the race detector.
const raceMemory = 1

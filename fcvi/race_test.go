//go:build race

package fcvi

// raceEnabled is true if the race detector is on: the detector slows tests down and allocates.
const raceEnabled = true

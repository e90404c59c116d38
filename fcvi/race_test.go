//go:build race

package fcvi

// raceEnabled: the race detector slows tests down and allocates.
const raceEnabled = true

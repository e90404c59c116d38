//go:build race

package iwarp

// raceEnabled is set in race builds, where pools drop some of their objects.
const raceEnabled = true

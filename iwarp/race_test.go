//go:build race

package iwarp

// raceEnabled is true in race builds. There, a sync.Pool drops some objects at random.
const raceEnabled = true

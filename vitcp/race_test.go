//go:build race

package vitcp

// raceDetector is true if the race detector is on. Pools then drop items at random, and allocation
// counts are not comparable.
const raceDetector = true

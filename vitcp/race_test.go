//go:build race

package vitcp

// raceDetector says that pools forget at random and memory is counted
// otherwise.
const raceDetector = true

//go:build !race

package vitcp

const raceDetector = false

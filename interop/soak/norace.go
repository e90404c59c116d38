//go:build !race

package main

// raceDetector says that this program was built with the race detector.
const raceDetector = false

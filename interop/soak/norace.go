//go:build !race

package main

// raceDetector is false: this program was built without the race detector.
const raceDetector = false

//go:build race

package main

// raceDetector is true: this program was built with the race detector. Most of the resident memory
// belongs to the detector, and is never released.
const raceDetector = true

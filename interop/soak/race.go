//go:build race

package main

// raceDetector is true: this program was built with the race detector. Most of its resident memory
// belongs to the detector, which never releases it.
const raceDetector = true

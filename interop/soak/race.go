//go:build race

package main

// raceDetector is true: resident memory is mostly that of the race detector, which grows with all
// memory and locks ever used and is never released.
const raceDetector = true

//go:build race

package main

// raceDetector says that what is resident is mostly the detector's own memory, which
// grows with the memory and the locks that were ever used and is never given back.
const raceDetector = true

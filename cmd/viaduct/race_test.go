//go:build race

package main

// raceDetector is true in builds with -race, where everything takes about ten times as long.
const raceDetector = true

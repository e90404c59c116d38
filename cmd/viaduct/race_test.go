//go:build race

package main

// raceDetector means that everything takes about ten times as long.
const raceDetector = true

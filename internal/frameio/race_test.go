//go:build race

package frameio

const raceEnabled = true

//go:build !race

package frameio

const raceEnabled = false

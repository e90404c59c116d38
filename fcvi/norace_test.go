//go:build !race

package fcvi

const raceEnabled = false

//go:build !race

package sock

// Without the race detector these functions do nothing; see race_linux.go.

func raceRelease(int) {}
func raceAcquire(int) {}

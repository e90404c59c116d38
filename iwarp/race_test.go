//go:build race

package iwarp

// raceEnabled says that pools drop what they are given now and then.
const raceEnabled = true

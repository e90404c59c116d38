//go:build race

package attend

const underRace = true

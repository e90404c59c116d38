//go:build !amd64 || race

package shm

const canMoveStrings = false

func moveString(_, _ *byte, _ int) { panic("shm: this processor moves no strings") }

//go:build !race

package shm

import "golang.org/x/sys/cpu"

// canMoveStrings tells whether the processor moves strings as fast as it can move anything.
var canMoveStrings = cpu.X86.HasERMS

// moveString copies n bytes, between places that do not overlap.
//
//go:noescape
func moveString(to, from *byte, n int)

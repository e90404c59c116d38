//go:build !race

package shm

import "golang.org/x/sys/cpu"

// canMoveStrings reports whether string instructions are the processor's fastest way to copy.
var canMoveStrings = cpu.X86.HasERMS

// moveString copies n bytes from *from to *to. The two places must not overlap.
//
//go:noescape
func moveString(to, from *byte, n int)

//go:build !race

package shm

import "golang.org/x/sys/cpu"

// canMoveStrings reports whether string instructions are the fastest way to copy on this processor.
var canMoveStrings = cpu.X86.HasERMS

// moveString copies n bytes from *from to *to. The two places must not overlap.
//
//go:noescape
func moveString(to, from *byte, n int)

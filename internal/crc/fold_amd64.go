package crc

import "golang.org/x/sys/cpu"

var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

// fold returns the CRC of n bytes at p from crc on, without the inversions
// before and after. n is at least foldMin and a multiple of foldStep.
//
//go:noescape
func fold(crc uint32, p *byte, n int, k *folds) uint32

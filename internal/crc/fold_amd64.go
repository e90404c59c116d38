package crc

import "golang.org/x/sys/cpu"

var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

// fold updates crc with the n bytes at p. The caller inverts the CRC before and after the call. n
// is at least foldMin and a multiple of foldStep.
//
//go:noescape
func fold(crc uint32, p *byte, n int, k *folds) uint32

//go:build libvipl

// Command vipl is the Go half of libvipl, the VI Provider Library for C programs: it is built as an
// archive and linked with the C half in front/. capi/build.sh does that.
//
// The C half is the interface to programs. It checks pointers, and starts this half when the first
// NIC is opened. For each work queue it holds two lists: posted descriptors this half has not got
// yet, and completed ones that the program has not reaped yet. This half is a thin layer over
// package vi: handles, which are numbers; descriptors, which lie in the program's memory; and calls
// of the program's handlers.
package main

func main() {}

//go:build libvipl

// Command vipl is the Go half of libvipl, the VI Provider Library for C programs. capi/build.sh
// builds the Go half as an archive and links it with the C half in front/.
//
// The C half is the interface to programs. The C half checks pointers, and starts the Go half when
// the first NIC is opened. For each work queue the C half holds two lists: posted descriptors not
// yet passed to the Go half, and completed descriptors not yet reaped by the program. The Go half
// is a thin layer over package vi: handles (numbers), descriptors (in the program's memory), and
// calls of the program's handlers.
package main

func main() {}

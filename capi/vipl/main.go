//go:build libvipl

// Command vipl is the Go half of libvipl, the VI Provider Library for C
// programs: it is built as an archive and linked with the C half in front/.
// capi/build.sh does that.
//
// The C half owns what programs see: it checks pointers, starts this half when
// the first NIC is opened, and keeps for each work queue what was posted and
// not handed over yet, and what was taken from the queue and not asked for yet.
// Everything else is here, as a thin layer over package vi: handles, which are
// numbers; descriptors, which lie in the program's memory; and calls of the
// program's handlers.
package main

func main() {}

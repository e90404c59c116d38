//go:build !linux || (!amd64 && !arm64)

package main

// asProgram returns false: the test binary acts as another program only on Linux for amd64 and
// arm64.
func asProgram() bool { return false }

// keepInherited does nothing: only Linux has tests with limits on descriptors.
func keepInherited() {}

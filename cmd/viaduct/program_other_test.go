//go:build !linux || (!amd64 && !arm64)

package main

// asProgram would make the test binary another program; there are none on this system.
func asProgram() bool { return false }

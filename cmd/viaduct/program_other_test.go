//go:build !linux || (!amd64 && !arm64)

package main

// asProgram returns false: on this system, the test binary cannot act as another program.
func asProgram() bool { return false }

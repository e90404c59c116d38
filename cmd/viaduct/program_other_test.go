//go:build !linux || (!amd64 && !arm64)

package main

// asProgram makes the test binary another program of these tests: none here.
func asProgram() bool { return false }

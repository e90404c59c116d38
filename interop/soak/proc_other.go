//go:build !linux

package main

// These counts are not available on this system.
func descriptors() int { return 0 }
func resident() int64  { return 0 }

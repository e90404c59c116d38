package main

import (
	"fmt"
	"os"
	"strings"
)

// descriptors returns the number of open descriptors of the process, or -1 if the number is not
// known.
func descriptors() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(all) - 1 // without the descriptor of the directory itself
}

// resident returns the resident memory of the process in bytes, or 0 if the size is not known.
func resident() (n int64) {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &n); err == nil {
			return n << 10
		}
	}
	return 0
}

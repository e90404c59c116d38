//go:build linux

package main

import (
	"os"
	"strconv"
	"strings"
)

// descriptors counts the process's open descriptors.
func descriptors() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(all) - 1 // without the descriptor of the directory itself
}

// badChecksums returns the number of segments dropped by the namespace's TCP because of a wrong
// checksum.
func badChecksums() uint64 {
	b, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		return 0
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if name == "InCsumErrors" && i < len(f) {
				n, _ := strconv.ParseUint(f[i], 10, 64)
				return n
			}
		}
	}
	return 0
}

package testkit

import "os"

// OpenFiles returns the number of descriptors that this process has, 0 where
// the system does not tell.
func OpenFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

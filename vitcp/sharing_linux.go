package vitcp

import "os"

// sharesPorts reports whether the system has an abstract namespace of sockets.
const sharesPorts = true

// unixSockets returns the list of named sockets, one per line with its name last.
func unixSockets() string {
	b, _ := os.ReadFile("/proc/net/unix") // on an error there are no branches
	return string(b)
}

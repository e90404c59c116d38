package vitcp

import "os"

// sharesPorts is true because this system has an abstract namespace of sockets.
const sharesPorts = true

// unixSockets returns the list of named sockets, a line each with the name last.
func unixSockets() string {
	b, _ := os.ReadFile("/proc/net/unix") // on an error there are no branches
	return string(b)
}

package vitcp

import "os"

// sharesPorts is whether there is an abstract namespace of sockets.
const sharesPorts = true

// unixSockets lists the sockets with names, one a line, its name last.
func unixSockets() string {
	b, _ := os.ReadFile("/proc/net/unix") // without it there are no branches
	return string(b)
}

// Viaduct is RDMA over ordinary TCP, in user space: a server and a client that
// move memory, an echo server, a pipe, a proxy, a benchmark, and a tour of them
// all. "viaduct help" lists the verbs.
package main

import (
	"os"

	"viaduct/cmd/viaduct/internal/verbs"
)

func main() { os.Exit(verbs.Main()) }

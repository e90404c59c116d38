// Viaduct is RDMA over ordinary TCP, in user space: a server and a client that
// move memory, an echo server, a pipe, a proxy, a benchmark, and a tour of them
// all. "viaduct help" lists the verbs.
package main

import (
	"os"

	"viaduct/cmd/viaduct/internal/verbs"
	"viaduct/internal/notify"
)

func main() {
	notify.MaybeStub() // the process may be about to become a program of "viaduct run"
	os.Exit(verbs.Main())
}

// Viaduct is RDMA over ordinary TCP, in user space. It gives RDMA devices to unmodified programs,
// moves files and messages, decodes captures and tests other implementations. "viaduct help" lists
// the verbs.
package main

import (
	"os"

	"viaduct/cmd/viaduct/internal/verbs"
	"viaduct/internal/notify"
)

func main() {
	notify.MaybeStub() // this process may have to become a program of "viaduct run"
	os.Exit(verbs.Main())
}

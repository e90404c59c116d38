// Command nvme serves a file, or any other io.ReaderAt, as a read-only disk. A Linux host attaches
// it by "nvme connect -t rdma -a HOST -s 4420 -n nqn.2026-11.viaduct:disk".
package main

import (
	"log"
	"os"

	"viaduct/nvme"
)

func main() {
	file := must(os.Open(os.Args[1]))
	target := must(nvme.New(nvme.Config{}))
	must(target.Add(nvme.Namespace{Data: file, Size: must(file.Stat()).Size(), ReadOnly: true}))
	log.Printf("%s listens on %v", target.NQN(), must(target.Listen(":4420")))
	select {}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

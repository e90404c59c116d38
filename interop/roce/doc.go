// Roce tests package roce against the Linux kernel's rxe, in a small virtual machine.
//
//	go run ./interop/roce           # everything, a minute or two
//	go run ./interop/roce -keep DIR # and keep the capture and the console
//	go run ./interop/roce -only device
//	go run ./interop/roce -all      # with perftest, some minutes more
//
// The guest is Debian's kernel with its module rdma_rxe and the pingpong programs of this machine's
// rdma-core, and perftest. It is reached by a tap interface with an MTU of 9000, because the
// invariant CRC covers IP addresses that QEMU's own network would rewrite: so this needs root.
// Without root, QEMU, Debian's packages or port 4791 it is skipped, and says so.
//
// The programs of the guest talk to a peer in this process, as server and as client: reliable and unreliable
// connections and datagrams, path MTU 1024 and 4096, sizes from a byte to a MiB. All data is compared. They also talk
// to themselves under viaduct run --rdma, which reaches the guest from an emulated device. In the end the
// guest's counters must show no retry that was given up, and tshark no malformed packet.
package main

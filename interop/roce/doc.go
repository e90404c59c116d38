// Roce tests package roce against the Linux kernel's rxe, in a small virtual machine.
//
//	go run ./interop/roce           # everything, a minute or two
//	go run ./interop/roce -keep DIR # and keep the capture and the console
//	go run ./interop/roce -only device
//	go run ./interop/roce -all      # with perftest and IPv6, some minutes more
//	go run ./interop/roce -loss     # with losses of 0.1, 1 and 5 %, some minutes more
//	go run ./interop/roce -rounds 3 # three times with the same guest
//
// The guest consists of Debian's kernel with the module rdma_rxe, and of the pingpong programs of
// the host's rdma-core and perftest. The guest is connected by a tap interface with an MTU of 9000.
// QEMU's own network cannot be used, because it rewrites IP addresses, covered by the invariant
// CRC. Creating a tap interface needs root. Without root, QEMU, Debian's packages or port 4791 the
// program prints what is missing, and skips.
//
// A program of another user that opens UDP port 4791 of all addresses meanwhile, such as
// interop/rxe, makes conversations fail. A network namespace keeps the two apart, once the kernel's
// package is in the cache:
//
//	unshare -n sh -c 'ip link set lo up && go run ./interop/roce'
//
// Programs in the guest exchange messages with a peer in this process, as server and as client:
// over reliable and unreliable connections and datagrams, with path MTUs of 1024 and 4096, and
// sizes from a byte to a MiB. All data is compared. The same programs also run on this machine
// under viaduct run --rdma, and reach the programs of the guest from an emulated device. Some of
// these conversations are held while nftables drops packets at random in both directions.
//
// At the end of each round, tshark must find no malformed packet, and the guest's kernel must have
// reported no wrong CRC and have taken the packets that reached its network card, apart from one for
// each conversation: the kernel refuses a packet that arrives after the end of the queue pair.
package main

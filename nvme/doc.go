// Package nvme is an NVMe over Fabrics target on package iwarp: disks that the host of a
// Linux kernel attaches by "nvme connect -t rdma", over software iWARP or an iWARP adapter.
// What a disk is made of is the program's: anything with ReadAt is a disk that can be read.
//
//	t, err := nvme.New(nvme.Config{})
//	id, err := t.Add(nvme.Namespace{Data: file, Size: size})
//	addr, err := t.Listen(":4420")
//	...
//	t.Close()
//
// There are discovery, any number of namespaces, which may come, go and grow while hosts
// use them, up to 64 I/O queues of 128 commands for each host, data in capsules, and events.
// Reservations, authentication, asymmetric access and TCP as transport are missing.
//
// # Security
//
// Whoever reaches the port may read and write the disks. Hosts of kernels have no TLS over
// RDMA: let the port be reached only by networks whose hosts may do so. A host that breaks
// the protocol loses its queues, and can harm neither the process nor other hosts. But it may
// overwrite the data of other hosts on a disk that both may write.
package nvme

// Package nvme implements an NVMe over Fabrics target on package iwarp. Linux hosts attach its
// disks with "nvme connect -t rdma", over software iWARP or an iWARP adapter. The program provides
// the contents of a disk: anything with a ReadAt method is a read-only disk.
//
//	t, err := nvme.New(nvme.Config{})
//	id, err := t.Add(nvme.Namespace{Data: file, Size: size})
//	addr, err := t.Listen(":4420")
//	...
//	t.Close()
//
// The target supports discovery, namespaces added, removed and resized during use, up to 64 I/O
// queues of 128 commands for each host, data in capsules, and event requests. Reservations,
// authentication, asymmetric access and the TCP transport are missing.
//
// # Security
//
// Whoever reaches the port may read and write the disks. The Linux host has no TLS over RDMA, so
// make the port reachable only for trusted hosts. A host that breaks the protocol loses all queues,
// but can harm neither the process nor other hosts. Hosts sharing a writable disk can overwrite
// each other's data.
package nvme

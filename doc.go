// Package viaduct is the map of this module: RDMA over ordinary TCP in user space. The package
// holds no code.
//
// # What a program imports
//
//	vi        VI Architecture: NIC, VI, descriptors, work and completion queues
//	vitcp     the VI provider over TCP (draft-dicecco-vitcp-00)
//	fcvi      the VI provider over Fibre Channel (FC-VI, ISO/IEC 14165-331)
//	iwarp     the RDMAP stream over MPA and DDP: verbs for Go (RFC 5040, 5041, 5044, 6581, 7306)
//	roce      RoCEv2 by a UDP socket: queue pairs that talk to rxe and to adapters
//	sdp       the Sockets Direct Protocol over iWARP: net.Conn and net.Listener
//	portmap   the SDP Port Mapper, client and server
//	registry  names that many hosts share, with leases: in a file, in DNS, or a program's own
//	samehost  the option of all these protocols that selects shared memory between processes of one host
//	nvme      disks for Linux hosts: NVMe over RDMA, on iWARP
//	debug     a status socket, by which "viaduct ps" shows the connections of a program
//
// For a stream, a program imports sdp and replaces net.Dial by sdp.Dial. For registered memory and
// one-sided transfers, a program imports iwarp, or vi with a provider.
//
// # What the protocols share
//
// The protocols over TCP stand on the same three packages: internal/regmem (memory regions),
// internal/queue (work and completion queues) and internal/frameio (framed input and output on a
// stream). Each wire format is a separate package, without input or output, below internal/wire.
// Fibre Channel in software is internal/fc.
//
// The command is cmd/viaduct. ARCHITECTURE.md draws how the packages depend on each other, and
// docs/conformance.md lists the requirements of the documents and where the code keeps them.
package viaduct

// Package viaduct is the map of this module: RDMA over ordinary TCP in user
// space. It holds no code.
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
//	samehost  the words for shared memory between processes of one host, in the options of all of them
//	debug     a status socket, by which "viaduct ps" shows the connections of a program
//
// A program that wants a stream takes sdp and replaces net.Dial by sdp.Dial. One
// that wants registered memory and one-sided transfers takes vi with a
// provider, or iwarp.
//
// # What is shared
//
// Every protocol stands on the same three packages: internal/regmem (memory
// regions), internal/queue (work and completion queues) and internal/frameio
// (framed input and output on a stream). Each wire format is a separate package, without input or
// output, below internal/wire. Fibre Channel in software is internal/fc.
//
// The command is cmd/viaduct. ARCHITECTURE.md draws how it fits together, and
// docs/conformance.md says which requirement of which document is kept where.
package viaduct

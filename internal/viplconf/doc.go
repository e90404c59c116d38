// Package viplconf resolves the names of NICs in VIPL programs: to a provider, an address and
// limits. libvipl opens NICs with viplconf, and "viaduct vipl check" shows the result for a name.
//
// A configuration is a text of lines
//
//	NAME -> PROVIDER [OPTION VALUE]...
//
// where # begins a comment, PROVIDER is vitcp or fcvi, and a NAME of * stands for every name that
// has no line. The options are
//
//	listen HOST:PORT   listen for connections; an empty HOST is every address
//	address IP         address of the NIC for peers (vitcp without a HOST, fcvi)
//	fabric HOST:PORT   a fabric daemon that the NIC attaches to (fcvi)
//	transfer BYTES     MaxTransferSize; K, M and G multiply by 1024
//	hosts FILE         the hosts file of the name service
//	grace DURATION     how long a request waits for a VipConnectWait (vitcp), such as 50ms
//	ptags strict       a protection tag of NULL is VIP_INVALID_PTAG
//	port always        the host part of addresses has 6 bytes: IPv4 and port
//	gather off         each posted send is transmitted by itself
//	congestion NAME    congestion control of the TCP connections, if the system has it
//	samehost POLICY    shared memory between processes of one host: auto, off or require
//
// A line "log LEVEL" (debug, info, warn, error) writes events to the standard error.
//
// A name without a line means VI/TCP on the matching interface, see [Config.Find].
package viplconf

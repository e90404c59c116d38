// Package viplconf decides what the name of a NIC means to programs of VIPL:
// which provider, on which address, with which limits. libvipl opens NICs by
// it, and "viaduct vipl check" tells what a program would get.
//
// A configuration is a text of lines
//
//	NAME -> PROVIDER [OPTION VALUE]...
//
// where # begins a comment, PROVIDER is vitcp or fcvi, and a NAME of * stands
// for every name that has no line. The options are
//
//	listen HOST:PORT   where connections are waited for; an empty HOST is every address
//	address IP         what the NIC is known by (vitcp without a HOST, fcvi)
//	fabric HOST:PORT   a fabric daemon that the NIC attaches to (fcvi)
//	transfer BYTES     MaxTransferSize; K, M and G multiply by 1024
//	hosts FILE         the hosts file of the name service
//	grace DURATION     how long a request waits for a VipConnectWait (vitcp), such as 50ms
//	ptags strict       a protection tag of NULL is VIP_INVALID_PTAG
//	port always        the host part of addresses has 6 bytes: IPv4 and port
//	gather off         every post of a send goes out by itself
//	congestion NAME    congestion control of the TCP connections, if the system has it
//	samehost POLICY    shared memory between processes of one host: auto, off or require
//
// A line "log LEVEL" (debug, info, warn, error) has events written to the standard
// error.
//
// A name without a line means VI/TCP on the matching interface, see
// [Config.Find].
package viplconf

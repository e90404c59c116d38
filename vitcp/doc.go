// Package vitcp carries VI Architecture connections over TCP, as described in
// draft-dicecco-vitcp-00 (July 2000). It is a provider for package vi:
//
//	p, err := vitcp.New(vitcp.Config{Listen: ":3936"})
//	nic, err := vi.Open(p, "", nil)
//	v, err := nic.CreateVI(vi.Attributes{Reliability: vi.ReliableReception}, nil, nil)
//	_, err = v.ConnectRequest(ctx, local, vi.IPAddress(host, "files"))
//
// A VI address consists of an IP address and a discriminator of up to 16 bytes. The IP address has
// 4 or 16 bytes, and 2 more for a port other than the default one. All NICs opened through a
// [Provider] share the listening ports, and the discriminator in a request selects the call that
// gets the request. A NIC that listens without a host, as above, reports one address (LocalAddress)
// and answers at every address of the host. A wait at LocalAddress, or without an address, gets the
// requests to all of them.
//
// # What is implemented
//
// Everything in the draft: Sends, RDMA Writes and Reads; both connection models; negotiation of MTU
// and read window; descriptor flow control; acknowledgements and remote error codes; the security
// field, with [HMAC] as a ready-made check. In addition: Reliable Delivery as a separate level
// besides Reliable Reception, an optional Disconnect message, TLS, and limits on what peers can use
// before they are connected. Retransmission is left to TCP.
//
// The draft fixes hardly any numeric values. The values used here are decisions;
// docs/requirements/vitcp-decisions.md records them. [Config.Dialect] and the fields next to
// Dialect set other values, for a peer with different numbers.
//
// # Errors
//
// Setting a connection up fails with the errors of package vi, which wrap a [*RejectError],
// [*MismatchError], [*ProtocolError] or [ErrSecurity] for details. The reason of a broken
// connection is passed to [Config.Broken]; descriptors and the NIC's error handler get the errors
// of the architecture. A connection whose peer violates the protocol is reset; no other connection
// is affected.
//
// # Order and concurrency
//
// Descriptors of a send queue are started in posting order. An RDMA Read beyond the read window of
// the remote VI (vi.Attributes.ReadWindow) waits, and so do the descriptors posted after the Read.
// All exported methods may be called concurrently. Calls to connect or wait return when their
// context ends. Closing the NIC ends half-open connections, undecided requests and links.
//
// Several processes of a host use separate ports, or share a port by [Config.SharePort].
package vitcp

// The package as a whole keeps [VIT-2.2.2.2.1-1] [VIT-2.2.2.2.1-2]
// [VIT-2.2.1-1] [VIT-2.2.2.1-4] [VIT-2.2.2.2.4-1] [VIT-2.2.2.2.5-1]
// [VIT-2.2.2.2.5-2] [V-39] [V-27].

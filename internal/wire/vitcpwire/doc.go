// Package vitcpwire encodes and decodes the segments of VI/TCP as described in
// draft-dicecco-vitcp-00 (July 2000): the segment header at the start of every segment, the header
// of connection establishment, and the RDMA header.
//
// The draft gives the layouts but hardly any numbers. The numbers used here are the project's own
// (docs/requirements, decisions V-01 to V-46); a [Dialect] changes the numbers where another
// implementation may have chosen differently.
//
//	var d vitcpwire.Dialect // the numbers of this project
//	h, n, err := d.ParseHeader(b)
//	if err != nil {
//		return err
//	}
//	if h.Type == vitcpwire.Write {
//		r, _, err := vitcpwire.ParseRDMA(b[n:])
//		...
//	}
//
// Parsers keep no reference to the input unless documented, and allocate nothing. The package is
// for the VI/TCP provider, for dissectors and for tests; it makes no promise of stability before
// version 1 of the module.
package vitcpwire

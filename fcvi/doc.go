// Package fcvi is the VI provider over Fibre Channel: FC-VI (ISO/IEC
// 14165-331) on the software Fibre Channel of package fc.
//
//	p, err := fcvi.New(fcvi.Config{Listen: "0.0.0.0:3225"}) // or no Listen, to dial only
//	nic, err := vi.Open(p, "192.0.2.1", nil)                // the NIC's host address
//	...
//
// A NIC is an FC-VI port. With Listen it stands behind a fabric of its own
// (package fabricd) that others join over FCIP; a connection to a host address
// opens an FCIP link to that host and logs in there; with Fabric the NIC is one
// N_Port of a fabric that runs elsewhere, and reaches what else is attached to it.
// Addresses are IP addresses, with the FCIP port behind them where
// it is not 3225, or Port_Names of 8 bytes. Contexts cancel set-ups at any time.
//
// The connection machine (four-way handshake, both models, the six cases of
// concurrent peer requests, retries, disconnect) and the message machine
// (request and response streams, loss detection on fabrics that keep order and
// on others) are values without input and output; the same code runs in
// virtual time in the tests of this package.
//
// In class 3 message data is never sent twice: a loss is silent at Unreliable
// Delivery and breaks the connection at the reliable levels, where a probe finds
// the loss of the last message before a pause. In class 2 frames that are not
// acknowledged are sent again.
//
// FC-VI has no descriptor flow control. If both VIs ask for it, messages wait
// at the receiving port instead: at Reliable Reception the sender's window
// bounds them; at Reliable Delivery more than 64 that wait, or more bytes than
// the port holds, break the connection.
//
// What the standard's text would settle and public documents do not is assigned
// in package iu and marked there.
package fcvi

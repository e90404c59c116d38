// Package fcvi carries VI Architecture connections over Fibre Channel: FC-VI
// (ISO/IEC 14165-331) on a Fibre Channel in software, whose links are FCIP over
// TCP. It is a provider for package vi:
//
//	p, err := fcvi.New(fcvi.Config{Listen: "0.0.0.0:3225"}) // or no Listen, to dial only
//	nic, err := vi.Open(p, "192.0.2.1", nil)                // the NIC's host address
//	v, err := nic.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
//	_, err = v.ConnectRequest(ctx, local, vi.IPAddress(host, "files"))
//
// A NIC is an FC-VI port. With Config.Listen the NIC runs a fabric, which other NICs join over
// FCIP. To connect to a host address, the NIC opens a link to that host and logs in to the fabric
// there. With Config.Fabric the NIC is an N_Port of a fabric that runs elsewhere, and reaches the
// fabric's other ports. Addresses are IP addresses, with the FCIP port if different from 3225, or
// Port_Names of 8 bytes.
//
// # What is implemented
//
// The package implements everything that public summaries of the standard describe: both connection
// models with retries and crossing requests, Sends, RDMA Writes and Reads, the three reliability
// levels, classes 2 and 3. In class 3 message data is never sent twice: a loss is silent at
// Unreliable Delivery and breaks the connection at the reliable levels, where a probe finds the
// loss of the last message before a pause. In class 2 frames that are not acknowledged are sent
// again.
//
// FC-VI has no descriptor flow control. If both VIs request flow control, messages wait at the
// receiving port instead: at Reliable Reception the sender's window bounds them; at Reliable
// Delivery more than 64 that wait, or more bytes than the port holds, break the connection.
//
// The text of the standard fixes the code points, and is not public.
// docs/requirements/fcvi-requirements.md has the values assigned by this project.
//
// # Errors and cancellation
//
// Setting a connection up fails with the errors of package vi; contexts cancel it at any time. When
// a connection breaks, descriptors complete and the NIC's error handler is called as the
// architecture requires. All exported methods may be called concurrently.
package fcvi

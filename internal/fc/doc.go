// Package fc is a Fibre Channel made of software: frames, names and addresses, the extended and
// basic link services, the Common Transport with the directory service, and an N_Port with its
// exchanges and logins.
//
// It follows FC-FS, FC-LS and FC-GS as far as the FC-VI mapping needs them, RFC 2625 for FARP, and
// RFC 3643 for the delimiter codes. Its sub-packages hold the network between N_Ports: fabric
// (switch core, directory server, simulated links), fcip (links over TCP, RFC 3821) and fabricd (a
// fabric that processes join).
//
// An [NPort] is a state machine without input or output of its own: its methods get frames, link
// events and the time, and it sends frames through a [Sender]. The driver of an NPort owns the
// clock, the link and the lock.
//
//	p := fc.NewNPort(fc.PortConfig{PortName: pn, NodeName: nn}, link)
//	p.Register(fc.TypeFCVI, upper) // the FC-4 that gets the frames of its TYPE
//	p.LinkUp(now, fc.LinkInfo{})   // FLOGI, registration with the directory
//	p.Receive(now, &frame)
//	p.Tick(now)                    // at p.Deadline()
//
// Classes of service 2 (acknowledged) and 3 (datagram) are implemented; classes 1, 4 and 6 are not,
// nor is the login to an N_Port through PRLI, which FC-VI does not use.
//
// The wire codecs may change before version 1.
package fc

// Package fabricd runs a Fibre Channel fabric that processes and hosts join
// over FCIP: a switch of package fabric with its directory server, whose ports
// are FCIP links and N_Ports of this process.
//
//	d := fabricd.New(fabricd.Config{Name: name, Domain: 1})
//	ln, err := net.Listen("tcp", ":3225")
//	go d.Serve(ln)
//	d.Join("other-host:3225") // an inter-switch link to another daemon
//	defer d.Close()
//
// Whatever logs in over a link decides what its port is: an N_Port by FLOGI,
// another daemon by the control protocol of package fabric. FCIP framing is
// that of RFC 3821; the control traffic between daemons is our own, so they do
// not join switches of other make. [FCFS-3.2-4]
package fabricd

// Package fabricd runs a Fibre Channel fabric that processes and hosts join over FCIP: a switch of
// package fabric with a directory server, whose ports are FCIP links and N_Ports of this process.
//
//	d := fabricd.New(fabricd.Config{Name: name, Domain: 1})
//	ln, err := net.Listen("tcp", ":3225")
//	go d.Serve(ln)
//	d.Join(ctx, "other-host:3225") // an inter-switch link to another daemon
//	defer d.Close()
//
// The login over a link determines the kind of its port: an N_Port logs in by FLOGI, another daemon
// by the control protocol of package fabric. FCIP framing follows RFC 3821; the control traffic
// between daemons is our own, so they cannot join switches of another make. [FCFS-3.2-4]
package fabricd

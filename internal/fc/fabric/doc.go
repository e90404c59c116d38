// Package fabric implements the network between N_Ports: a switch core with directory server and
// fabric controller, and a simulated network of links where a plan can lose, duplicate, delay,
// reorder and damage frames. The plan is reproducible from a seed. [FCFS-3.2-1] [FCFS-3.2-2]
// [FCFS-3.2-3]
//
// A [Switch] is a state machine without input or output of its own, like an fc.NPort: frames go in
// at a [SwitchPort] and leave through the fc.Sender of another. In a [Net] each port of a Switch is
// a device; package fabricd attaches a Switch's ports to FCIP links.
//
// A [Net] in virtual time is single-threaded and deterministic:
//
//	n := fabric.NewNet(1)
//	sw := fabric.NewSwitch(fabric.SwitchConfig{Name: name, Domain: 1})
//	n.Attach(sw, func(out fc.Sender) fabric.Device { return port(out) })
//	n.Start()
//	n.Run(time.Second)
//
// The same Net runs in real time with [Net.Serve]; the devices then do their own locking.
//
// Switches exchange a control protocol of our own in SW_ILS frames of class F. They do not
// implement ELP, domain negotiation and FSPF of FC-SW, so they cannot join a fabric of another
// make.
package fabric

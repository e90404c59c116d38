// Package fault switches on deliberate faults of the protocols. In a build with the tag "faults"
// the environment variable VIADUCT_FAULT names the active fault. Other builds contain no code for
// faults. Such a build tests the tools that test peers: they must find the fault.
package fault

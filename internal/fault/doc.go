// Package fault has switches for deliberate faults of the protocols. In a build
// with the tag "faults" the variable VIADUCT_FAULT of the environment names the
// one that is on; otherwise there are none, and no code for them. A tester of
// peers is tested by what it finds in such a build.
package fault

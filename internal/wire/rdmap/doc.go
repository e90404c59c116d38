// Package rdmap implements the wire format and the tables of the Remote Direct Memory Access
// Protocol, RFC 5040, with the Atomic Operations and Immediate Data of RFC 7306.
//
// The package does no I/O and does not access memory. It has the table of messages ([Opcode]), the
// control octet, the RDMAP headers inside DDP payload ([ReadRequest], [AtomicRequest],
// [AtomicResponse], [ImmediateData], [Terminate]), the checks whether an opcode fits a segment
// ([CheckTagged], [CheckUntagged]), the arithmetic of atomic operations, and the numbers of errors
// ([Fault]).
//
// A Terminate message for a received segment is built from the error:
//
//	t := rdmap.TerminateRDMAP(rdmap.AccessRights, ulpdu)
//	body := t.Append(nil)
//
// There is no promise of compatibility before version 1 of the module.
package rdmap

// Package rocecm is the connection manager of RoCEv2 without input or output: messages, requests
// and times go in, messages and events come out. The messages are datagrams between the queue pairs
// 1 of two ports. rdma_cm of Linux uses the same protocol.
//
//	active          passive
//	  | --- REQ ---> |         Connect, Requested
//	  | <--- MRA --- |         the program takes its time
//	  | <--- REP --- |         Replied, Accept
//	  | --- RTU ---> |         Confirm, Established
//	  | --- DREQ --> |         Disconnect, Ended
//	  | <--- DREP -- |
//
// A message that needs an answer is retransmitted until the answer arrives. A datagram service is
// requested with SIDR_REQ and answered with SIDR_REP.
//
// A driver calls [Manager.Receive] for each arrived message, and [Manager.Tick] at the time of
// [Manager.Deadline]. After each call of any method the driver sends the messages of
// [Manager.Take]. No type is safe for concurrent use. There is no promise of compatibility before
// version 1.
package rocecm

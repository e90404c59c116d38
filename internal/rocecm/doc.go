// Package rocecm is the connection manager of RoCEv2 without any input or output: messages, requests and
// times go in, messages and events come out. Its messages are datagrams between the queue pairs 1 of two
// ports; rdma_cm of Linux speaks the same.
//
//	asks            is asked
//	  | --- REQ ---> |         Connect, Requested
//	  | <--- MRA --- |         the program takes its time
//	  | <--- REP --- |         Replied, Accept
//	  | --- RTU ---> |         Confirm, Established
//	  | --- DREQ --> |         Disconnect, Ended
//	  | <--- DREP -- |
//
// A message that wants an answer goes again until there is one. A service of datagrams is asked for with
// SIDR_REQ and answered with SIDR_REP.
//
// A driver calls [Manager.Receive] for each message that has arrived, [Manager.Tick] when
// [Manager.Deadline] has come, and sends what [Manager.Take] returns after each call of any method. No
// type is safe for concurrent use. There is no promise of compatibility before version 1.
package rocecm

package fcvi

import (
	"fmt"

	"viaduct/vi"
)

// A state is the state of an endpoint. [FCVI 8.2] [FCVI-8.2-1]
//
//	                            +------+
//	       the consumer asks    | IDLE |    CONNECT_RQST, to be decided
//	     +----------------------|      |-----------------------+
//	     |                      +------+                       |
//	     v                                                     v
//	+-----------+  the peer's request              +--------------------+
//	| C_RESOLVE |----------------------------+     |       C_HELD       |
//	+-----------+  - RESP1(ACCEPTED)         |     +--------------------+
//	  | address found                        |               | the consumer accepts
//	  v - CONNECT_RQST                       v               v - RESP1(ACCEPTED)
//	+-----------+  the winner's request      +---->+--------------------+
//	|           |--------------------------------->|                    |
//	|           |  - RESP1(ACCEPTED)               |                    |
//	|  C_RQST   |                                  |      C_RESP1       |
//	|           | PEER_YIELD  +----------+         |                    |
//	|           |------------>| CONCEDED |-------->|                    |
//	|           |<------------|          | the peer's request           |
//	+-----------+ RESP1(ACC.) +----------+         +--------------------+
//	  |   ^   |                                              |
//	  |   |   +-- a message, once RESP2 went out --+         |
//	  |   | T_RESP3 - CONNECT_RQST                 |         |
//	  v   | RESP1(ACCEPTED) - RESP2(CONFIRMED)     |         | RESP2(CONFIRMED)
//	+-----------+                                  v         v - RESP3
//	|  C_RESP2  |  RESP3, or a message         +------------------------+
//	|           |----------------------------->|       CONNECTED        |
//	+-----------+                              +------------------------+
//	                     the consumer leaves     |              | an error, or the
//	                     - DISCONNECT_RQST       v              v peer's disconnect
//	                                       +-----------+    +-------+
//	                                       | DISC_SENT |    | ERROR |
//	                                       +-----------+    +-------+
//	                       DISCONNECT_RESP,      |              | the same
//	                       _RQST, or time        v              v
//	                                           IDLE           IDLE
//
// The figure leaves out the arrows of a set-up that ends. Each state of a set-up leads to IDLE when
// the consumer gives up or the time limit passes, when the peer refuses or disconnects, and when
// the peer's port logs out. A peer-to-peer request returns to C_RESOLVE instead, to look for a
// match again: from C_RESP1 when the peer withdraws, and from every state when the peer's port logs
// out. testdata/endpoint.golden has all states by all events.
type state uint8

const (
	stIdle      state = iota // not connected; also the state before the request is sent
	stResolve                // the consumer has requested a connection, and the address is being resolved
	stRqst                   // CONNECT_RQST sent
	stConceded               // the request has lost the tie-break or was told to yield; the peer's request will arrive
	stHeld                   // CONNECT_RQST was received, and the consumer decides; there is no VI yet
	stResp1                  // RESP1(ACCEPTED) was sent; reception is not enabled
	stResp2                  // RESP2 was sent; reception is enabled, transmission is not
	stConnected              // both directions
	stDiscSent               // DISCONNECT_RQST sent
	stError                  // the connection broke, or the peer has disconnected
	numStates
)

var stateNames = [...]string{"IDLE", "C_RESOLVE", "C_RQST", "CONCEDED", "C_HELD", "C_RESP1",
	"C_RESP2", "CONNECTED", "DISC_SENT", "ERROR"}

func (s state) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// arrows lists the possible changes of state. Any other change is a bug of package fcvi. [FCVI 8.2]
var arrows = [numStates][numStates]bool{
	stIdle:      {stResolve: true, stHeld: true},
	stResolve:   {stRqst: true, stResp1: true, stIdle: true},
	stRqst:      {stResolve: true, stResp2: true, stConceded: true, stResp1: true, stConnected: true, stIdle: true},
	stConceded:  {stResolve: true, stResp1: true, stRqst: true, stIdle: true},
	stHeld:      {stResp1: true, stIdle: true},
	stResp1:     {stConnected: true, stIdle: true, stResolve: true},
	stResp2:     {stResolve: true, stConnected: true, stRqst: true, stIdle: true},
	stConnected: {stDiscSent: true, stError: true},
	stDiscSent:  {stIdle: true},
	stError:     {stIdle: true},
}

// vi returns the VI state as seen by a consumer in state s.
func (s state) vi() vi.State {
	switch s {
	case stIdle, stHeld:
		return vi.Idle
	case stConnected:
		return vi.Connected
	case stDiscSent, stError:
		return vi.Error
	}
	return vi.ConnectPending
}

package fcvi

import (
	"fmt"

	"viaduct/vi"
)

// A state is that of an endpoint. [FCVI 8.2] [FCVI-8.2-1]
type state uint8

const (
	stIdle      state = iota // not connected; also before the request went out
	stResolve                // connect request, address unknown
	stRqst                   // CONNECT_RQST sent
	stConceded               // lost the tie, or told to yield: the peer's request will come
	stHeld                   // CONNECT_RQST received, the consumer decides; no VI yet
	stResp1                  // RESP1(ACCEPTED) sent, reception not enabled
	stResp2                  // RESP2 sent: reception enabled, transmission not
	stConnected              // both directions
	stDiscSent               // DISCONNECT_RQST sent
	stError                  // broken, or disconnected by the peer
	numStates
)

var stateNames = [...]string{"IDLE", "C_RESOLVE", "C_RQST", "CONCEDED", "C_HELD", "C_RESP1", "C_RESP2", "CONNECTED", "DISC_SENT", "ERROR"}

func (s state) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// arrows are the changes of state that exist; any other is a bug of ours. Every
// state of a set-up that is under way leads back to C_RESOLVE: the peer withdrew
// or logged out, and is looked for again. [FCVI 8.2]
var arrows = [numStates][numStates]bool{
	stIdle:      {stResolve: true, stHeld: true, stRqst: true},
	stResolve:   {stRqst: true, stResp1: true, stIdle: true},
	stRqst:      {stResolve: true, stResp2: true, stConceded: true, stResp1: true, stConnected: true, stIdle: true},
	stConceded:  {stResolve: true, stResp1: true, stRqst: true, stIdle: true},
	stHeld:      {stResp1: true, stIdle: true},
	stResp1:     {stConnected: true, stIdle: true, stResolve: true},
	stResp2:     {stResolve: true, stConnected: true, stRqst: true, stIdle: true, stError: true},
	stConnected: {stDiscSent: true, stError: true},
	stDiscSent:  {stIdle: true, stError: true},
	stError:     {stIdle: true},
}

// vi returns the VI state a consumer sees in s.
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

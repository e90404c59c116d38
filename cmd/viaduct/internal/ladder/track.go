package ladder

import (
	"strconv"
	"strings"

	"viaduct/cmd/viaduct/internal/decode"
	"viaduct/internal/wire/ib"
)

// A track follows the states and credits of both ends of a connection, as far as the messages show
// states and credits.
type track struct {
	state *[2]string // states of the ends, shared by all connections between them
	mode  [2]string  // SDP: mode of the half in which this end is Data Source
	limit [2]int64   // granted by this end: messages (SDP) or descriptors (VI/TCP)
	used  [2]int64   // messages sent by this end that use up credit
	known [2]bool
	flow  [2]bool // VI/TCP: descriptors are counted
}

// to sets the state of an end, except the state of the receiver of a lost message.
func (t *track) to(x *Message, end int, state string) {
	if x.Lost && end != x.From {
		return
	}
	if t.state[end] != state {
		t.state[end], x.State[end] = state, state
	}
}

func number(m *decode.Message, key string) (int64, bool) {
	s, ok := m.Get(key)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// follow updates the track with a message of the connection, and records the changes in x.
func (t *track) follow(m *decode.Message, x *Message) {
	me, peer := x.From, 1-x.From
	switch m.Proto {
	case "mpa":
		t.mpa(m, x, me, peer)
	case "sdp":
		t.sdpMessage(m, x, me, peer)
	case "rdmap":
		if strings.HasPrefix(m.Name, "Terminate") {
			t.to(x, me, "Terminated")
			t.to(x, peer, "Terminated")
		}
	case "vitcp":
		t.vitcp(m, x, me, peer)
	case "fcvi":
		t.fcvi(m, x, me, peer)
	case "cm":
		t.connection(m, x, me, peer)
	case "roce":
		t.negative(m, x, me, peer)
	case "tcp":
		if m.Name == "reset" {
			t.to(x, me, "Reset")
			t.to(x, peer, "Reset")
		}
	}
	for i := range x.Credit {
		if t.known[1-i] {
			x.Credit[i] = int(max(0, t.limit[1-i]-t.used[i]))
		}
	}
}

func (t *track) mpa(m *decode.Message, x *Message, me, peer int) {
	switch m.Name {
	case "MPA Request Frame":
		t.to(x, me, "Start-up")
		t.to(x, peer, "Start-up")
	case "MPA Reply Frame":
		s := "Full Operation"
		if v, _ := m.Get("mpa.reject"); v == "true" {
			s = "Rejected"
		}
		t.to(x, me, s)
		t.to(x, peer, s)
	}
}

func (t *track) sdpMessage(m *decode.Message, x *Message, me, peer int) {
	switch m.Name {
	case "HelloAck":
		t.mode = [2]string{"Combined", "Combined"}
		t.to(x, me, t.mode[me])
		t.to(x, peer, t.mode[peer])
	case "ModeChange":
		mode, _ := m.Get("sdp.mode")
		end := me
		if s, _ := m.Get("sdp.s"); s == "true" {
			end = peer
		}
		t.mode[end] = mode
		t.to(x, end, mode)
	case "SuspComm":
		t.to(x, me, "Suspending")
	case "SuspCommAck":
		t.to(x, me, "Suspended")
		t.to(x, peer, "Suspended")
	case "DisConn":
		t.to(x, me, "Half closed")
		if t.state[peer] == "Half closed" {
			t.to(x, me, "Closed")
			t.to(x, peer, "Closed")
		}
	case "AbortConn":
		t.to(x, me, "Aborted")
		t.to(x, peer, "Aborted")
	}
	bufs, ok := number(m, "sdp.bufs")
	if !ok {
		return
	}
	if m.Name == "Hello" || m.Name == "HelloAck" {
		t.limit[me], t.known[me] = bufs, true
		return
	}
	if seq, ok := number(m, "sdp.mseq"); ok {
		t.used[me] = seq + 1
	}
	if ack, ok := number(m, "sdp.mseqack"); ok && t.known[me] {
		t.limit[me] = max(t.limit[me], ack+1+bufs)
		if ack == 0 && t.used[peer] == 0 { // the peer has not sent a message yet
			t.limit[me] = max(t.limit[me]-1, bufs)
		}
	}
}

func (t *track) vitcp(m *decode.Message, x *Message, me, peer int) {
	switch m.Name {
	case "Connect Request":
		t.to(x, me, "Connect Pending")
		if t.state[peer] != "Connect Pending" { // the peer has no request of its own
			t.to(x, peer, "Deciding")
		}
	case "Connect Accept":
		t.to(x, me, "Connected")
		t.to(x, peer, "Connected")
	case "Connect Reject", "Connect No Match":
		if a, _ := m.Get("vitcp.attributes"); strings.Contains(a, "peer-to-peer") {
			break // the VI continues with its other connection, or tries again
		}
		t.to(x, me, "Rejected")
		t.to(x, peer, "Rejected")
	case "Disconnect":
		t.to(x, me, "Disconnected")
		t.to(x, peer, "Disconnected")
	}
	if a, ok := m.Get("vitcp.attributes"); ok && m.Name != "Connect Reject" {
		t.flow[me] = strings.Contains(a, "flow-control")
	}
	if posted, ok := number(m, "vitcp.posted"); ok && t.flow[me] {
		t.limit[me] = posted
		t.known[me] = t.flow[0] && t.flow[1]
		t.known[peer] = t.known[me]
	}
	_, immediate := m.Get("vitcp.immediate")
	if _, whole := m.Get("vitcp.bytes"); whole && (m.Name == "Send" || m.Name == "RDMA Write" && immediate) {
		t.used[me]++
	}
}

// connection follows the connection management of RoCEv2.
func (t *track) connection(m *decode.Message, x *Message, me, peer int) {
	switch m.Name {
	case "REQ", "SIDR_REQ":
		t.to(x, me, "Requesting")
		t.to(x, peer, "Requested")
	case "REP":
		t.to(x, me, "Replied")
	case "RTU":
		t.to(x, me, "Connected")
		t.to(x, peer, "Connected")
	case "SIDR_REP":
		s := "Resolved"
		if v, _ := m.Get("cm.status"); v != "0" {
			s = "Rejected"
		}
		t.to(x, me, s)
		t.to(x, peer, s)
	case "REJ":
		t.to(x, me, "Rejected")
		t.to(x, peer, "Rejected")
	case "DREQ":
		t.to(x, me, "Disconnecting")
	case "DREP":
		t.to(x, me, "Disconnected")
		t.to(x, peer, "Disconnected")
	}
}

// negative follows NAKs of RoCEv2. A NAK ends the connection, except for a sequence error or RNR
// (receiver not ready).
func (t *track) negative(m *decode.Message, x *Message, me, peer int) {
	n, ok := number(m, "aeth.syndrome")
	if s := ib.Syndrome(n); ok && s.Type() == ib.TypeNAK && s != ib.NAKSequence {
		t.to(x, me, "Error")
		t.to(x, peer, "Error")
	}
}

func (t *track) fcvi(m *decode.Message, x *Message, me, peer int) {
	switch m.Name {
	case "CONNECT_RQST":
		t.to(x, me, "Connecting")
		t.to(x, peer, "Connect wait")
	case "CONNECT_RESP2":
		t.to(x, peer, "Connected")
	case "CONNECT_RESP3":
		t.to(x, me, "Connected")
		t.to(x, peer, "Connected")
	case "DISCONNECT_RQST":
		t.to(x, me, "Disconnecting")
		t.to(x, peer, "Disconnecting")
	case "DISCONNECT_RESP":
		t.to(x, me, "Idle")
		t.to(x, peer, "Idle")
	}
}

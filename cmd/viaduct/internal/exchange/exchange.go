package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An Exchange is one conversation of two hosts.
type Exchange struct {
	Name   string
	Title  string
	Source string // the figure or section that it is from
	// Filter is a filter of decode, to leave out uninteresting messages.
	Filter string
	Ends   [2]string
	run    func(l *line) error
}

// A Recording is the recorded traffic of an exchange.
type Recording struct {
	Capture []byte        // pcapng
	Lost    map[int]bool  // numbers of the packets that did not arrive
	Delay   time.Duration // transit time from one end to the other
}

// All returns the exchanges.
func All() []Exchange {
	return []Exchange{
		{"vitcp-connect", "VI/TCP: a connection of the client and server model, and its end", "VI/TCP 4, Figures of the active and passive side", "", [2]string{"client", "server"}, vitcpConnect},
		{"vitcp-peer", "VI/TCP: requests of the peer-to-peer model cross", "VI/TCP 4, Connection conflict", "", [2]string{"A", "B"}, vitcpPeer},
		{"vitcp-rdma", "VI/TCP: Send, RDMA Write and RDMA Read with descriptor flow control", "VI/TCP 3.1", "", [2]string{"client", "server"}, vitcpRDMA},
		{"iwarp-rdma", "iWARP: MPA start-up, then Send, RDMA Write and RDMA Read", "RFC 5044 7.1, RFC 6581 9, RFC 5040 5", "", [2]string{"client", "server"}, iwarpRDMA},
		{"sdp-bcopy", "SDP: Bcopy, credits and close", "SDP 9.1, 10 and 8.2", "", [2]string{"client", "server"}, sdpBcopy},
		{"sdp-read-zcopy", "SDP: Read Zcopy", "SDP 9.2", "", [2]string{"client", "server"}, sdpReadZcopy},
		{"sdp-write-zcopy", "SDP: Write Zcopy", "SDP 9.3", "", [2]string{"client", "server"}, sdpWriteZcopy},
		{"sdp-transaction", "SDP: Transaction", "SDP 9.4", "", [2]string{"client", "server"}, sdpTransaction},
		{"sdp-modes", "SDP: mode changes", "SDP 12, Figures 26 and 27", "", [2]string{"client", "server"}, sdpModes},
		{"sdp-suspend", "SDP: suspend and resume", "SDP 13.1", "", [2]string{"client", "server"}, sdpSuspend},
		{"fcvi-connect", "FC-VI: the four-way set-up repeats a request that was lost", "FC-VI 5.3 and 8.3", "proto=fcvi", [2]string{"client", "server"}, fcviConnect},
		{"fcvi-loss", "FC-VI: the loss of a message is found and breaks the connection", "FC-VI 8.4", "proto=fcvi", [2]string{"client", "server"}, fcviLoss},
	}
}

// Find returns the exchange with a name, and whether the exchange exists.
func Find(name string) (Exchange, bool) {
	for _, x := range All() {
		if x.Name == name {
			return x, true
		}
	}
	return Exchange{}, false
}

// Patience bounds an exchange.
const Patience = time.Minute

// errBusy reports that the machine was too slow for the times of an exchange.
var errBusy = errors.New("the machine is too busy")

// mostLeisure is the largest factor by which times may be longer than the shortest times.
const mostLeisure = 64

// Run performs the exchange. It takes some tenths of a second, or longer on a busy machine.
func (x *Exchange) Run(ctx context.Context) (*Recording, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for leisure := 1; ; leisure *= 4 {
		r, err := x.once(ctx, leisure)
		if !errors.Is(err, errBusy) || leisure == mostLeisure || ctx.Err() != nil {
			return r, err
		}
	}
}

// once performs the exchange with all times multiplied by leisure.
func (x *Exchange) once(ctx context.Context, leisure int) (*Recording, error) {
	l, err := newLine(ctx)
	if err != nil {
		return nil, err
	}
	l.leisure = leisure
	err = x.run(l)
	b, cerr := l.close()
	if err == nil {
		err = cerr
	}
	if err != nil {
		return nil, fmt.Errorf("exchange %s: %w", x.Name, err)
	}
	return &Recording{b, l.lost, Delay}, nil
}

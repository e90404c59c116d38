package memvi

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"viaduct/vi"
)

// readWindow is the number of RDMA Reads a side serves at once if its VI gives no number.
const readWindow = 4

// A Network connects the NICs opened on the network. It implements vi.Provider. The exported fields
// must be set before the first Open.
type Network struct {
	// Limits, if set, may change the attributes of a NIC.
	Limits func(*vi.NICAttributes)

	// Lose, if set, is called for each message at Unreliable Delivery. If Lose returns true, the
	// message is lost. Any goroutine may call Lose.
	Lose func() bool

	mu    sync.Mutex
	waits []*wait    // guarded by mu; in order of arrival
	peers []*peerReq // guarded by mu
}

var _ vi.Provider = (*Network)(nil)

// New returns a network without NICs.
func New() *Network { return &Network{} }

// Open opens the node called name, from mem0 to mem255; "" means mem0. [VIA 6.4.1]
func (n *Network) Open(name string, nic *vi.NIC) (vi.Device, error) {
	if name == "" {
		name = "mem0"
	}
	host, err := parseHost(name)
	if err != nil {
		return nil, err
	}
	d := &device{net: n, host: host, name: name, requests: make(map[*request]struct{})}
	d.done, d.cancel = context.WithCancelCause(context.Background())
	return d, nil
}

func parseHost(s string) ([]byte, error) {
	rest, ok := strings.CutPrefix(s, "mem")
	if k, err := strconv.ParseUint(rest, 10, 8); ok && err == nil {
		return []byte{'m', 'e', 'm', byte(k)}, nil
	}
	return nil, fmt.Errorf("%w: memvi: no node %q", vi.ErrInvalidParameter, s)
}

// A device is an open NIC.
type device struct {
	net    *Network
	host   []byte
	name   string
	done   context.Context // ends when the device is closed
	cancel context.CancelCauseFunc

	requests map[*request]struct{} // guarded by net.mu; requests that arrived and were not answered
}

func (d *device) Attributes() vi.NICAttributes {
	a := vi.NICAttributes{
		Name:                   d.name,
		LocalAddress:           d.host,
		ThreadSafe:             true,
		MaxDiscriminatorLen:    16,
		MaxRegisterBytes:       1 << 40,
		MaxRegisterRegions:     1 << 13,
		MaxRegisterBlockBytes:  1 << 40,
		MaxVI:                  1024,
		MaxDescriptorsPerQueue: 1024,
		MaxSegmentsPerDesc:     252, // [VIA-3.4-5]
		MaxCQ:                  1024,
		MaxCQEntries:           1 << 16,
		MaxTransferSize:        1 << 20,
		NativeMTU:              32768,
		MaxPtags:               1024,
		ReliabilityLevels:      vi.UnreliableDelivery | vi.ReliableDelivery | vi.ReliableReception, // [VIA-4.5-1]
		RDMAReadSupport:        vi.ReliableDelivery | vi.ReliableReception,
	}
	if d.net.Limits != nil {
		d.net.Limits(&a)
	}
	return a
}

func (d *device) FormatHost(host []byte) string {
	if len(host) == 4 && string(host[:3]) == "mem" {
		return "mem" + strconv.Itoa(int(host[3]))
	}
	return fmt.Sprintf("%x", host)
}

func (d *device) ParseHost(s string) ([]byte, error) { return parseHost(s) }

func (d *device) LookupHost(context.Context, string) ([][]byte, error) {
	return nil, fmt.Errorf("%w: memvi has no name service of its own", vi.ErrNameService)
}

func (d *device) LookupAddr(context.Context, []byte) (string, error) {
	return "", fmt.Errorf("%w: memvi has no name service of its own", vi.ErrNameService)
}

// Close ends waits, peer requests, and unanswered requests.
func (d *device) Close() error {
	d.cancel(vi.ErrClosed)
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	for r := range d.requests {
		r.answerLocked(answer{err: vi.ErrNotReachable})
	}
	return nil
}

// own returns a with the host part of this node instead of the host part in a.
func (d *device) own(a vi.Address) vi.Address { a.Host = d.host; return a }

// A wait is a pending Device.Wait.
type wait struct {
	d     *device
	local vi.Address
	got   *request      // guarded by Network.mu
	ready chan struct{} // closed when got is set
}

// Wait waits for a request for the discriminator in local. Waits for equal discriminators are
// served in order. [VIA 6.4.5]
func (d *device) Wait(ctx context.Context, local vi.Address) (vi.Request, error) {
	w := &wait{d: d, local: d.own(local), ready: make(chan struct{})}
	n := d.net
	n.mu.Lock()
	n.waits = append(n.waits, w)
	n.mu.Unlock()
	var err error
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.done.Done():
		err = vi.ErrClosed
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if w.got != nil && err != vi.ErrClosed {
		return w.got, nil // if there is a request, it is returned although ctx has ended
	}
	if w.got != nil {
		w.got.answerLocked(answer{err: vi.ErrNotReachable})
	}
	n.waits = slices.DeleteFunc(n.waits, func(o *wait) bool { return o == w })
	return nil, err
}

// An answer is the result of a connection request or a peer request.
type answer struct {
	l   *link
	g   vi.Agreement
	err error
}

// A request is a connection request passed to a wait.
type request struct {
	d             *device // the device where the request arrived
	ep            *vi.Endpoint
	local, remote vi.Address // the addresses from the view of the waiting side

	answered bool        // guarded by Network.mu
	answer   chan answer // has one slot, so that answering never blocks
}

func (r *request) answerLocked(a answer) bool {
	if r.answered {
		return false
	}
	r.answered = true
	delete(r.d.requests, r)
	r.answer <- a
	return true
}

// Connect finds the wait, passes the request to the wait, and waits for the answer.
func (d *device) Connect(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	n := d.net
	if !isNode(remote.Host) {
		return nil, vi.Agreement{}, vi.ErrNotReachable
	}
	n.mu.Lock()
	i := slices.IndexFunc(n.waits, func(w *wait) bool { return w.local.Equal(remote) })
	if i < 0 {
		n.mu.Unlock()
		return nil, vi.Agreement{}, vi.ErrNoMatch // without waiting [VIA-6.4-14]
	}
	w := n.waits[i]
	n.waits = slices.Delete(n.waits, i, i+1)
	r := &request{d: w.d, ep: ep, local: w.local, remote: d.own(local), answer: make(chan answer, 1)}
	w.d.requests[r] = struct{}{}
	w.got = r
	close(w.ready)
	n.mu.Unlock()
	return d.conclude(ctx, r.answer, func(err error) { r.answerLocked(answer{err: err}) })
}

func isNode(host []byte) bool { return len(host) == 4 && string(host[:3]) == "mem" }

// conclude waits for an answer. If ctx ends or the device is closed first, conclude calls withdraw;
// withdraw must make sure that an answer is in the channel.
func (d *device) conclude(ctx context.Context, answers chan answer, withdraw func(error)) (vi.Link, vi.Agreement, error) {
	var err error
	select {
	case a := <-answers:
		return a.result()
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.done.Done():
		err = vi.ErrClosed
	}
	d.net.mu.Lock()
	withdraw(err)
	d.net.mu.Unlock()
	a := <-answers
	return a.result()
}

func (a answer) result() (vi.Link, vi.Agreement, error) {
	if a.err != nil {
		return nil, vi.Agreement{}, a.err
	}
	return a.l, a.g, nil
}

func (r *request) Remote() vi.Address              { return r.remote }
func (r *request) Local() vi.Address               { return r.local }
func (r *request) RemoteAttributes() vi.Attributes { return told(r.ep) }
func (r *request) Security() []byte                { return bytes.Clone(r.ep.Attributes().Security) }

// Accept makes the connection. It fails if the requester has cancelled the request.
func (r *request) Accept(ctx context.Context, ep *vi.Endpoint) (vi.Link, vi.Agreement, error) {
	mine, theirs := r.d.net.join(ep, r.ep)
	r.d.net.mu.Lock()
	defer r.d.net.mu.Unlock()
	if !r.answerLocked(answer{l: theirs, g: agree(r.ep, ep, r.local)}) {
		return nil, vi.Agreement{}, vi.ErrTimeout
	}
	return mine, agree(ep, r.ep, r.remote), nil
}

func (r *request) Reject() error {
	r.d.net.mu.Lock()
	defer r.d.net.mu.Unlock()
	r.answerLocked(answer{err: vi.ErrReject})
	return nil
}

// told returns the attributes of a VI as seen by the other side, without the tag.
func told(ep *vi.Endpoint) vi.Attributes {
	a := ep.Attributes()
	a.Ptag = nil // a tag has no meaning at the other side
	a.Security = bytes.Clone(a.Security)
	return a
}

// agree returns the agreement from the view of self.
func agree(self, remote *vi.Endpoint, addr vi.Address) vi.Agreement {
	a, b := self.Attributes(), told(remote)
	g := vi.Agreement{Remote: b, RemoteAddress: addr, MaxTransferSize: min(a.MaxTransferSize, b.MaxTransferSize)}
	g.ReadWindow = window(b)
	return g
}

// window returns the number of RDMA Reads a VI serves at once. The window is 1 for a VI that serves
// none, because the VI refuses Reads one at a time.
func window(a vi.Attributes) int {
	switch {
	case a.ReadWindow > 0:
		return a.ReadWindow
	case a.EnableRDMARead:
		return readWindow
	}
	return 1
}

// A peerReq is a pending peer-to-peer request.
type peerReq struct {
	ep            *vi.Endpoint
	local, remote vi.Address
	answer        chan answer // has one slot, so that answering never blocks
}

// ConnectPeer searches for the matching request of the peer. If there is none yet, the peer's
// request will find this request. [VIA 6.4.6] [VIA-6.4-21] [VIA-6.4-23]
func (d *device) ConnectPeer(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	n := d.net
	p := &peerReq{ep: ep, local: d.own(local), remote: remote, answer: make(chan answer, 1)}
	n.mu.Lock()
	i := slices.IndexFunc(n.peers, func(o *peerReq) bool { return o.local.Equal(p.remote) && o.remote.Equal(p.local) })
	if i < 0 {
		n.peers = append(n.peers, p)
	} else {
		o := n.peers[i]
		n.peers = slices.Delete(n.peers, i, i+1)
		if a, b := ep.Attributes(), o.ep.Attributes(); a.Reliability != b.Reliability ||
			a.FlowControl != b.FlowControl {
			o.answer <- answer{err: vi.ErrInvalidReliability}
			p.answer <- answer{err: vi.ErrInvalidReliability}
		} else {
			mine, theirs := n.join(ep, o.ep)
			o.answer <- answer{l: theirs, g: agree(o.ep, ep, p.local)}
			p.answer <- answer{l: mine, g: agree(ep, o.ep, o.local)}
		}
	}
	n.mu.Unlock()
	return d.conclude(ctx, p.answer, func(err error) {
		if i := slices.Index(n.peers, p); i >= 0 {
			n.peers = slices.Delete(n.peers, i, i+1)
			p.answer <- answer{err: err}
		}
	})
}

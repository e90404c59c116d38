package vi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"viaduct/internal/perturb"
)

// An attempt is an attempt to connect a VI.
type attempt struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when remote and err are set
	remote Attributes
	err    error
}

// begin moves an Idle VI to Connect Pending. In any other state the error is ErrInvalidState. With
// peer, ConnectPeerDone or ConnectPeerWait will return the result. [VIA 2.2]
func (v *VI) begin(ctx context.Context, peer bool) (context.Context, *attempt, *Endpoint, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gone {
		return nil, nil, nil, ErrClosed
	}
	if v.State() != Idle { // [VIA-2.3-4] [VIA-2.2-10] [VIA-1.1-4]
		return nil, nil, nil, fmt.Errorf("%w: %v", ErrInvalidState, v.State())
	}
	if !v.nic.beginAttempt() {
		return nil, nil, nil, ErrClosed
	}
	v.send.failed.Store(false)
	ctx, cancel := context.WithCancelCause(ctx)
	v.attempt = &attempt{cancel: cancel, done: make(chan struct{})}
	v.peer = nil
	if peer {
		v.peer = v.attempt
	}
	v.setStateLocked(ConnectPending) // [VIA-2.2-2] [VIA-2.2-3] [VIA-2.2-4]
	return ctx, v.attempt, &Endpoint{
		v: v, attrs: v.attrs, domain: v.domain,
		recvBase: v.recv.q.Counts().Started,
	}, nil
}

// end concludes an attempt. Without an error the VI becomes Connected; otherwise the VI becomes
// Idle again and the receives stay posted. If Disconnect or Close was called during the attempt,
// end disconnects l and returns ErrInvalidState. [VIA 2.2]
func (v *VI) end(ctx context.Context, a *attempt, ep *Endpoint, l Link, g Agreement, err error) (Attributes, error) {
	defer v.nic.attempts.Done()
	v.mu.Lock()
	if v.attempt != a {
		// Disconnect or Close was called during the attempt.
		v.mu.Unlock()
		if l != nil {
			v.nic.stop(l, StopDisconnect)
			v.nic.end(l)
			l.Wait()
		}
		err = ErrInvalidState
	} else {
		v.attempt = nil
		if err == nil {
			ep.link, ep.agreed, ep.remote = l, g, g.RemoteAddress
			ep.direct, _ = l.(directSender)
			v.conn.Store(ep)
			v.setStateLocked(Connected) // [VIA-2.2-5]
		} else {
			v.setStateLocked(Idle) // [VIA-2.2-6] [VIA-6.4-22] [VIA-8.3-6]
			err = connectError(ctx, err)
		}
		v.mu.Unlock()
	}
	a.remote, a.err = g.Remote, err
	close(a.done)
	a.cancel(nil)
	if err == nil {
		l.Start()
	}
	return g.Remote, err
}

// connectError converts the end of ctx to VIPL's error: ErrTimeout for a deadline, and otherwise
// the cause. Any other err is returned unchanged.
func connectError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, cause)) {
		return waitError(cause) // [VIA-6.4-19]
	}
	return err
}

// ConnectRequest connects the VI, in the client-server model, to a VI for which a program waits at
// remote. It returns the remote VI's attributes. local names the caller to the other side. The call
// blocks until an answer arrives or ctx ends.
//
// Errors: ErrTimeout, ErrReject, ErrNoMatch, ErrNotReachable, ErrInvalidState,
// ErrInvalidReliability, ErrInvalidMTU, ErrInvalidParameter, ErrResource, ErrClosed, or the
// context's. After an error other than ErrInvalidState the VI is Idle again.
func (v *VI) ConnectRequest(ctx context.Context, local, remote Address) (Attributes, error) { // [VIA 6.4.5] [VIA-6.4-18] [VIA-8.3-9]
	return v.connect(ctx, local, remote, v.nic.dev.Connect)
}

type connector func(context.Context, *Endpoint, Address, Address) (Link, Agreement, error)

func (v *VI) connect(ctx context.Context, local, remote Address, via connector) (Attributes, error) {
	if err := v.nic.checkAddresses(local, remote); err != nil {
		return Attributes{}, err
	}
	ctx, a, ep, err := v.begin(ctx, false)
	if err != nil {
		return Attributes{}, err
	}
	l, g, err := via(ctx, ep, local, remote)
	return v.end(ctx, a, ep, l, g, err)
}

// beginAttempt counts an attempt, unless the NIC is closing: Close cancels the attempts of all VIs,
// and waits for them.
func (n *NIC) beginAttempt() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.attempts.Add(1)
	return true
}

func (n *NIC) checkAddresses(as ...Address) error {
	for _, a := range as {
		if len(a.Discriminator) > n.attrs.MaxDiscriminatorLen { // [VIA-7-3]
			return fmt.Errorf("%w: discriminator of %d bytes, at most %d", ErrInvalidParameter,
				len(a.Discriminator), n.attrs.MaxDiscriminatorLen)
		}
	}
	return nil
}

// ConnectPeerRequest requests a connection in the peer-to-peer model. The other VI must make a
// request with the two addresses exchanged. The call returns at once. The VI is Connect Pending
// until ConnectPeerDone or ConnectPeerWait can return the result, at the latest after timeout (0 or
// less: no limit).
//
// Errors: ErrInvalidState, ErrInvalidParameter, ErrClosed.
func (v *VI) ConnectPeerRequest(local, remote Address, timeout time.Duration) error { // [VIA 6.4.6]
	if err := v.nic.checkAddresses(local, remote); err != nil {
		return err
	}
	ctx, stop := context.Background(), context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, stop = context.WithTimeout(ctx, timeout)
	}
	ctx, a, ep, err := v.begin(ctx, true)
	if err != nil {
		stop()
		return err
	}
	go func() { // [VIA-6.4-21] [VIA-8.3-8]
		defer stop()
		l, g, err := v.nic.dev.ConnectPeer(ctx, ep, local, remote)
		v.end(ctx, a, ep, l, g, err)
	}()
	return nil
}

// ConnectPeerDone returns the result of ConnectPeerRequest, once, or ErrNotDone while there is
// none. Without a request, or after the result was returned, the error is ErrInvalidState.
func (v *VI) ConnectPeerDone() (Attributes, error) { // [VIA 6.4.6]
	a, err := v.peerAttempt()
	if err != nil {
		return Attributes{}, err
	}
	select {
	case <-a.done:
		return v.peerResult(a)
	default:
		return Attributes{}, ErrNotDone
	}
}

// ConnectPeerWait waits for the result of ConnectPeerRequest. The end of ctx ends the wait, but not
// the connection attempt. Without a request the error is ErrInvalidState.
func (v *VI) ConnectPeerWait(ctx context.Context) (Attributes, error) { // [VIA 6.4.6]
	a, err := v.peerAttempt()
	if err != nil {
		return Attributes{}, err
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		select {
		case <-a.done:
		default:
			return Attributes{}, waitError(context.Cause(ctx))
		}
	}
	return v.peerResult(a)
}

func (v *VI) peerAttempt() (*attempt, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.gone:
		return nil, ErrClosed
	case v.peer == nil:
		return nil, fmt.Errorf("%w: no peer request", ErrInvalidState)
	}
	return v.peer, nil
}

func (v *VI) peerResult(a *attempt) (Attributes, error) {
	v.mu.Lock()
	if v.peer == a {
		v.peer = nil
	}
	v.mu.Unlock()
	return a.remote, a.err
}

// Disconnect ends the VI's connection, or cancels a connection attempt. The VI becomes Idle at
// once. Every incomplete descriptor completes as flushed, and the program must still dequeue all of
// them. Data of completed sends is still delivered. On an Idle VI Disconnect flushes the posted
// receives.
func (v *VI) Disconnect() error { // [VIA 6.4.5]
	v.mu.Lock()
	gone := v.gone
	v.mu.Unlock()
	if gone {
		return ErrClosed
	}
	v.disconnect()
	return nil
}

func (v *VI) disconnect() { // [VIA-2.2-8] [VIA-2.2-12] [VIA-2.2-13] [VIA-2.3-5]
	if l := v.letGo(); l != nil {
		v.nic.end(l)
	}
}

// letGo makes the VI Idle. It returns the former, now stopped link of the VI, or nil if there was
// none.
func (v *VI) letGo() (l Link) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.attempt; a != nil {
		v.attempt = nil
		a.cancel(ErrInvalidState) // [VIA-2.2-7] [VIA-6.4-22]
	}
	if ep := v.conn.Load(); ep != nil {
		l = ep.link
		v.keepTraffic(l)
		v.conn.Store(nil)
		v.nic.stop(l, StopDisconnect)
		v.keepTraffic(l)
	}
	if v.State() != Idle {
		v.setStateLocked(Idle)
	}
	v.send.flush(StatusFlushed)
	v.recv.flush(StatusFlushed)
	return l
}

// Link returns the provider's object for the connection, for example for statistics, or nil if the
// VI is not connected.
func (v *VI) Link() Link {
	if ep := v.conn.Load(); ep != nil {
		return ep.link
	}
	return nil
}

// RemoteAddress returns the address of the connected peer. It returns false if the VI is not
// connected.
func (v *VI) RemoteAddress() (Address, bool) {
	if ep := v.conn.Load(); ep != nil {
		return ep.remote, true
	}
	return Address{}, false
}

// A ConnRequest is an incoming connection request. VIPL calls it a connection handle. It must be
// accepted or rejected.
type ConnRequest struct { // [VIA 6.4.5]
	nic *NIC
	req Request

	mu      perturb.Mutex
	decided bool // guarded by mu
}

// ConnectWait waits for a connection request for local's discriminator. The provider answers a
// request with No Match if no call waits for the discriminator.
//
// Errors: ErrTimeout, ErrInvalidParameter, ErrResource, ErrClosed, or the context's.
func (n *NIC) ConnectWait(ctx context.Context, local Address) (*ConnRequest, error) { // [VIA 6.4.5]
	if err := n.checkAddresses(local); err != nil {
		return nil, err
	}
	req, err := n.dev.Wait(ctx, local) // [VIA-6.4-13] [VIA-6.4-15]
	if err != nil {
		return nil, connectError(ctx, err)
	}
	return &ConnRequest{nic: n, req: req}, nil
}

// Remote returns the caller's address.
func (r *ConnRequest) Remote() Address { return r.req.Remote() }

// Local returns the address the caller has requested.
func (r *ConnRequest) Local() Address { return r.req.Local() }

// RemoteAttributes returns the attributes of the caller's VI.
func (r *ConnRequest) RemoteAttributes() Attributes { return r.req.RemoteAttributes() }

// Security returns the security information of the request.
func (r *ConnRequest) Security() []byte { return r.req.Security() } // [VIT 3.2]

// Accept connects v with the caller. The reliability level and the flow control of v must equal the
// caller's. If either differs, the error is ErrInvalidReliability and the request is still open.
// The request also stays open if v is in the wrong state or of another NIC. The transfer size
// becomes the smaller of the two.
//
// A provider may have further reasons to find v unsuitable, for example vitcp.Config.StrictEnables.
// It then refuses the request, and the error is ErrInvalidReliability or ErrInvalidMTU too.
//
// Other errors: ErrInvalidParameter if the request was answered before, ErrTimeout if the caller
// has cancelled the request, ErrResource, ErrClosed, or the context's.
func (r *ConnRequest) Accept(ctx context.Context, v *VI) error { // [VIA 6.4.5]
	if v == nil || v.nic != r.nic {
		return fmt.Errorf("%w: VI", ErrInvalidParameter)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.decided {
		return fmt.Errorf("%w: the request was answered", ErrInvalidParameter)
	}
	ctx, a, ep, err := v.begin(ctx, false)
	if err != nil {
		return err
	}
	if err := ep.match(r.req.RemoteAttributes()); err != nil {
		_, err = v.end(ctx, a, ep, nil, Agreement{}, err)
		return err
	}
	r.decided = true
	l, g, err := r.req.Accept(ctx, ep)
	_, err = v.end(ctx, a, ep, l, g, err)
	return err
}

// match returns an error if a VI with the attributes remote can't be connected with e's VI. [VIA
// 6.4.5] [V-15] [VIA-6.4-16] [VIA-8.3-7]
func (e *Endpoint) match(remote Attributes) error {
	if e.attrs.Reliability != remote.Reliability {
		return fmt.Errorf("%w: %v, the caller's is %v", ErrInvalidReliability, e.attrs.Reliability, remote.Reliability)
	}
	if e.attrs.FlowControl != remote.FlowControl {
		return fmt.Errorf("%w: descriptor flow control %v, the caller's is %v", ErrInvalidReliability,
			e.attrs.FlowControl, remote.FlowControl)
	}
	return nil
}

// Reject answers the request with a refusal. It returns ErrInvalidParameter if the request was
// answered already.
func (r *ConnRequest) Reject() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.decided {
		return fmt.Errorf("%w: the request was answered", ErrInvalidParameter)
	}
	r.decided = true
	return r.req.Reject() // [VIA-6.4-17]
}

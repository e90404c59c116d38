package vi

import (
	"context"

	"viaduct/internal/attend"
)

// A Provider is a network mapping of the VI Architecture: VI/TCP, FC-VI. It
// is passed to [Open]; package vi knows none by name.
type Provider interface {
	// Open opens the device called name. The NIC is the engine's side of it,
	// good until Device.Close. An unknown name is ErrInvalidParameter.
	Open(name string, nic *NIC) (Device, error)
}

// A Device is a provider's side of an open NIC. Methods are called
// concurrently.
type Device interface {
	// Attributes are constant from open to close.
	Attributes() NICAttributes

	// Connect sets a client-server connection up. It returns a Link that
	// has not begun to handle anything that arrives, and what the two sides
	// agreed on. Errors: ErrReject, ErrNoMatch, ErrNotReachable,
	// ErrInvalidReliability, ErrInvalidMTU, ErrResource, or the context's.
	// After an error nothing of the attempt is left.
	Connect(ctx context.Context, ep *Endpoint, local, remote Address) (Link, Agreement, error)

	// ConnectPeer is Connect in the peer-to-peer model: it keeps trying
	// until a peer request that matches is found or ctx ends.
	ConnectPeer(ctx context.Context, ep *Endpoint, local, remote Address) (Link, Agreement, error)

	// Wait waits for a connection request whose called discriminator is
	// local's. Requests that come while no call waits are answered with No
	// Match. Several waits may be pending, on equal discriminators too.
	Wait(ctx context.Context, local Address) (Request, error)

	// FormatHost writes a host part the way people do, ParseHost reads
	// it. They serve the name service and messages.
	FormatHost(host []byte) string
	ParseHost(s string) ([]byte, error)

	// LookupHost asks the system's name service. FC-VI, which has none,
	// answers ErrNameService.
	LookupHost(ctx context.Context, name string) ([][]byte, error)
	LookupAddr(ctx context.Context, host []byte) (string, error)

	// Close ends waits and half-open connections, and returns when no
	// goroutine of the device is left. Links were stopped before.
	Close() error

	// Attributes [VIA 6.2], Connect [VIA 6.4.5], ConnectPeer [VIA 6.4.6] [VIT 4].
}

// A Request is an incoming connection request that matched a wait.
type Request interface {
	Remote() Address              // the caller's host and calling discriminator
	Local() Address               // the called one
	RemoteAttributes() Attributes // what the caller offers
	Security() []byte             // the security information, nil if none

	// Accept answers the request for ep, whose attributes were found to
	// match. It returns as Device.Connect does. Accepting fails with
	// ErrTimeout if the caller gave up meanwhile.
	Accept(ctx context.Context, ep *Endpoint) (Link, Agreement, error)

	// Reject answers the request with a refusal.
	Reject() error

	// Security [VIT 3.2].
}

// An Agreement is what both sides of a connection hold to.
type Agreement struct {
	Remote          Attributes // the remote VI's attributes, as it told them
	RemoteAddress   Address
	MaxTransferSize uint32 // bytes of the longest message, the lesser of both
	ReadWindow      int    // RDMA Reads this side may have outstanding
}

// A Link is an established connection, as the engine drives it. The provider
// moves descriptors through an [Endpoint].
//
// No method blocks for the peer, except that Wait does what it says.
type Link interface {
	// Start begins to handle what arrives and to send what is posted. It is
	// called at most once, after the VI has become Connected. SendPosted and
	// RecvPosted may come before, and so may Stop: Start does nothing then.
	Start()

	// SendPosted is the doorbell of the send queue, RecvPosted that of the
	// receive queue. Called from any goroutine.
	SendPosted()
	RecvPosted()

	// Poll handles what has arrived, without blocking, and tells whether
	// anything had: a consumer that waits looks at the connection itself for a
	// moment. Unpoll tells that it goes to sleep, so that something else has to
	// handle what arrives from now on.
	Poll() bool
	Unpoll()

	// Stop ends the connection. When it returns, the provider touches
	// neither a descriptor nor local or registered memory of this connection
	// any more, and calls no method of the Endpoint. Ending the wire goes on
	// in the background, as reason demands: data of sends that completed
	// successfully is still delivered after StopDisconnect, and what explains
	// an error to the peer after StopBroken. Stop is called once. It is not
	// called from a goroutine that runs a method of the provider's data path.
	Stop(reason StopReason)

	// Wait waits until nothing of the link is left: Device.Close needs it.
	Wait()
}

// A dozer is a Link whose consumer can sleep on it itself. See
// internal/attend.SourceSleeper.
type dozer interface {
	Expects() bool
	Near() bool
	SleepAt(s *attend.Sleeper) bool
}

// A directSender is a Link that can send a short message with less ado where nothing else
// is under way. SendOne is given a descriptor that is about to be posted, and may post it by
// Endpoint.PostStarted. It reports whether it has: if not, the engine posts it and calls
// SendPosted.
type directSender interface {
	SendOne(d *Descriptor) (posted bool)
}

// An ender is a Link that leaves to End what Stop would have go on in the background.
// The engine calls it once after Stop, without a lock. gone is called when nothing of the
// link is left, before End returns or later, in any goroutine.
type ender interface {
	End(gone func())
}

// A StopReason says why the engine stops a Link.
type StopReason uint8

const (
	StopDisconnect StopReason = iota // the local consumer disconnects
	StopBroken                       // the connection broke: an error, or the peer is gone
)

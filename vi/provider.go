package vi

import (
	"context"

	"viaduct/internal/attend"
)

// A Provider is a network mapping of the VI Architecture: VI/TCP, FC-VI. It
// is passed to [Open]; package vi knows none by name.
type Provider interface {
	// Open opens the device called name. nic is the engine's side of it, valid until Device.Close.
	// The error for an unknown name is ErrInvalidParameter.
	Open(name string, nic *NIC) (Device, error)
}

// A Device is a provider's side of an open NIC. Methods are called
// concurrently.
type Device interface {
	// Attributes are constant from open to close.
	Attributes() NICAttributes

	// Connect sets up a client-server connection. It returns a Link that has not begun to handle
	// arrivals, and the attributes that the two sides agreed on. Errors: ErrReject, ErrNoMatch,
	// ErrNotReachable, ErrInvalidReliability, ErrInvalidMTU, ErrResource, or the context's. A
	// failed attempt leaves no resources behind.
	Connect(ctx context.Context, ep *Endpoint, local, remote Address) (Link, Agreement, error)

	// ConnectPeer is Connect in the peer-to-peer model: it keeps trying until it finds a matching
	// peer request or ctx ends.
	ConnectPeer(ctx context.Context, ep *Endpoint, local, remote Address) (Link, Agreement, error)

	// Wait waits for a connection request whose called discriminator is local's. Requests that
	// arrive while no call waits are answered with No Match. Several waits may be pending, also on
	// equal discriminators.
	Wait(ctx context.Context, local Address) (Request, error)

	// FormatHost returns the text form of a host part, and ParseHost parses it. The name service
	// and messages use them.
	FormatHost(host []byte) string
	ParseHost(s string) ([]byte, error)

	// LookupHost asks the system's name service. FC-VI, which has none, returns ErrNameService.
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
	RemoteAttributes() Attributes // the caller's attributes
	Security() []byte             // the security information, nil if none

	// Accept answers the request for ep, whose attributes were found to
	// match. It returns as Device.Connect does. Accepting fails with
	// ErrTimeout if the caller gave up meanwhile.
	Accept(ctx context.Context, ep *Endpoint) (Link, Agreement, error)

	// Reject answers the request with a refusal.
	Reject() error

	// Security [VIT 3.2].
}

// An Agreement holds the parameters that both sides of a connection have agreed on.
type Agreement struct {
	Remote          Attributes // the remote VI's attributes, as it announced them
	RemoteAddress   Address
	MaxTransferSize uint32 // bytes of the longest message, the lesser of both
	ReadWindow      int    // RDMA Reads this side may have outstanding
}

// A Link is an established connection, driven by the engine. The provider moves descriptors through
// an [Endpoint].
//
// No method blocks for the peer, except Wait.
type Link interface {
	// Start begins to handle arrivals and to send posted descriptors. It is called at most once,
	// after the VI has become Connected. SendPosted and RecvPosted may be called before Start. So
	// may Stop, and Start then does nothing.
	Start()

	// SendPosted is the doorbell of the send queue and RecvPosted the one of the receive queue. Any
	// goroutine may call them.
	SendPosted()
	RecvPosted()

	// Poll handles arrivals, without blocking, and reports whether there were any. A consumer that
	// waits polls for a moment. Unpoll announces that the consumer goes to sleep, so that something
	// else must handle arrivals from now on.
	Poll() bool
	Unpoll()

	// Stop ends the connection. When it returns, the provider touches neither a descriptor nor
	// local or registered memory of this connection any more, and calls no method of the Endpoint.
	// The wire is ended in the background, depending on reason: after StopDisconnect, data of
	// successfully completed sends is still delivered; after StopBroken, a message that explains an
	// error to the peer is. Stop is called once. It is not called from a goroutine that runs a
	// method of the provider's data path.
	Stop(reason StopReason)

	// Wait waits until the link has ended completely, for Device.Close.
	Wait()
}

// A dozer is a Link whose consumer can sleep on it itself. See
// internal/attend.SourceSleeper.
type dozer interface {
	Expects() bool
	Near() bool
	SleepAt(s *attend.Sleeper) bool
}

// A directSender is a Link with a shorter path for a short message when nothing else is in
// progress. SendOne gets a descriptor that is about to be posted, and may post it by
// Endpoint.PostStarted. It reports whether it did: otherwise the engine posts the descriptor and
// calls SendPosted.
type directSender interface {
	SendOne(d *Descriptor) (posted bool)
}

// An ender is a Link whose End ends the wire, instead of Stop in the background. The engine calls
// End once after Stop, without a lock. The link calls gone once it has ended completely, before End
// returns or later, in any goroutine.
type ender interface {
	End(gone func())
}

// A StopReason says why the engine stops a Link.
type StopReason uint8

const (
	StopDisconnect StopReason = iota // the local consumer disconnects
	StopBroken                       // the connection broke: an error, or the peer is gone
)

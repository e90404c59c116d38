package vi

import (
	"context"

	"viaduct/internal/attend"
)

// A Provider is a network mapping of the VI Architecture, for example VI/TCP or FC-VI. The program
// passes a provider to [Open]; package vi imports none.
type Provider interface {
	// Open opens the device called name. nic is the engine's side of the device, valid until
	// Device.Close. The error for an unknown name is ErrInvalidParameter.
	Open(name string, nic *NIC) (Device, error)
}

// A Device is a provider's side of an open NIC. Its methods may be called concurrently.
type Device interface {
	// Attributes returns the NIC's attributes. They do not change while the NIC is open.
	Attributes() NICAttributes

	// Connect sets up a client-server connection. It returns a Link, idle until Start, and the
	// parameters the two sides agreed on. Errors: ErrReject, ErrNoMatch, ErrNotReachable,
	// ErrInvalidReliability, ErrInvalidMTU, ErrResource, or the context's. After an error no
	// resources remain allocated.
	Connect(ctx context.Context, ep *Endpoint, local, remote Address) (Link, Agreement, error)

	// ConnectPeer is Connect in the peer-to-peer model. It keeps trying until a peer request
	// matches or ctx ends.
	ConnectPeer(ctx context.Context, ep *Endpoint, local, remote Address) (Link, Agreement, error)

	// Wait waits for a connection request with the discriminator of local. The device answers a
	// request with No Match if no call waits for the discriminator. Several calls may wait at the
	// same time, also for equal discriminators.
	Wait(ctx context.Context, local Address) (Request, error)

	// FormatHost returns the text form of a host part, and ParseHost parses the text form. The name
	// service and messages use both methods.
	FormatHost(host []byte) string
	ParseHost(s string) ([]byte, error)

	// LookupHost returns the host parts of a name in the system's name service, and LookupAddr
	// returns the name for a host part. A provider without a name service, for example FC-VI,
	// returns ErrNameService.
	LookupHost(ctx context.Context, name string) ([][]byte, error)
	LookupAddr(ctx context.Context, host []byte) (string, error)

	// Close ends all waits and half-open connections. It returns when no goroutine of the device is
	// left. The engine has stopped all links before.
	Close() error

	// Attributes [VIA 6.2], Connect [VIA 6.4.5], ConnectPeer [VIA 6.4.6] [VIT 4].
}

// A Request is an incoming connection request after a matching wait.
type Request interface {
	Remote() Address              // the caller's host and calling discriminator
	Local() Address               // the host and the discriminator that were called
	RemoteAttributes() Attributes // the caller's attributes
	Security() []byte             // the security information, or nil

	// Accept answers the request for ep. The engine has already matched the attributes of ep.
	// Accept returns the same results as Device.Connect, and ErrTimeout if the caller has cancelled
	// the request. After an error, whatever its reason, the request is refused or has ended.
	Accept(ctx context.Context, ep *Endpoint) (Link, Agreement, error)

	// Reject answers the request with a refusal.
	Reject() error

	// Security [VIT 3.2].
}

// An Agreement holds the agreed parameters of a connection.
type Agreement struct {
	Remote          Attributes // the remote VI's attributes, as it announced them
	RemoteAddress   Address
	MaxTransferSize uint32 // length of the longest message in bytes, the smaller value of both sides
	ReadWindow      int    // number of RDMA Reads that this side may have outstanding
}

// A Link is an established connection. The engine calls the methods, and the provider moves
// descriptors through an [Endpoint].
//
// No method except Wait waits for the peer.
type Link interface {
	// Start begins to handle arrivals and to send posted descriptors. The engine calls Start at
	// most once, after the VI has become Connected. The engine may call SendPosted, RecvPosted and
	// Stop before Start. After Stop, Start has no effect.
	Start()

	// SendPosted is the doorbell of the send queue, and RecvPosted the doorbell of the receive
	// queue. Any goroutine may call both.
	SendPosted()
	RecvPosted()

	// Poll handles arrivals without blocking, and reports whether there were any. A consumer polls
	// for a moment before it sleeps. Unpoll announces that the consumer stops polling, so that
	// another goroutine must handle arrivals from now on.
	Poll() bool
	Unpoll()

	// Stop ends the connection. When Stop has returned, the provider accesses no descriptor and no
	// local or registered memory of the connection, and calls no method of the Endpoint. The
	// network connection ends in the background, depending on reason. After StopDisconnect the
	// provider still delivers the data of successfully completed sends. After StopBroken it still
	// sends the error report to the peer. The engine calls Stop once, never from a goroutine inside
	// a method of the provider's data path.
	Stop(reason StopReason)

	// Wait waits until the link has ended completely. NIC.Close calls Wait.
	Wait()
}

// A dozer is a Link where a consumer itself can sleep. See internal/attend.SourceSleeper.
type dozer interface {
	Expects() bool
	Near() bool
	SleepAt(s *attend.Sleeper) bool
}

// A directSender is a Link able to send a short message without the send queue, if no other message
// is in progress. SendOne gets a descriptor that is about to be posted. It returns true after
// posting the descriptor by Endpoint.PostStarted. Otherwise the engine posts the descriptor and
// calls SendPosted.
type directSender interface {
	SendOne(d *Descriptor) (posted bool)
}

// An ender is a Link whose Stop leaves the network connection open until End. The engine calls End
// once after Stop, without holding a lock. The link calls gone once, at its complete end, before
// End returns or later, from any goroutine.
type ender interface {
	End(gone func())
}

// A StopReason says why the engine stops a Link.
type StopReason uint8

const (
	StopDisconnect StopReason = iota // the local consumer disconnects
	StopBroken                       // the connection broke: an error, or the peer has gone
)

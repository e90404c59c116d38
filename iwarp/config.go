package iwarp

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/samehost"
)

// Timers of our choice.
const ( // [I-14] [I-33] [I-36]
	defaultRequestTimeout   = 10 * time.Second
	defaultReplyTimeout     = 30 * time.Second
	defaultFirstFPDUTimeout = 10 * time.Second
	defaultCloseTimeout     = 5 * time.Second

	terminateTimeout = 2 * time.Second // for the socket to take a Terminate
	drainTimeout     = 5 * time.Second // for the peer to close after a Terminate
	rejectTimeout    = 1 * time.Second // for the peer to close after a rejection
	nudgeDelay       = 20 * time.Millisecond
	nudges           = 3
)

// DefaultDepth is the default depth of a send or receive queue.
const DefaultDepth = 128

// A Config says how streams are made. A nil *Config and the zero value are
// right for most. A Config may be used for many streams, but not changed while
// it is in use.
type Config struct {
	// Where the stream belongs. Nil means an own one for each stream, so that
	// nothing is shared.
	Device *Device
	PD     *ProtectionDomain
	SendCQ *CompletionQueue
	RecvCQ *CompletionQueue // may be the same as SendCQ
	SRQ    *SharedReceiveQueue
	// Source, if set, takes the place of posted receives: RecvDepth is then how
	// many messages may have come whose completions were not polled.
	Source RecvSource

	// SendDepth and RecvDepth are how many requests each queue takes, from
	// posting until the completion is polled; 0 means DefaultDepth.
	SendDepth, RecvDepth int
	// SRQShare is how many buffers of SRQ this stream may hold that were not
	// polled yet; 0 means no limit of its own. A peer that needs more ends its
	// stream, and an unfinished message holds one.
	SRQShare int

	// Prepare, if set, is called with the new stream before start-up frames
	// are exchanged. It is the place to post receives: once both sides are
	// ready the peer's first message may be there at any time.
	Prepare func(*QueuePair) error

	// Polled says that the caller begins by polling the completion queues, or by
	// waiting at them, and leaves the stream to its own goroutine only by that:
	// until the first Wait or Arm nothing is received but by polling. It spares
	// a set-up the start of that goroutine.
	Polled bool

	// Private is the private data of a Request, or of the Reply of a Server or
	// Listener that accepts everything. At most 252 bytes reach every peer;
	// some cut 252 and more short.
	Private []byte
	// MaxPrivate is the greatest PD_Length sent; 0 means 256, at most 512.
	MaxPrivate int

	// IRD is how many Reads of the peer are served at a time, ORD how many of
	// ours may be outstanding. Zero means 16, negative none. What holds after
	// start-up is told by QueuePair.IRD and ORD.
	IRD, ORD int
	// MaxIRD is how far IRD may be raised if the peer wants it; 0 means 128.
	MaxIRD int
	// MinORD makes a Responder reject peers that serve fewer Reads.
	MinORD int
	// ULPDepth says in the Request that the two ULPs settle the depths.
	ULPDepth bool

	// Plain uses revision 1 of MPA, without depths and peer-to-peer model.
	Plain bool
	// PlainFallback lets Dial try revision 1 on a second connection if the
	// peer closed the first without a word.
	PlainFallback bool
	// PlainOnly makes a Responder refuse revision 2.
	PlainOnly bool
	// ClientServer asks for the model in which the Initiator's ULP sends
	// first. Without it the stack itself opens the way.
	ClientServer bool
	// EarlyResponder lets a Responder send before it has received an FPDU,
	// because an agreement above MPA says that the Initiator is ready. It
	// breaks a rule of RFC 5044; unknown peers must not meet it.
	EarlyResponder bool

	// Markers asks for markers in what is received. A peer that asks gets them
	// in any case.
	Markers bool
	// FPDUSize fixes the ULPDU size in bytes, 128 to 64766, instead of fitting
	// FPDUs to TCP segments. Software peers take any size and large ones are
	// faster; adapters may be slow with FPDUs that are not aligned. 0 means
	// fitting, which is about 64 KiB on a loopback interface.
	FPDUSize int
	// MaxFPDU is the greatest ULPDU accepted; 0 means all.
	MaxFPDU int

	// Atomic and Immediate enable the messages of RFC 7306. There is no
	// negotiation on the wire: enable them only if the peer has them.
	Atomic, Immediate bool
	// MaxRead is the greatest RDMA Read served, in bytes; 0 means no limit but
	// the region.
	MaxRead uint32
	// StrictInvalidate ends the stream if the peer invalidates an STag that is
	// invalid already.
	StrictInvalidate bool

	// FirstFPDUDelay delays the first FPDU of an Initiator. NoNudge switches
	// off the zero-length RDMA Write that follows a first FPDU to which nothing
	// came back for 20 ms; some peers leave a first FPDU unread.
	FirstFPDUDelay time.Duration
	NoNudge        bool

	// Timers; 0 means the default, negative means none. Idle ends a stream on
	// which nothing was sent or received for so long; none by default.
	RequestTimeout   time.Duration // Responder: the whole Request; 10 s
	ReplyTimeout     time.Duration // Initiator: the whole Reply; 30 s
	FirstFPDUTimeout time.Duration // Responder, peer-to-peer: the first FPDU; 10 s
	CloseTimeout     time.Duration // Close: draining and the peer's end, together; 5 s
	IdleTimeout      time.Duration

	// EndWithPeer ends the stream when the peer closes its direction, as a peer does
	// that closes its socket: what is posted is flushed, and [QueuePair.Err] is io.EOF.
	// Without it our direction stays open until it is closed, because a peer may close its
	// direction and still want what is sent to it. The consumers of RDMA in kernels do not:
	// they close the whole connection, and a server that waits only for
	// [QueuePair.Ended] would keep their streams for ever.
	EndWithPeer bool

	// TLS, if set, puts the stream into a TLS connection. No RFC says how; it
	// works between peers of this package. Dial needs ServerName or
	// InsecureSkipVerify as for crypto/tls. With certificates on both sides it
	// is authentication, integrity, replay protection and confidentiality;
	// without it, or IPsec of the hosts, an attacker on the path owns the memory
	// that is exposed.
	TLS *tls.Config
	// WrapConn, if set, is given each connection before anything was sent, and
	// returns what to use instead: a capture, a shaper.
	WrapConn func(net.Conn) net.Conn
	// Congestion names the congestion control of the socket, "" leaves the
	// system's. KeepAlive is the TCP keepalive period as in net.Dialer.
	Congestion string
	KeepAlive  time.Duration

	// SameHost says whether the bytes go through shared memory if the peer is a
	// process of the same user on this host that agrees; Linux only. Above TLS or
	// WrapConn they do not.
	SameHost samehost.Policy
	// SameHostDir is a directory in which the two processes meet for that if they have
	// network namespaces of their own, as containers have; both need it. See package
	// samehost.
	SameHostDir string

	// KeepConn hands the TCP connection over after a rejection, see
	// [RejectedError] and [Request.RejectKeep], instead of closing it.
	KeepConn bool

	// MaxPending and MaxPendingPerHost bound the start-ups a Listener has in
	// progress; more connections are closed at once. 0 means 256, and 32 of each
	// host but this one.
	MaxPending, MaxPendingPerHost int
	// Filter, if set, refuses connections of a Listener by address.
	Filter func(net.Addr) bool

	// Logger gets the life of streams at Info and messages at Debug; nil is
	// silent.
	Logger *slog.Logger

	portable bool      // tests: the portable path of frameio
	firstMSN [4]uint32 // tests: MSNs to begin with, 0 means 1; outgoing and incoming
	rtr      mpa.RTR   // tests: the ready messages offered, 0 means Write and Read
	forceRTR mpa.RTR   // tests: what a Responder names whatever is offered

	// Device [I-60] [SEC-2.2.4-1] [SEC-6.1.1-1] [SEC-3-2] [RDMAP-8.1.2-2] [DDP-8.3.2-2],
	// SRQShare [SEC-6.4.3.1-1] [SEC-6.4.3.1-2], Private [I-12], IRD, ORD [RDMAP-6.1-2] [RDMAP-6.1-3]
	// [RDMAP-8.1.1-12] [SEC-6.4.3.3-2] [SEC-7.2-1] [SEC-7.2-2], MinORD [MPA2-9.1-8],
	// Plain [MPA2-10-3], PlainFallback [I-02], ClientServer [MPA2-5-1] [I-06], forceRTR [I-07],
	// EarlyResponder [I-77], Markers [I-09], FPDUSize [I-26], MaxFPDU [I-25],
	// Atomic, Immediate [RDMAPX-1.1-1] [RDMAPX-1.1-2] [I-63], MaxRead [I-62], StrictInvalidate [I-55],
	// FirstFPDUDelay [I-10], TLS [SEC-5.1-1] [SEC-5.3-1] [SEC-5.4-1] [DDP-8.4-1] [DDP-8.4-2] [I-73],
	// KeepConn [I-15], MaxPending, MaxPendingPerHost [I-70].
}

// settings holds the part of the Config that a stream needs as long as it lives.
type settings struct {
	sendDepth, recvDepth int
	ord                  int
	share                int
	maxRead              uint32
	strictInvalidate     bool
	noNudge              bool
	endWithPeer          bool
	fixedSize            bool // of FPDUs
	closeTimeout         time.Duration
}

func (c *Config) settings() settings {
	return settings{
		sendDepth: c.SendDepth, recvDepth: c.RecvDepth, ord: int(c.ord()), share: c.SRQShare,
		maxRead: c.MaxRead, strictInvalidate: c.StrictInvalidate, noNudge: c.NoNudge, endWithPeer: c.EndWithPeer,
		fixedSize: c.FPDUSize != 0, closeTimeout: duration(c.CloseTimeout, defaultCloseTimeout),
	}
}

func (c *Config) clone() *Config {
	if c == nil {
		return new(Config)
	}
	d := *c
	return &d
}

func duration(v, def time.Duration) time.Duration {
	switch {
	case v == 0:
		return def
	case v < 0:
		return 0
	}
	return v
}

func depth(v, def int) uint16 {
	switch {
	case v < 0:
		return 0
	case v == 0:
		return uint16(def)
	}
	return uint16(min(v, mpa.MaxDepth))
}

func (c *Config) ird() uint16    { return depth(c.IRD, mpa.DefaultDepth) }
func (c *Config) ord() uint16    { return depth(c.ORD, mpa.DefaultDepth) }
func (c *Config) maxIRD() uint16 { return max(depth(c.MaxIRD, mpa.DefaultMaxDepth), c.ird()) }

func (c *Config) extensions() rdmap.Extensions {
	return rdmap.Extensions{Immediate: c.Immediate, Atomic: c.Atomic}
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return silent
	}
	return c.Logger
}

var silent = slog.New(slog.DiscardHandler)

// complete sets defaults and checks the other values.
func (c *Config) complete() error {
	if c.PD == nil && c.SRQ != nil {
		c.PD = c.SRQ.pd
	}
	switch {
	case c.Device == nil && c.PD != nil:
		c.Device = c.PD.dev
	case c.Device == nil:
		c.Device = NewDevice(DeviceConfig{})
	}
	if c.PD == nil {
		c.PD = c.Device.NewPD()
	}
	if c.PD.dev != c.Device || c.SRQ != nil && c.SRQ.pd != c.PD {
		return fmt.Errorf("%w: device, domain and shared receive queue do not belong together", ErrInvalid)
	}
	if c.SendDepth == 0 {
		c.SendDepth = DefaultDepth
	}
	if c.RecvDepth == 0 {
		c.RecvDepth = DefaultDepth
	}
	if c.SRQ != nil {
		c.RecvDepth = c.SRQ.q.depth
	}
	limit := c.Device.cfg.Limits.QueueDepth
	if c.SendDepth < 1 || c.SendDepth > limit || c.RecvDepth < 1 || c.RecvDepth > limit {
		return fmt.Errorf("%w: queue depths %d and %d, at most %d", ErrLimit, c.SendDepth, c.RecvDepth, limit)
	}
	if c.FPDUSize != 0 && (c.FPDUSize < mpa.MinMULPDU || c.FPDUSize > mpa.MaxSendULPDU) {
		return fmt.Errorf("%w: FPDU size %d, want %d to %d", ErrInvalid, c.FPDUSize, mpa.MinMULPDU, mpa.MaxSendULPDU)
	}
	if c.MaxFPDU < 0 || c.MaxFPDU > 0 && c.MaxFPDU < mpa.MinMULPDU {
		return fmt.Errorf("%w: greatest FPDU %d, at least %d", ErrInvalid, c.MaxFPDU, mpa.MinMULPDU)
	}
	return nil
}

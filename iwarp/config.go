package iwarp

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net"
	"time"

	"viaduct/internal/ulp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/samehost"
)

// These times are chosen here, because no RFC prescribes them.
const ( // [I-14] [I-33] [I-36]
	defaultRequestTimeout   = 10 * time.Second
	defaultReplyTimeout     = 30 * time.Second
	defaultFirstFPDUTimeout = 10 * time.Second
	defaultCloseTimeout     = 5 * time.Second

	drainTimeout  = 5 * time.Second // limit for the peer to close after a Terminate
	rejectTimeout = 1 * time.Second // limit for the peer to close after a rejection
	nudgeDelay    = 20 * time.Millisecond
	nudges        = 3
)

// terminateTimeout is the limit for the socket to take a Terminate. Tests set a longer one, because
// a busy machine may keep their peers from reading for two seconds. [I-36]
var terminateTimeout = 2 * time.Second

// DefaultDepth is the default depth of a send or receive queue.
const DefaultDepth = 128

// A Config describes how streams are made. A nil *Config and the zero value suit most uses. A
// Config may be used for many streams, but must not be changed during use.
type Config struct {
	// The objects used by the stream. For each nil field the stream makes a private object, so that
	// nothing is shared. But a nil PD becomes the domain of SRQ if SRQ is set, and a nil Device
	// becomes the device of PD. Two streams with the same CompletionQueue complete into one queue.
	Device *Device
	PD     *ProtectionDomain
	SendCQ *CompletionQueue
	RecvCQ *CompletionQueue // may be the same as SendCQ
	SRQ    *SharedReceiveQueue
	// Source, if set, replaces posted receives. It is for protocols of this module. RecvDepth then
	// limits the number of received messages whose completions were not polled.
	Source ulp.Source[SendWR, RecvWR]

	// SendDepth and RecvDepth are the numbers of requests in each queue, from posting until the
	// completion is polled; 0 means DefaultDepth.
	SendDepth, RecvDepth int
	// SRQShare limits the buffers of SRQ held by this stream, from taking a buffer until its
	// completion is polled; 0 means no limit for this stream. An unfinished message holds one
	// buffer. The stream ends if the peer needs more.
	SRQShare int

	// Prepare, if set, is called with the new stream before start-up frames are exchanged. Post
	// receives here: the peer's first message may arrive as soon as both sides are ready. If
	// Prepare returns an error, the stream is not started.
	Prepare func(*QueuePair) error

	// Polled announces that the caller begins by polling the completion queues or waiting on them.
	// The stream then starts no goroutine to receive until the first Wait or Arm, so start-up is
	// faster. Until then only polling receives.
	Polled bool

	// Private is the private data of a Request, or of the Reply of a Server or Listener that
	// accepts every Request. At most 252 bytes reach every peer, because some peers truncate longer
	// data.
	Private []byte

	// IRD is the number of the peer's Reads served at a time, and ORD the largest number of our
	// outstanding Reads. Zero means 16, negative means none. QueuePair.IRD and ORD return the
	// values in use after start-up.
	IRD, ORD int
	// MaxIRD limits the value to which a peer may raise IRD; 0 means 128.
	MaxIRD int

	// Atomic and Immediate enable the messages of RFC 7306. There is no negotiation on the wire:
	// enable only messages supported by the peer.
	Atomic, Immediate bool
	// MaxRead is the largest RDMA Read to serve, in bytes; 0 means any size.
	MaxRead uint32

	// CloseTimeout limits the time in which Close drains both directions; 0 means 5 s, negative
	// means no limit. IdleTimeout ends a stream without a sent or received byte for the given time;
	// by default there is no limit.
	CloseTimeout, IdleTimeout time.Duration

	// EndWithPeer ends the stream when the peer closes its direction, for example by closing its
	// socket. Posted requests are flushed, and [QueuePair.Err] is io.EOF. Without EndWithPeer our
	// direction stays open until the program closes it, because a peer may close one direction and
	// still want to receive. RDMA consumers in kernels never do, but close the whole connection, so
	// a server waiting only for [QueuePair.Ended] would keep the streams for ever.
	EndWithPeer bool

	// TLS, if set, runs the stream over a TLS connection. No RFC specifies iWARP over TLS; TLS
	// works between peers of this package. Dial needs ServerName or InsecureSkipVerify as for
	// crypto/tls. With certificates on both sides, TLS gives authentication, integrity, replay
	// protection and confidentiality. Without TLS, or IPsec of the hosts, an attacker on the path
	// can read and write the exposed memory.
	TLS *tls.Config
	// WrapConn, if set, is called with each connection before anything is sent. The stream uses the
	// returned connection, for example to capture or shape traffic.
	WrapConn func(net.Conn) net.Conn
	// Congestion names the congestion control of the socket, for example "bbr"; "" keeps the
	// system's default. KeepAlive is the TCP keepalive period as in net.Dialer.
	Congestion string
	KeepAlive  time.Duration

	// SameHost selects shared memory if the peer is a process of the same user on this host and
	// agrees; Linux only. Streams with TLS or WrapConn do not use it.
	SameHost samehost.Policy
	// SameHostDir is a directory where the two processes find each other if they have separate
	// network namespaces, as containers have. Both processes need to set it. See package samehost.
	SameHostDir string

	// Logger logs the beginning and the orderly end of streams and failed start-ups at Info, other
	// ends and slow applications at Warn, and details of ends at Debug. Nil logs nothing.
	Logger *slog.Logger

	Initiator InitiatorConfig // for streams made by Dial and Client
	Responder ResponderConfig // for streams made by a Listener, Server and ReadRequest

	// Interop adapts the stream to implementations that need it.
	Interop Interop

	portable bool      // for tests: use the portable path of frameio (plain net.Conn calls)
	firstMSN [4]uint32 // for tests: first MSN of each queue; 0 means 1
	rtr      mpa.RTR   // for tests: the ready messages offered; 0 means Write and Read
	forceRTR mpa.RTR   // for tests: the ready message that a Responder names, whatever is offered

	// Requirements: Device [I-60] [SEC-2.2.4-1] [SEC-6.1.1-1] [SEC-3-2] [RDMAP-8.1.2-2]
	// [DDP-8.3.2-2], SRQShare [SEC-6.4.3.1-1] [SEC-6.4.3.1-2], Private [I-12], IRD, ORD
	// [RDMAP-6.1-2] [RDMAP-6.1-3] [RDMAP-8.1.1-12] [SEC-6.4.3.3-2] [SEC-7.2-1] [SEC-7.2-2], forceRTR
	// [I-07], Atomic, Immediate [RDMAPX-1.1-1] [RDMAPX-1.1-2] [I-63], MaxRead [I-62], TLS
	// [SEC-5.1-1] [SEC-5.3-1] [SEC-5.4-1] [DDP-8.4-1] [DDP-8.4-2] [I-73], Initiator.KeepConn [I-15],
	// Responder.MinORD [MPA2-9.1-8], Responder.MaxPending, MaxPendingPerHost [I-70].
}

// An InitiatorConfig is the part of a Config for the side that asks for the stream.
type InitiatorConfig struct {
	// ReplyTimeout limits the time to receive the whole Reply, and before it the handshake of TLS; 0
	// means 30 s, negative means no limit.
	ReplyTimeout time.Duration
	// KeepConn returns the TCP connection to the caller after a rejection, instead of closing it.
	// See [RejectedError] and [Request.RejectKeep].
	KeepConn bool
}

// A ResponderConfig is the part of a Config for the side that is asked.
type ResponderConfig struct {
	// RequestTimeout limits the time to receive the whole Request, and before it the handshake of
	// TLS; 0 means 10 s, negative means no limit. FirstFPDUTimeout does the same for the first FPDU
	// of a peer-to-peer stream.
	RequestTimeout, FirstFPDUTimeout time.Duration
	// MinORD rejects a peer that serves fewer Reads at a time; 0 rejects none.
	MinORD int

	// MaxPending and MaxPendingPerHost limit the start-ups in progress of a Listener. Connections
	// beyond the limits are closed immediately. 0 means 256 in all and 32 from each other host,
	// without a separate limit for peers on this host.
	MaxPending, MaxPendingPerHost int
	// Filter, if set, is called with the address of each connection of a Listener. The Listener
	// closes the connection if Filter returns false.
	Filter func(net.Addr) bool
}

// An Interop is the part of a Config for peers that do not understand the defaults, and for tests of
// conformance. Streams between two peers of this package need none of its fields.
type Interop struct {
	// Plain uses revision 1 of MPA, without depths and without the peer-to-peer model.
	Plain bool
	// PlainFallback makes Dial try revision 1 on a second connection if the peer closed the first
	// one without an answer.
	PlainFallback bool
	// PlainOnly makes a Responder refuse revision 2.
	PlainOnly bool
	// ClientServer asks for the model where the Initiator's ULP sends first. Without ClientServer,
	// the stack itself sends a first message, and the Responder may then send.
	ClientServer bool
	// EarlyResponder lets a Responder send before an FPDU has arrived, because an agreement above
	// MPA, for example a message on another connection, ensures that the Initiator is ready.
	// Sending first breaks a rule of RFC 5044, so do not set EarlyResponder for unknown peers.
	EarlyResponder bool

	// Markers asks for markers in the received stream. A peer gets the markers it asks for in any
	// case.
	Markers bool
	// FPDUSize fixes the size of ULPDUs in bytes, 128 to 64766. 0 fits FPDUs to TCP segments, about
	// 64 KiB on a loopback interface. Software peers take any size, and large ones are faster;
	// adapters may be slow with FPDUs not aligned to segments.
	FPDUSize int
	// MaxFPDU is the largest accepted ULPDU, in bytes; 0 means no limit.
	MaxFPDU int

	// MaxPrivate is the largest PD_Length to send, in bytes; 0 means 256, at most 512.
	MaxPrivate int
	// ULPDepth announces in the Request a negotiation of the depths by the two ULPs themselves.
	ULPDepth bool
	// StrictInvalidate ends the stream if the peer invalidates an invalid STag.
	StrictInvalidate bool

	// FirstFPDUDelay delays the first FPDU of an Initiator; 0 means no delay. NoNudge switches off
	// the zero-length RDMA Writes of an Initiator while nothing arrives, the first 20 ms after its
	// first FPDU. These Writes are needed because some peers do not read a first FPDU until a
	// second arrives.
	FirstFPDUDelay time.Duration
	NoNudge        bool

	// Requirements: Plain [MPA2-10-3], PlainFallback [I-02], ClientServer [MPA2-5-1] [I-06],
	// EarlyResponder [I-77], Markers [I-09], FPDUSize [I-26], MaxFPDU [I-25], StrictInvalidate
	// [I-55], FirstFPDUDelay [I-10].
}

// settings holds the part of the Config in use until the end of the stream.
type settings struct {
	sendDepth        int
	ord, share       int32
	maxRead          uint32
	strictInvalidate bool
	endWithPeer      bool
	closeTimeout     time.Duration
}

func (c *Config) settings() settings {
	return settings{
		sendDepth: c.SendDepth, ord: int32(c.ord()), share: int32(min(c.SRQShare, math.MaxInt32)),
		maxRead: c.MaxRead, strictInvalidate: c.Interop.StrictInvalidate, endWithPeer: c.EndWithPeer,
		closeTimeout: duration(c.CloseTimeout, defaultCloseTimeout),
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

// complete sets defaults and checks the other values. The error wraps ErrInvalid or ErrLimit.
func (c *Config) complete() error {
	if c.PD == nil && c.SRQ != nil {
		c.PD = c.SRQ.mem.pd
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
	if c.PD.dev != c.Device || c.SRQ != nil && c.SRQ.mem.pd != c.PD {
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
	if c.Interop.FPDUSize != 0 && (c.Interop.FPDUSize < mpa.MinMULPDU || c.Interop.FPDUSize > mpa.MaxSendULPDU) {
		return fmt.Errorf("%w: FPDU size %d, want %d to %d", ErrInvalid, c.Interop.FPDUSize, mpa.MinMULPDU, mpa.MaxSendULPDU)
	}
	if c.Interop.MaxFPDU < 0 || c.Interop.MaxFPDU > 0 && c.Interop.MaxFPDU < mpa.MinMULPDU {
		return fmt.Errorf("%w: greatest FPDU %d, at least %d", ErrInvalid, c.Interop.MaxFPDU, mpa.MinMULPDU)
	}
	return nil
}

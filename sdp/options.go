package sdp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"viaduct/internal/wire/sdpwire"
	"viaduct/samehost"
)

// These are defaults of Options. Sizes and thresholds were chosen by measurement; see docs/sdp.md.
const (
	defaultRecvBuffers    = 32
	defaultRecvBufferSize = 256<<10 + 64 // bytes: 256 KiB of payload and the largest header
	defaultThreshold      = 1 << 20      // bytes, for writes and for reads
	defaultSocketBuffer   = 256 << 10    // bytes, for each direction
	defaultMaxAdverts     = 16
	defaultReadDepth      = 16
	defaultSetupTimeout   = 10 * time.Second
	defaultCloseTimeout   = 10 * time.Second // time that Close waits by default [D-78]
	// Time after which a closed connection is reset if the peer does not close.
	defaultLingerTimeout = 60 * time.Second

	// defaultRecvBuffers [SDP-10-3], defaultThreshold [D-39], defaultSetupTimeout [D-17].
)

// Options are the properties of connections a Dialer and a ListenConfig share. The zero value of a
// field means its default; [Defaults] returns the defaults. Options are read when a connection is
// made, and must not change meanwhile.
type Options struct {
	// SendPolicy and RecvPolicy select the modes of the two half-connections.
	SendPolicy, RecvPolicy Policy

	// SendThreshold is the size in bytes above which a write is moved by zero copy; negative means
	// never. RecvThreshold is the size above which a read accepts zero copy, at least
	// RecvBufferSize. The default of both is 1 MiB.
	SendThreshold, RecvThreshold int

	// RecvBuffers is the number of Private Buffers for received messages, 3 to 1000, by default 32.
	// RecvBufferSize is the size of each Private Buffer in bytes, 37 to 1 MiB, by default 256 KiB
	// of payload and the largest header.
	RecvBuffers, RecvBufferSize int
	// MaxRecvBuffers is the largest number of Private Buffers, at most 1000. The number doubles
	// each time reads have taken as many bytes as all buffers hold, as TCP's receive buffer grows.
	// By default, or if MaxRecvBuffers is not larger, the number is always RecvBuffers.
	MaxRecvBuffers int

	// SendBuffer is the number of bytes Write may copy before blocking, like SO_SNDBUF.
	// ReceiveBuffer is the number of received bytes held in addition to the Private Buffers, like
	// SO_RCVBUF. Both are 256 KiB by default.
	SendBuffer, ReceiveBuffer int

	// MaxAdverts is the number of advertisements the peer may have open, 1 to 65535; 16 by default.
	MaxAdverts int
	// ReadDepth is the number of RDMA Reads each side may have outstanding, 1 to 128; 16 by
	// default.
	ReadDepth int

	NoRDMARead         bool // never fetch: answer every SrcAvail with SendSm
	NoSinkAvail        bool // never advertise reads
	NoRemoteInvalidate bool // complete transfers only with Send with SE
	BigPrefix          bool // fill the messages that advertise writes with payload
	NoResize           bool // keep RecvBufferSize even if the peer asks for another size
	NoSuspend          bool // refuse to follow a peer that moves
	UrgentApart        bool // keep urgent bytes out of the stream, for ReadUrgent

	// NoCRC switches MPA's checksum off if the peer agrees. Do so only where the whole path
	// protects data otherwise.
	NoCRC bool

	// SetupTimeout limits the set-up after TCP has connected; 10 s by default.
	SetupTimeout time.Duration
	// KeepAlive is the TCP keepalive period: 0 means Go's default of 15 s, negative means none.
	KeepAlive time.Duration
	// SameHost selects shared memory if the peer is a process of the same user on the same host and
	// agrees; Linux only. Connections with WrapConn do not use shared memory. [Path] reports the
	// result.
	SameHost samehost.Policy
	// SameHostDir is a directory where the two processes find each other if they have separate
	// network namespaces, as containers have. Both processes must set SameHostDir. See package
	// samehost.
	SameHostDir string
	// Congestion names the congestion control of the sockets; "" keeps the system's default.
	Congestion string
	// Timers are the times after which the protocol acts without an event.
	Timers Timers

	// WrapConn, if set, is called with each TCP connection before anything is sent or received. The
	// returned connection is used instead, for example to capture or shape traffic.
	WrapConn func(net.Conn) net.Conn

	// Logger logs the beginning and end of connections at Info, and messages at Debug. Nil logs
	// nothing.
	Logger *slog.Logger

	// SendThreshold, RecvThreshold [SDP-9-1] [SDP-10-6] [D-39], RecvBuffers, RecvBufferSize
	// [SDP-10-2] [SDP-10-5] [D-14], MaxRecvBuffers [SDP-10.3-2], SendBuffer, ReceiveBuffer
	// [SDP-9.5.6-1] [SDP-9.5.6-2] [D-79], NoRDMARead [SDP-9-5], NoRemoteInvalidate [D-41],
	// BigPrefix [D-82], NoResize [SDP-10.6-14], NoSuspend [D-55], UrgentApart [D-29], SetupTimeout
	// [D-17], KeepAlive [SDP-14.3-1] [SDP-14.3-2] [D-77].
}

// Defaults returns the values the zero Options stand for: sizes, counts and times.
func Defaults() Options {
	o, _ := new(Options).complete()
	o.Logger = nil
	return o
}

// complete returns o with defaults filled in, or an error with the name of a wrong value.
func (o *Options) complete() (Options, error) {
	c := *o
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.RecvBuffers, defaultRecvBuffers)
	def(&c.RecvBufferSize, defaultRecvBufferSize)
	def(&c.MaxRecvBuffers, c.RecvBuffers)
	def(&c.SendThreshold, defaultThreshold)
	def(&c.RecvThreshold, max(defaultThreshold, c.RecvBufferSize))
	def(&c.SendBuffer, defaultSocketBuffer)
	def(&c.ReceiveBuffer, defaultSocketBuffer)
	def(&c.MaxAdverts, defaultMaxAdverts)
	def(&c.ReadDepth, defaultReadDepth)
	if c.SetupTimeout == 0 {
		c.SetupTimeout = defaultSetupTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	check := func(name string, v, lo, hi int) error {
		if v < lo || v > hi {
			return fmt.Errorf("sdp: %s is %d, must be %d to %d", name, v, lo, hi)
		}
		return nil
	}
	err := errors.Join(
		check("RecvBuffers", c.RecvBuffers, sdpwire.MinBuffers, 1000),
		check("MaxRecvBuffers", c.MaxRecvBuffers, 0, 1000),
		check("RecvBufferSize", c.RecvBufferSize, sdpwire.MinBufferSize, 1<<20),
		check("MaxAdverts", c.MaxAdverts, 1, 65535),
		check("ReadDepth", c.ReadDepth, 1, 128),
		check("SendBuffer", c.SendBuffer, 0, 1<<30),
		check("ReceiveBuffer", c.ReceiveBuffer, 0, 1<<30))
	return c, err
}

// settingNames are the names of settings for Options.Set, in the order of the documentation.
const settingNames = "send-policy recv-policy send-threshold recv-threshold recv-buffers recv-buffer-size " +
	"send-buffer receive-buffer max-adverts read-depth crc keepalive setup-timeout congestion samehost samehost-dir"

// Set changes options by name and text, as in an environment or a configuration file. An unknown
// name, or an unsuitable value, such as "on" for recv-buffers, is an error, and then nothing
// changes. The names are send-policy, recv-policy (auto, buffered, combined, pipelined),
// send-threshold, recv-threshold, recv-buffers, recv-buffer-size, send-buffer, receive-buffer,
// max-adverts, read-depth (numbers, sizes also with k, m or g), crc (on, off), keepalive,
// setup-timeout (durations), congestion, samehost (auto, off, require) and samehost-dir. With a
// send-threshold of 0, no write is moved by zero copy.
func (o *Options) Set(settings map[string]string) error { // [D-39] [D-42]
	c := *o
	for name, v := range settings {
		if err := c.set(name, v); err != nil {
			return fmt.Errorf("sdp: setting %s=%q: %w", name, v, err)
		}
	}
	if _, err := c.complete(); err != nil {
		return err
	}
	*o = c
	return nil
}

func (o *Options) set(name, v string) (err error) {
	switch name {
	case "send-policy":
		o.SendPolicy, err = parsePolicy(v)
	case "recv-policy":
		o.RecvPolicy, err = parsePolicy(v)
	case "send-threshold":
		if o.SendThreshold, err = parseSize(v); o.SendThreshold == 0 {
			o.SendThreshold = -1
		}
	case "recv-threshold":
		o.RecvThreshold, err = parseSize(v)
	case "recv-buffers":
		o.RecvBuffers, err = parseSize(v)
	case "recv-buffer-size":
		o.RecvBufferSize, err = parseSize(v)
	case "send-buffer":
		o.SendBuffer, err = parseSize(v)
	case "receive-buffer":
		o.ReceiveBuffer, err = parseSize(v)
	case "max-adverts":
		o.MaxAdverts, err = parseSize(v)
	case "read-depth":
		o.ReadDepth, err = parseSize(v)
	case "crc":
		switch v {
		case "on":
			o.NoCRC = false
		case "off":
			o.NoCRC = true
		default:
			err = errors.New("must be on or off")
		}
	case "keepalive":
		o.KeepAlive, err = time.ParseDuration(v)
	case "setup-timeout":
		o.SetupTimeout, err = time.ParseDuration(v)
	case "congestion":
		o.Congestion = v
	case "samehost":
		o.SameHost, err = samehost.Parse(v)
	case "samehost-dir":
		o.SameHostDir = v
	default:
		err = fmt.Errorf("unknown; settings are %s", settingNames)
	}
	return err
}

func parsePolicy(v string) (Policy, error) {
	for _, p := range []Policy{Auto, PinBuffered, PinCombined, PinPipelined} {
		if p.String() == v {
			return p, nil
		}
	}
	return 0, errors.New("must be auto, buffered, combined or pipelined")
}

func parseSize(v string) (int, error) {
	shift := 0
	if n := len(v); n > 0 {
		if i := strings.IndexByte("kmg", v[n-1]|0x20); i >= 0 {
			shift, v = 10*(i+1), v[:n-1]
		}
	}
	n, err := strconv.Atoi(v)
	if err == nil && (n < 0 || n > 1<<30>>shift) {
		err = strconv.ErrRange
	}
	return n << shift, err
}

package vitcp

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/samehost"
	"viaduct/vi"
)

// [V-40]

// A Segments value selects how messages are divided into segments.
type Segments uint8

const (
	// SegmentsMax makes segments as long as the header allows, 65535 bytes,
	// and hands many to the kernel at once.
	SegmentsMax Segments = iota

	// SegmentsMSS makes segments that fit into one TCP segment, or have 1400 bytes if the MSS is
	// unknown. Each segment is written separately, as the draft recommends, at the cost of a system
	// call per segment.
	SegmentsMSS

	// SegmentsMSS [VIT-2.2.2.2.3-4].
)

// [V-26]

// DefaultReadWindow is the default of Config.ReadWindow.
const DefaultReadWindow = 16

// The other defaults of a Config.
const (
	defaultRequestTimeout = 10 * time.Second
	defaultDrainTimeout   = 5 * time.Second
	defaultHalfOpen       = 128
	defaultMaxSecurity    = 4096
	defaultMaxTransfer    = 1<<32 - 1

	// defaultRequestTimeout [V-35], defaultDrainTimeout [V-18], defaultMaxSecurity [V-06].
)

// A Config holds the settings of a provider. The zero value uses the project's own numbers on the
// wire. A Config must not be changed after New.
type Config struct {
	// Listen is the address, host and port, where a device listens while open. For port 0, the
	// NIC's LocalAddress reports the chosen port. Without a host, or with 0.0.0.0 or [::], the NIC
	// listens at every address of the host. LocalAddress is then an address for calls from other
	// hosts, and a wait at LocalAddress takes requests to all addresses. If Listen is empty, the
	// first wait or peer-to-peer request opens the address in the arguments.
	Listen string

	// ListenFunc, if set, opens the listening sockets instead of net.Listen. Use it, for example,
	// for a socket a service manager has opened. The provider owns the returned listener.
	ListenFunc func(network, address string) (net.Listener, error)

	// ImplicitListen makes a device without Listen listen at its own address while open. The
	// draft's figure describes this behaviour for the first VI.
	ImplicitListen bool

	// Port is the TCP port of addresses without a port; 0 means 3936.
	Port uint16

	// SharePort lets several processes of this host wait at Port, as VIPL programs do. A TCP port
	// has a single listener, so a process waits at another port if Port is in use. Callers of this
	// host with SharePort find the process there by discriminator. Callers from other hosts reach
	// only the first process. Systems other than Linux ignore SharePort.
	SharePort bool

	// Dialect defines the numbers on the wire.
	Dialect Dialect

	// ReliableIsDelivery reads the draft's single reliable bit as Reliable Delivery. Reliable
	// Reception is not available then.
	ReliableIsDelivery bool

	// TolerantAttributes ignores unknown attribute bits instead of refusing the connection.
	TolerantAttributes bool

	// StrictEnables refuses a connection if the RDMA enables of the two
	// sides differ.
	StrictEnables bool

	// Disconnect offers the Disconnect message to the peer. The message is used if the peer offers
	// it too. The offer takes the first 8 bytes of the security information.
	Disconnect bool

	// MaxTransferSize is the maximum message length in bytes of the VIs of this provider. 0 means
	// 2^32-1.
	MaxTransferSize uint32

	// Segments selects how messages are divided into segments.
	Segments Segments

	// FirstMessage is the number before the local side's first message on each connection. Any
	// number works.
	FirstMessage uint32

	// CreditThreshold controls when a NOP advertises new receive descriptors although input is
	// pending: when the peer has fewer than CreditThreshold unused descriptors. 0 means half of the
	// largest number of unused descriptors the peer has had.
	CreditThreshold int

	// ReadWindow is the number of the peer's RDMA Reads a VI serves at once, for VIs whose
	// attributes give no number. 0 means DefaultReadWindow. The maximum is 65535.
	ReadWindow int

	// RequestTimeout limits the time from accepting a TCP connection to receiving its whole Connect
	// Request, including the TLS handshake. 0 means 10 s.
	RequestTimeout time.Duration

	// DrainTimeout limits the time a disconnected connection waits until the peer has received the
	// data of completed sends. 0 means 5 s.
	DrainTimeout time.Duration

	// Grace is how long a client-server request waits for a call of ConnectWait with its
	// discriminator. The answer is then No Match. 0 answers No Match at once.
	Grace time.Duration

	// HalfOpen is the maximum number of undecided incoming connections at one listening address.
	// Further connections are closed at once. 0 means 128.
	HalfOpen int

	// PerPeer is the maximum number of connections, established or not, from an IP address to this
	// provider's listeners. 0 means no limit.
	PerPeer int

	// MaxSecurity is the maximum length in bytes of received security information. 0 means 4096. It
	// can't exceed the room in one segment after the header, about 64 KiB.
	MaxSecurity int

	// Security, if set, adds its own part to the security information of each VI, and checks the
	// peer's part before a consumer sees the request.
	Security Authenticator

	// Allow, if set, is called for each incoming connection; false closes it at once.
	Allow func(remote netip.Addr) bool

	// TLSDial and TLSListen, if set, put TLS under VI/TCP for connections made and accepted. The
	// peer must do the same; there is no negotiation, so use a separate port for connections with
	// TLS.
	TLSDial   *tls.Config
	TLSListen *tls.Config

	// SameHost selects whether the bytes of connections go through shared memory if the peer is a
	// process of the same user on this host that agrees. It has no effect with TLS or WrapConn, or
	// on systems other than Linux.
	SameHost samehost.Policy
	// SameHostDir is a directory where two processes on one host find each other if they have
	// separate network namespaces, as containers have. Both need to set SameHostDir. See package
	// samehost.
	SameHostDir string

	// Congestion names the congestion control algorithm of the sockets. An empty name selects the
	// system's default. An algorithm that the system lacks is ignored.
	Congestion string

	// KeepAlive is the period of TCP keepalive. 0 means 15 s, and a negative value switches
	// keepalive off.
	KeepAlive time.Duration

	// UserTimeout limits how long sent bytes may stay unacknowledged by the peer's TCP. 0 selects
	// the system's limit. A value above 0 makes all connections fail on systems other than Linux.
	UserTimeout time.Duration

	// WrapConn, if set, is called with every connection before any VI/TCP byte is sent or received,
	// above TLS. Its result is used instead of the connection. A stream that is no *net.TCPConn
	// takes a slower path.
	WrapConn func(net.Conn) net.Conn

	// Broken, if set, is called with the reason when a connection breaks: a *ProtocolError, a
	// *RemoteError, an error of the stream, or a local error. The VI moves to Error after the call.
	// Broken must not block and must not call the VI.
	Broken func(v *vi.VI, cause error)

	// Logger receives the set-up, failure and end of connections at level Info, failures to accept
	// at Warn, and details of ended streams at Debug. nil disables them.
	Logger *slog.Logger

	// Listen [V-31], ImplicitListen [V-31] [VIT-4.3-1], ReliableIsDelivery [V-10],
	// TolerantAttributes [V-05], StrictEnables [V-15], Disconnect [V-17], MaxTransferSize [V-14],
	// Segments [V-40], FirstMessage [VIT-3.1-11], CreditThreshold [VIT-3.1-NOP-4] [V-21],
	// RequestTimeout [V-35], DrainTimeout [V-18], Grace [VIA 6.4.5], MaxSecurity [V-06],
	// Security [VIT-3.2-6], Allow [V-43], TLSDial [V-43], KeepAlive [V-35], UserTimeout [V-35].
}

// check sets defaults and returns an error for an invalid setting.
func (c *Config) check() error {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.ReadWindow, DefaultReadWindow)
	def(&c.HalfOpen, defaultHalfOpen)
	def(&c.MaxSecurity, defaultMaxSecurity)
	if c.RequestTimeout == 0 {
		c.RequestTimeout = defaultRequestTimeout
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = defaultDrainTimeout
	}
	if c.MaxTransferSize == 0 {
		c.MaxTransferSize = defaultMaxTransfer
	}
	if c.Port == 0 {
		c.Port = vitcpwire.Port
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case !c.Dialect.wire().Valid():
		return fmt.Errorf("vitcp: type offset %d is out of range", c.Dialect.TypeOffset)
	case c.ReadWindow < 0 || c.ReadWindow > 65535:
		return fmt.Errorf("vitcp: read window %d is not in 0 to 65535", c.ReadWindow)
	case c.MaxSecurity < 0 || c.MaxSecurity > vitcpwire.MaxSecurity:
		return fmt.Errorf("vitcp: security limit %d is not in 0 to %d", c.MaxSecurity, vitcpwire.MaxSecurity)
	case c.CreditThreshold < 0 || c.CreditThreshold > maxCredits:
		return fmt.Errorf("vitcp: credit threshold %d is not in 0 to %d", c.CreditThreshold, maxCredits)
	case c.Segments > SegmentsMSS:
		return fmt.Errorf("vitcp: unknown segment mode %d", c.Segments)
	}
	return nil
}

func (c *Config) habits() habits {
	return habits{c.ReliableIsDelivery, c.TolerantAttributes, c.StrictEnables}
}

// wrap returns nc, or the result of WrapConn if set. If the result has no CloseWrite, wrap adds the
// CloseWrite of nc, because an orderly end needs it.
func (c *Config) wrap(nc net.Conn) net.Conn {
	if c.WrapConn == nil {
		return nc
	}
	type closeWriter interface{ CloseWrite() error }
	w := c.WrapConn(nc)
	if _, ok := w.(closeWriter); ok {
		return w
	}
	if cw, ok := nc.(closeWriter); ok {
		return struct {
			net.Conn
			closeWriter
		}{w, cw}
	}
	return w
}

func (c *Config) tuning() sock.Tuning {
	return sock.Tuning{Congestion: c.Congestion, KeepAlive: c.KeepAlive, SameHost: c.SameHost,
		SameHostDir: c.SameHostDir}
}

// owns reports whether the link uses the TCP connection directly, with neither WrapConn nor TLS in
// between. t is TLSDial or TLSListen, depending on which side opened the connection.
func (c *Config) owns(t *tls.Config) bool { return c.WrapConn == nil && t == nil }

// tune sets the options of a new socket. A congestion control algorithm that cannot be set is
// logged and ignored; any other failure is returned.
func (c *Config) tune(nc net.Conn) error {
	if err := sock.Tune(nc, c.tuning()); err != nil {
		if c.Congestion == "" {
			return err
		}
		if err := sock.Tune(nc, sock.Tuning{KeepAlive: c.KeepAlive, SameHost: c.SameHost, SameHostDir: c.SameHostDir}); err != nil {
			return err
		}
		c.Logger.Debug("congestion control not set", "algorithm", c.Congestion, "err", err)
	}
	if c.UserTimeout > 0 {
		return setUserTimeout(nc, c.UserTimeout)
	}
	return nil
}

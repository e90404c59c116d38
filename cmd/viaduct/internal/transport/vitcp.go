package transport

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/vi"
	"viaduct/vitcp"
)

// vitcpTransport is the VI Architecture over TCP.
var vitcpTransport = Transport{
	Scheme:    "vitcp",
	DialMsg:   bounded(dialVITCP),
	ListenMsg: listenVITCP,
	PeerMsg:   peerVI,
}

// vitcpGrace is how long a request waits if no goroutine of the listener waits for requests.
// Otherwise the request would be refused at once, as if nothing listened.
const vitcpGrace = time.Second

// vitcpNIC opens a NIC with a separate provider. The provider listens at the address listen, unless
// listen is empty. host is the server's name for TLS. dials is the direction of connections in a
// capture.
func vitcpNIC(u *addr.URL, o *Options, listen, host string, dials bool) (*vi.NIC, error) {
	p, err := vitcpProvider(u, o, listen, host, dials)
	if err != nil {
		return nil, err
	}
	return openNIC(p, "", o)
}

func vitcpProvider(u *addr.URL, o *Options, listen, host string, dials bool) (*vitcp.Provider, error) {
	c := vitcp.Config{Listen: listen, Grace: vitcpGrace, Disconnect: true, TLSListen: o.TLSListen,
		Congestion: o.Congestion, Logger: o.Env.Log, ListenFunc: o.Env.Listen}
	c.SameHost, c.SameHostDir = sameHost(u)
	if o.TLSDial != nil {
		c.TLSDial = serverName(o.TLSDial, host)
	}
	if o.Env.Capture != nil {
		c.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, dials) }
	}
	return vitcp.New(c)
}

func dialVITCP(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error) {
	ap, err := resolveHost(ctx, u, o.Find)
	if err != nil {
		return nil, err
	}
	nic, err := vitcpNIC(u, o, "", u.Host, true)
	if err != nil {
		return nil, err
	}
	return dialVI(ctx, nic, u, o, vi.IPAddress(ap, "").Host, net.TCPAddrFromAddrPort(ap))
}

// vitcpListens holds the providers of the listeners made with one Options, by address. Listeners at
// an address share a provider. The provider passes each request to the listener with the requested
// discriminator. [VIT-2.2.2.2.1-2] The zero value is ready.
type vitcpListens struct {
	mu sync.Mutex
	at map[string]*vitcpListen // guarded by mu
}

type vitcpListen struct {
	p     *vitcp.Provider
	discs map[string]bool // guarded by vitcpListens.mu: discriminators with a listener
}

// listen opens a NIC and listens at u. The caller must call over when the NIC is closed, so that
// the discriminator becomes free. The error matches syscall.EADDRINUSE if the discriminator already
// has a listener at the same address.
func (s *vitcpListens) listen(u *addr.URL, o *Options) (nic *vi.NIC, over func(), err error) {
	a, err := net.ResolveTCPAddr("tcp", u.HostPort())
	if err != nil {
		return nil, nil, err
	}
	if a.IP == nil {
		a.IP = net.IPv6unspecified // accepts both address families
	}
	if a.Port == 0 { // the system picks a free port
		nic, err := vitcpNIC(u, o, a.String(), "", false)
		return nic, func() {}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at, disc := a.String(), string(u.Disc)
	l := s.at[at]
	if l == nil {
		l = &vitcpListen{discs: make(map[string]bool)}
		if l.p, err = vitcpProvider(u, o, at, "", false); err != nil {
			return nil, nil, err
		}
	}
	if l.discs[disc] {
		return nil, nil, &net.OpError{Op: "listen", Net: "tcp", Addr: a,
			Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	if nic, err = openNIC(l.p, "", o); err != nil {
		return nil, nil, err
	}
	if s.at == nil {
		s.at = make(map[string]*vitcpListen)
	}
	s.at[at], l.discs[disc] = l, true
	return nic, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(l.discs, disc); len(l.discs) == 0 {
			delete(s.at, at)
		}
	}, nil
}

func listenVITCP(u *addr.URL, o *Options) (msg.Listener, error) {
	nic, over, err := o.vitcp.listen(u, o)
	if err != nil {
		return nil, err
	}
	l, err := listenVI(nic, u, o, nicAddr(nic, u))
	if err != nil {
		over()
		return nil, err
	}
	return &vitcpListener{l, over}, nil
}

// A vitcpListener is a listener whose Close also frees the discriminator.
type vitcpListener struct {
	msg.Listener
	over func()
}

func (l *vitcpListener) Close() error {
	defer l.over()
	return l.Listener.Close()
}

package verbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/fc"
	"viaduct/internal/fc/fabricd"
	"viaduct/registry"
	"viaduct/samehost"
)

func fabricCommand(e *shell.Env) *cobra.Command {
	var listen, name, congestion, sameHost, at string
	var join, register []string
	var lease time.Duration
	var domain uint8
	c := &cobra.Command{
		Use:   "fabric [--listen HOST:PORT] [--join HOST:PORT ...]",
		Short: "a Fibre Channel fabric that processes and hosts join over FCIP",
		Long: `Run a Fibre Channel fabric: a switch with its directory server, which processes
and other fabrics join over FCIP links. An address joins it with ?fabric=HOST:PORT:

  viaduct fabric --listen 192.0.2.1:3225
  viaduct echo --listen 'fcvi://10.0.0.1/echo?fabric=192.0.2.1:3225'
  viaduct ping 'fcvi://10.0.0.1/echo?fabric=192.0.2.1:3225&self=10.0.0.2'

Hosts of a fabric have addresses of their own there, independent of those of the
network below. When the fabric is restarted, its members and the fabrics that
joined it reconnect.

With --registry ADDRESS --register NAME it has a name, which its members and other
fabrics use instead of HOST:PORT, with the same --registry:

  viaduct fabric --registry file:/etc/viaduct/names --register plant1
  viaduct ping --registry file:/etc/viaduct/names 'fcvi://10.0.0.1/echo?fabric=plant1&self=10.0.0.2'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := fabricd.Config{Domain: domain, Congestion: congestion, Logger: e.Log}
			var err error
			if cfg.Name, err = switchName(name); err != nil {
				return err
			}
			if domain < 1 || domain > 239 {
				return shell.Usagef("--domain %d is not between 1 and 239", domain)
			}
			if cfg.SameHost, err = samehost.Parse(sameHost); err != nil {
				return shell.Usagef("--same-host %q %w", sameHost, err)
			}
			if err := checkRegister(at, register, lease); err != nil {
				return err
			}
			find, err := finder(e, at)
			if err != nil {
				return err
			}
			for i, j := range join {
				if _, _, err := net.SplitHostPort(j); err != nil && find != nil {
					j = net.JoinHostPort(j, fmt.Sprint(transport.FCIPPort))
				}
				if join[i], err = transport.Fabric(j, find); err != nil {
					return fmt.Errorf("join %s: %w", j, err)
				}
			}
			for name, a := range map[string][]string{"listen": {listen}, "join": join} {
				for _, a := range a {
					if err := shell.CheckHostPort(a); err != nil {
						return shell.Usagef("--%s %q is not HOST:PORT: %w", name, a, err)
					}
				}
			}
			if e.Capture != nil {
				cfg.WrapConn = func(nc net.Conn) net.Conn { return e.Wrap(nc, false) }
			}
			return runFabric(cmd.Context(), e, cfg, listen, join, func(ctx context.Context, u *addr.URL) (func(), error) {
				records, err := fabricRecords(register, u)
				if err != nil || len(records) == 0 {
					return func() {}, err
				}
				return keepAll(ctx, e, at, records, lease)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", fmt.Sprintf(":%d", transport.FCIPPort), "accept FCIP links at `HOST:PORT`")
	f.StringArrayVar(&join, "join", nil, "link to the fabric at `HOST:PORT`, or with a name; may be repeated")
	f.StringVar(&at, "registry", "", "find fabrics, and register, in the registry at `ADDRESS`")
	f.StringArrayVar(&register, "register", nil, "register the fabric as `NAME`; may be repeated")
	f.DurationVar(&lease, "lease", defaultLease, "a registration expires `TIME` after this process has died")
	f.StringVar(&name, "name", "", "switch name, a `WWN`; by default a random one")
	f.Uint8Var(&domain, "domain", 1, "domain `NUMBER` of the switch; linked fabrics need different ones")
	f.StringVar(&sameHost, "same-host", "auto",
		"shared memory instead of TCP for links within this host: `POLICY` is auto, off or require")
	f.StringVar(&congestion, "congestion", "", "congestion control `ALGORITHM` of the sockets (Linux)")
	return c
}

// switchName parses the name of a switch. "" makes a random, locally administered name.
func switchName(s string) (fc.WWN, error) {
	if s != "" {
		w, err := fc.ParseWWN(s)
		if err == nil && w == 0 {
			err = errors.New("the name is zero")
		}
		return w, shell.Usage(err)
	}
	var b [8]byte
	rand.Read(b[2:])
	b[0], b[1] = 0x10, 0 // IEEE 48-bit
	b[2] = b[2]&^1 | 2   // locally administered
	return fc.WWN(binary.BigEndian.Uint64(b[:])), nil
}

// joinTime bounds the first attempt to link to another fabric.
const joinTime = 20 * time.Second

// fabricRecords returns the registry records of a fabric daemon at u.
func fabricRecords(register []string, u *addr.URL) (rs []registry.Record, err error) {
	if len(register) == 0 {
		return nil, nil
	}
	at, err := ownAddresses(u.Host)
	if err != nil {
		return nil, err
	}
	for _, n := range register {
		for _, a := range at {
			r := registry.Record{Kind: registry.Fabric, Name: n, Value: netip.AddrPortFrom(a, u.Port).String()}
			if err := r.Check(); err != nil {
				return nil, fmt.Errorf("--register %s: %w", n, err)
			}
			rs = append(rs, r)
		}
	}
	return rs, nil
}

// runFabric serves until ctx ends. start registers the daemon's address, and stop removes the
// registration.
func runFabric(ctx context.Context, e *shell.Env, cfg fabricd.Config, listen string, join []string, start func(ctx context.Context, at *addr.URL) (stop func(), err error)) error {
	if err := e.Inherit(); err != nil {
		return err
	}
	l, err := e.Listen("tcp", listen)
	if err != nil {
		return err
	}
	d := fabricd.New(cfg)
	defer d.Close()
	for _, j := range join {
		jctx, cancel := context.WithTimeout(ctx, joinTime)
		err := d.Join(jctx, j)
		cancel()
		if err != nil {
			l.Close()
			return fmt.Errorf("join %s: %w", j, err)
		}
	}
	own, err := d.Listen(l)
	if err != nil {
		l.Close()
		return err
	}
	l = own
	host, _, _ := net.SplitHostPort(listen)
	u := &addr.URL{Scheme: "fcip", Host: host}
	u = u.WithPort(l.Addr())
	withdraw, err := start(ctx, u)
	defer withdraw()
	if err != nil {
		l.Close()
		return err
	}
	e.Listening(u)
	if err := e.Ready(); err != nil {
		l.Close()
		return err
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve(l) }()
	select {
	case <-ctx.Done():
		l.Close()
		<-served
		return nil
	case err := <-served:
		return err
	}
}

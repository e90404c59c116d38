// Package names opens the registry whose address is an argument of the command.
package names

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"

	"viaduct/cmd/viaduct/internal/names/etcd"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/registry"
)

// Forms are the forms of a registry's address, for help texts.
const Forms = "etcd://HOST[:PORT],.../PREFIX, file:PATH, dns:DOMAIN and dns://SERVER[:PORT]/DOMAIN"

// etcdPort is where members of an etcd cluster listen to clients.
const etcdPort = "2379"

// Open opens the registry at address. The caller must call close after use. A malformed address is
// a usage error.
func Open(address string, log *slog.Logger) (reg registry.Registry, close func() error, err error) {
	scheme, rest, _ := strings.Cut(address, ":")
	none := func() error { return nil }
	switch {
	case scheme == "file" && strings.TrimPrefix(rest, "//") != "":
		return registry.NewFile(strings.TrimPrefix(rest, "//")), none, nil
	case scheme == "dns" && strings.Trim(rest, "/.") != "":
		d, err := openDNS(rest)
		if err != nil {
			return nil, nil, shell.Usage(fmt.Errorf("registry %q: %w", address, err))
		}
		return d, none, nil
	case scheme == "etcd" && strings.HasPrefix(rest, "//"):
		cfg, err := etcdConfig(strings.TrimPrefix(rest, "//"))
		if err != nil {
			return nil, nil, shell.Usage(fmt.Errorf("registry %q: %w", address, err))
		}
		cfg.Logger = log
		r, err := etcd.Open(cfg)
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	return nil, nil, shell.Usagef("registry %q is none of %s", address, Forms)
}

// openDNS reads DOMAIN or //SERVER[:PORT]/DOMAIN.
func openDNS(s string) (*registry.DNS, error) {
	rest, ok := strings.CutPrefix(s, "//")
	if !ok {
		return &registry.DNS{Domain: s}, nil
	}
	server, domain, _ := strings.Cut(rest, "/")
	if server == "" || domain == "" {
		return nil, errors.New("want dns:DOMAIN or dns://SERVER[:PORT]/DOMAIN")
	}
	at, err := hostPort(server, "53")
	if err != nil {
		return nil, err
	}
	return &registry.DNS{Domain: domain, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, at)
	}}}, nil
}

// hostPort returns HOST:PORT for s, which is HOST[:PORT]. port is the default.
func hostPort(s, port string) (string, error) {
	at := s
	if _, _, err := net.SplitHostPort(at); err != nil {
		at = net.JoinHostPort(strings.Trim(s, "[]"), port)
	}
	if err := shell.CheckHostPort(at); err != nil || strings.HasPrefix(at, ":") {
		return "", fmt.Errorf("%q is not HOST[:PORT]", s)
	}
	return at, nil
}

// etcdConfig reads HOST[:PORT],...[/PREFIX][?NAME=VALUE&...].
func etcdConfig(s string) (c etcd.Config, err error) {
	s, query, _ := strings.Cut(s, "?")
	hosts, prefix, _ := strings.Cut(s, "/")
	q, err := url.ParseQuery(query)
	if err != nil {
		return c, err
	}
	c.Prefix = prefix
	if c.Prefix == "" {
		c.Prefix = "viaduct"
	}
	for name, values := range q {
		if !strings.Contains(" ca cert key user password-file ", " "+name+" ") || len(values) != 1 {
			return c, fmt.Errorf("parameter %s is none of ca, cert, key, user and password-file, each at most once",
				name)
		}
	}
	scheme := "http://"
	if c.TLS, err = etcdTLS(q.Get("ca"), q.Get("cert"), q.Get("key")); err != nil {
		return c, err
	}
	if c.TLS != nil {
		scheme = "https://"
	}
	if q.Has("user") != q.Has("password-file") {
		return c, errors.New("parameters user and password-file go together")
	}
	if c.Username = q.Get("user"); c.Username != "" {
		b, err := os.ReadFile(q.Get("password-file"))
		if err != nil {
			return c, err
		}
		c.Password = strings.TrimRight(string(b), "\r\n")
	}
	for h := range strings.SplitSeq(hosts, ",") {
		at, err := hostPort(h, etcdPort)
		if err != nil {
			return c, err
		}
		c.Endpoints = append(c.Endpoints, scheme+at)
	}
	return c, nil
}

// etcdTLS returns a configuration with the certificates and the key in the given files, or nil if
// none is given.
func etcdTLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		b, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("%s has no certificate", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("parameters cert and key go together")
	}
	if cert != "" {
		p, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{p}
	}
	return c, nil
}

package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
)

// TLSFlags holds the user's options for TLS.
type TLSFlags struct {
	On   bool
	Cert string // file with our certificate chain
	Key  string // file with the key of the certificate
	CA   string // file with the authorities that the peer's certificate must come from
	Pin  string // SHA-256 of the peer's certificate, in hex
}

// Given reports whether any of the options is set.
func (f *TLSFlags) Given() bool {
	return f.On || f.Cert != "" || f.Key != "" || f.CA != "" || f.Pin != ""
}

// Configs returns the TLS settings for dialled and accepted connections, as configs does. After
// SIGHUP, a listener reads the certificate and the authorities again from the files.
func (f *TLSFlags) Configs(e *shell.Env, listens bool) (dial, listen *tls.Config, err error) {
	dial, first, err := f.configs(e, listens)
	if err != nil || first == nil || !listens || f.Cert == "" {
		return dial, first, err
	}
	var current atomic.Pointer[tls.Config]
	current.Store(first)
	e.OnHangup("certificate", func() error {
		_, next, err := f.configs(e, true)
		if err == nil {
			current.Store(next)
		}
		return err
	})
	listen = first.Clone()
	listen.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Load(), nil }
	return dial, listen, nil
}

// configs returns the settings for dialled and accepted connections, nil without TLS. A listener
// without certificate gets a temporary certificate and logs the fingerprint, for --tls-pin of the
// other side. With --tls-ca, a listener also asks clients for certificates.
func (f *TLSFlags) configs(e *shell.Env, listens bool) (dial, listen *tls.Config, err error) {
	if !f.Given() {
		return nil, nil, nil
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, nil, shell.Usagef("--tls-cert and --tls-key belong together")
	}
	dial = &tls.Config{MinVersion: tls.VersionTLS13}
	listen = &tls.Config{MinVersion: tls.VersionTLS13}
	if f.Cert != "" {
		c, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, nil, fmt.Errorf("certificate: %w", err)
		}
		dial.Certificates, listen.Certificates = []tls.Certificate{c}, []tls.Certificate{c}
	} else if listens {
		c, err := selfSigned()
		if err != nil {
			return nil, nil, err
		}
		listen.Certificates = []tls.Certificate{c}
		e.Notice("made a certificate for this run", "tls-pin", fingerprint(c.Certificate[0]))
	}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("%s holds no certificate in PEM form", f.CA)
		}
		dial.RootCAs, listen.ClientCAs = pool, pool
		listen.ClientAuth = tls.RequireAndVerifyClientCert
		if f.Cert == "" {
			// Without --tls-cert, client certificates are optional: a client may have only an
			// authority, and a listener may be verified by --tls-pin alone.
			listen.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	if f.Pin != "" {
		want, err := hex.DecodeString(strings.ReplaceAll(f.Pin, ":", ""))
		if err != nil || len(want) != sha256.Size {
			return nil, nil, shell.Usagef("--tls-pin %q is not 64 hex digits", f.Pin)
		}
		check := func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) > 0 && fingerprint(cs.PeerCertificates[0].Raw) == hex.EncodeToString(want) {
				return nil
			}
			return errors.New("the peer's certificate is not the one that --tls-pin names")
		}
		// The pin is checked instead of the authorities.
		dial.InsecureSkipVerify, dial.VerifyConnection = true, check
		listen.ClientAuth, listen.VerifyConnection = tls.RequireAnyClientCert, check
	}
	return dial, listen, nil
}

// serverName returns c with host as the required name in the server's certificate. A name already
// in c takes precedence.
func serverName(c *tls.Config, host string) *tls.Config {
	if c.ServerName != "" {
		return c
	}
	c = c.Clone()
	c.ServerName = host
	return c
}

// dialTLS wraps the byte stream of c in TLS if the options ask for TLS. The result owns c.
func dialTLS(ctx context.Context, c net.Conn, u *addr.URL, o *Options) (net.Conn, error) {
	if o.TLSDial == nil {
		return c, nil
	}
	t := tls.Client(c, serverName(o.TLSDial, u.Host))
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS with %s: %w", u.HostPort(), err)
	}
	return t, nil
}

// listenTLS wraps the accepted connections of l in TLS. The first Read or Write of a connection
// makes the handshake.
func listenTLS(l net.Listener, o *Options) net.Listener {
	if o.TLSListen == nil {
		return l
	}
	return tls.NewListener(l, o.TLSListen)
}

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	t := x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "viaduct"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, &t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

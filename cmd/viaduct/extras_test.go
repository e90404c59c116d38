package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// certificate writes a certificate for 127.0.0.1 and the private key as files in dir. change, if
// not nil, modifies the certificate before signing.
func certificate(t *testing.T, dir string, change func(*x509.Certificate)) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	if change != nil {
		change(&tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, &tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kd}), 0o600)
	return cert, key
}

func TestTLS(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	cert, key := certificate(t, work, nil)
	for _, scheme := range []string{"vitcp", "iwarp", "tcp", "sdp"} {
		t.Run(scheme, func(t *testing.T) {
			root := t.TempDir()
			body := random(t, filepath.Join(root, "f"), 2<<20)
			out := filepath.Join(t.TempDir(), "out")
			_, urls := start(t, 1, "serve", "--root", root,
				"--writable", "--listen", listenURL(scheme, "127.0.0.1"), "--tls", "--tls-cert", cert, "--tls-key", key)
			good(t, "get", at(urls[0], "f"), "-o", out, "--tls", "--tls-ca", cert)
			same(t, out, body)
			good(t, "put", out, at(urls[0], "g"), "--tls", "--tls-ca", cert)
			same(t, filepath.Join(root, "g"), body)
			fails(t, 1, "--tls-ca", "get", at(urls[0], "f"), "-o", out, "--tls") // no known authority has signed it
			if r := run(t, "get", at(urls[0], "f"), "-o", out); r.code != 1 {
				t.Errorf("without TLS: exit %d", r.code)
			}

			// With --tls alone, the server makes a temporary certificate, and clients identify the
			// server by the certificate's fingerprint.
			srv, urls := start(t, 1, "echo", "--listen", listenURL(scheme, "127.0.0.1"), "--tls")
			srv.waitStderr("tls-pin=")
			pin := regexp.MustCompile("tls-pin=([0-9a-f]{64})").FindStringSubmatch(srv.stderr())[1]
			good(t, "ping", urls[0], "-c", "2", "--tls-pin", pin)
			fails(t, 1, "not the one", "ping", urls[0], "-c", "2", "--tls-pin", strings.Repeat("0", 64))
		})
	}
}

// TestTLSRefused: a client refuses an expired certificate, and a certificate of another authority
// or host. A listener asking for client certificates refuses a client without a certificate.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*x509.Certificate)
		ca     bool // signed by an unknown authority
		reason string
	}{
		"authority": {nil, true, "unknown authority"},
		"expired":   {func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, false, "(check the clock of this host, and have the certificate renewed)"},
		"name":      {func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} }, false, "not 127.0.0.1 (give the server's certificate authority"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, key := certificate(t, t.TempDir(), c.change)
			ca := cert
			if c.ca {
				ca, _ = certificate(t, t.TempDir(), nil)
			}
			_, urls := start(t, 2, "echo", "--listen", "sdp://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0",
				"--tls-cert", cert, "--tls-key", key)
			for _, u := range urls {
				fails(t, 1, c.reason, "ping", u, "-c", "1", "--retry", "1", "--tls-ca", ca)
			}
		})
	}
	cert, key := certificate(t, t.TempDir(), nil)
	_, urls := start(t, 1, "echo", "--listen", "sdp://127.0.0.1:0", "--tls-cert", cert,
		"--tls-key", key, "--tls-ca", cert)
	good(t, "ping", urls[0], "-c", "1", "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert)
	fails(t, 1, "certificate required", "ping", urls[0], "-c", "1", "--tls-ca", cert)
}

// TestTLSProxy: a proxy removes and adds TLS, with SDP on the TLS side, and passes on a half-close
// and a broken connection.
func TestTLSProxy(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, t.TempDir(), nil)
	files := []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", cert}
	root := t.TempDir()
	body := random(t, filepath.Join(root, "f"), 500_000)
	_, plain := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
	// plain client -> tcp -> [proxy] -> sdp with TLS -> [proxy] -> tcp -> plain server
	_, off := start(t, 1, append([]string{"proxy", "--listen", "sdp://127.0.0.1:0", "--to", plain[0], "--tls-side", "listen"}, files...)...)
	_, on := start(t, 1, append([]string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", off[0], "--tls-side", "to"}, files...)...)
	out := filepath.Join(t.TempDir(), "out")
	good(t, "get", at(on[0], "f"), "-o", out)
	same(t, out, body)
	good(t, append([]string{"get", at(off[0], "f"), "-o", out}, files...)...)
	same(t, out, body)
	if r := run(t, "get", at(off[0], "f"), "-o", out+"2"); r.code != 1 {
		t.Errorf("without TLS: exit %d", r.code)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, off = start(t, 1, append([]string{"proxy", "--listen", "sdp://127.0.0.1:0", "--to", "tcp://" + l.Addr().String(), "--tls-side", "listen"}, files...)...)
	_, on = start(t, 1, append([]string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", off[0], "--tls-side", "to"}, files...)...)
	connect := func() (near, far *net.TCPConn) {
		t.Helper()
		c, err := net.Dial("tcp", strings.TrimPrefix(on[0], "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); d.Close() })
		c.SetDeadline(time.Now().Add(patience))
		d.SetDeadline(time.Now().Add(patience))
		return c.(*net.TCPConn), d.(*net.TCPConn)
	}
	near, far := connect()
	io.WriteString(near, "question")
	near.CloseWrite()
	if b, err := io.ReadAll(far); err != nil || string(b) != "question" {
		t.Errorf("%q, %v", b, err)
	}
	io.WriteString(far, "answer")
	far.Close()
	if b, err := io.ReadAll(near); err != nil || string(b) != "answer" {
		t.Errorf("%q, %v", b, err)
	}
	near, far = connect()
	io.WriteString(near, "begun")
	if _, err := io.ReadFull(far, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	near.SetLinger(0)
	near.Close()
	if b, err := io.ReadAll(far); err == nil {
		t.Errorf("a broken connection looks like the end of the stream after %q", b)
	}
	fails(t, 2, "--tls-side", "proxy", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:1", "--tls-side", "to")
	fails(t, 2, "--tls-side", "proxy", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:1",
		"--tls", "--tls-side", "left")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	p, urls := start(t, 1, "echo", "--listen", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0")
	p.waitStderr("/metrics")
	m := regexp.MustCompile(`http://[^ "]*/metrics`).FindString(p.stderr())
	good(t, "ping", urls[0], "-c", "3", "-i", "0")
	get := func(u string) string {
		r, err := http.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		if r.StatusCode != 200 {
			t.Errorf("%s: %s", u, r.Status)
		}
		return string(b)
	}
	eventually(t, "the connection in the metrics", func() bool {
		return strings.Contains(get(m), `viaduct_connections_total{role="accept",transport="tcp"} 1`)
	})
	if s := get(m); !strings.Contains(s, "go_goroutines") || !strings.Contains(s, "viaduct_connections_active") {
		t.Error(s)
	}
	get(strings.Replace(m, "/metrics", "/debug/pprof/", 1))
}

func TestLogs(t *testing.T) {
	t.Parallel()
	p, urls := start(t, 1, "echo", "--listen", "tcp://127.0.0.1:0", "--log-level", "info", "--log-format", "json")
	good(t, "ping", urls[0], "-c", "1")
	p.waitStderr("disconnected")
	p.stop(syscall.SIGTERM)
	for line := range strings.Lines(p.stderr()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("log line %q", line)
		}
	}
}

func TestPortmap(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			testkit.NeedHost(t, host)
			p, urls := start(t, 1, "portmap", "serve", "--listen", host+":0", "--map", ":80=:8080",
				"--map", host+":81="+host+":1,"+host+":2")
			server, ok := strings.CutPrefix(urls[0], "udp://")
			if !ok {
				t.Fatalf("prints %q", urls[0])
			}
			if r := good(t, "portmap", "query", host+":80", "--server", server); !strings.Contains(r.stdout, host+":8080") {
				t.Error(r.stdout)
			}
			d := document(t, good(t, "portmap", "query", host+":81", "--server", server, "--json"))
			if s := d["sdp"].(string); s != host+":1" && s != host+":2" {
				t.Errorf("%v", d)
			}
			fails(t, 1, "denied", "portmap", "query", host+":82", "--server", server)
			p.stop(syscall.SIGTERM)
			fails(t, 1, "no answer", "portmap", "query", host+":80", "--server", server)
		})
	}
	file := filepath.Join(t.TempDir(), "map")
	os.WriteFile(file, []byte("*:80 :8080\n"), 0o600)
	_, urls := start(t, 1, "portmap", "serve", "--listen", "127.0.0.1:0", "--file", file)
	server := strings.TrimPrefix(urls[0], "udp://")
	good(t, "portmap", "query", "127.0.0.1:80", "--server", server)
	os.WriteFile(file, []byte("*:80 :8080\n*:90 :9090 cache=never\n"), 0o600)
	eventually(t, "the changed file",
		func() bool { return run(t, "portmap", "query", "127.0.0.1:90", "--server", server).code == 0 })
	os.WriteFile(file, []byte("nonsense\n"), 0o600)
	fails(t, 1, "line 1", "portmap", "serve", "--listen", "127.0.0.1:0", "--file", file)
}

func TestRping(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			testkit.NeedHost(t, host)
			p, urls := start(t, 1, "rping", "-s", "-a", host, "-p", "0", "-v")
			port := urls[0][strings.LastIndex(urls[0], ":")+1:]
			r := good(t, "rping", "-c", "-a", host, "-p", port, "-C", "10", "-S", "100", "-v", "-V")
			if strings.Count(r.stdout, "ping data: rdma-ping-") != 10 || !strings.Contains(r.stdout, "10 rounds") {
				t.Error(r.stdout)
			}
			if code := p.wait(); code != 0 {
				t.Errorf("server: exit %d", code)
			}
		})
	}
	p, urls := start(t, 1, "rping", "-s", "-P", "-a", "127.0.0.1", "-p", "0")
	port := urls[0][strings.LastIndex(urls[0], ":")+1:]
	for _, size := range []string{"27", "64", "65536"} {
		d := document(t, good(t, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "100", "-S", size, "-V", "--json"))
		if d["rounds"] != 100.0 || d["verified"] != true {
			t.Errorf("%v", d)
		}
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d", code)
	}
	fails(t, 1, "refused", "rping", "-c", "-a", "127.0.0.1", "-p", "1", "-C", "1")
}

func TestDemo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	random(t, file, 3<<20)
	want, rows := map[string]int{}, 0
	for _, n := range transport.Names() {
		for _, way := range []string{"get", "put"} {
			want[n+" "+way+" false"] = 1
			if n != "tcp" && sock.SharesByDefault {
				want[n+" "+way+" true"] = 1
			}
		}
	}
	// If a listener is slow, as on a busy machine, its connection goes over TCP.
	eventually(t, fmt.Sprint("the rows ", want), func() bool {
		seen := map[string]int{}
		d := document(t, good(t, "demo", file, "--json"))
		rows = len(d["rows"].([]any))
		for _, r := range d["rows"].([]any) {
			m := r.(map[string]any)
			if m["ok"] != true || m["bytes"] != float64(3<<20) || m["relative_to_tcp"].(float64) <= 0 {
				t.Errorf("%v", m)
			}
			seen[fmt.Sprint(m["transport"], " ", m["direction"], " ", m["shared_memory"])]++
			if m["shared_memory"] == (m["why_tcp"] != nil) {
				t.Errorf("a path and no reason, or both: %v", m)
			}
		}
		t.Log(seen)
		return maps.Equal(seen, want)
	})
	if r := good(t, "demo", file); strings.Count(r.stdout, "verified") != rows {
		t.Error(r.stdout)
	}
	fails(t, 1, "no such file", "demo", filepath.Join(t.TempDir(), "none"))

	// demo prints the first line before the transfer. Here the server does not start.
	c := command(t.Context(), "demo", file)
	c.Env = append(c.Env, "VIADUCT_SDP=nonsense=1")
	if out, err := c.Output(); err == nil || !strings.HasPrefix(string(out), "transport ") {
		t.Errorf("%v, %q", err, out)
	}
}

// captured serves and fetches a file of n bytes, and returns the captures of the server and the
// client.
func captured(t *testing.T, scheme string, n int) []string {
	t.Helper()
	root, work := t.TempDir(), t.TempDir()
	body := random(t, filepath.Join(root, "f"), n)
	a, b := filepath.Join(work, "server.pcapng"), filepath.Join(work, "client.pcapng")
	srv, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"), "--pcap", a)
	good(t, "get", at(urls[0], "f"), "-o", filepath.Join(work, "out"), "--pcap", b)
	same(t, filepath.Join(work, "out"), body)
	if code := srv.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d", code)
	}
	return []string{a, b}
}

// TestDecodeOwn: the captures of both sides of a transfer contain no error, and decode knows every
// captured message.
func TestDecodeOwn(t *testing.T) {
	t.Parallel()
	layer := map[string]string{"vitcp": "vitcp", "iwarp": "rdmap", "sdp": "sdp", "fcvi": "fcvi"}
	for _, scheme := range transport.Names() {
		if layer[scheme] == "" {
			continue
		}
		t.Run(scheme, func(t *testing.T) {
			for _, f := range captured(t, scheme, 3_000_000) {
				if out := good(t, "decode", "--filter", "wrong", f).stdout; len(out) != 0 {
					t.Errorf("%s:\n%s", filepath.Base(f), out)
				}
				if n := strings.Count(string(good(t, "decode", "--json", "--filter", "proto="+layer[scheme], f).stdout), "\n"); n < 10 {
					t.Errorf("%d messages of %s in %s", n, layer[scheme], filepath.Base(f))
				}
			}
		})
	}
}

//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fileCertificate writes a new certificate and the private key, and returns the certificate's
// fingerprint.
func fileCertificate(t *testing.T, cert, key string) (pin string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
	os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b}), 0o600)
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// At SIGHUP, a server reads certificate and token again. It keeps the old certificate and token if
// the new files cannot be read.
func TestHangupReloads(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"vitcp", "iwarp", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			dir, root := t.TempDir(), t.TempDir()
			random(t, filepath.Join(root, "f"), 100)
			file := func(n string) string { return filepath.Join(dir, n) }
			writeToken := func(n, text string) {
				if err := os.WriteFile(file(n), []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			oldPin := fileCertificate(t, file("cert"), file("key"))
			writeToken("token", strings.Repeat("a", 20))
			writeToken("a", strings.Repeat("a", 20))
			writeToken("b", strings.Repeat("b", 20))
			p, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"),
				"--tls-cert", file("cert"), "--tls-key", file("key"), "--token-file", file("token"))
			ls := func(pin, token string) []string {
				return []string{"ls", urls[0], "--tls-pin", pin, "--token-file", file(token)}
			}
			good(t, ls(oldPin, "a")...)

			newPin := fileCertificate(t, file("cert"), file("key"))
			writeToken("token", strings.Repeat("b", 20))
			p.cmd.Process.Signal(syscall.SIGHUP)
			p.waitStderr("what=token")
			p.waitStderr("what=certificate")
			good(t, ls(newPin, "b")...)
			fails(t, 1, "not the one", ls(oldPin, "b")...)
			fails(t, 1, "token", ls(newPin, "a")...)

			writeToken("token", "short")
			os.Remove(file("cert"))
			p.cmd.Process.Signal(syscall.SIGHUP)
			p.waitStderr("not reloaded, what was read before is used\" what=token")
			p.waitStderr("not reloaded, what was read before is used\" what=certificate")
			good(t, ls(newPin, "b")...)
			if code := p.stop(syscall.SIGTERM); code != 0 {
				t.Errorf("exit %d", code)
			}
		})
	}
}

// At SIGHUP, nvme serve checks the sizes of the served files again.
func TestHangupDisks(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--map"}} {
		t.Run(strings.Join(append(flags, "disks"), " "), func(t *testing.T) {
			t.Parallel()
			file, dir := filepath.Join(t.TempDir(), "one"), t.TempDir()
			two := filepath.Join(dir, "two")
			sized := func(name string, n int64) {
				t.Helper()
				f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if err := f.Truncate(n); err != nil {
					t.Fatal(err)
				}
			}
			sized(file, 1<<20)
			p, _ := start(t, 1, append([]string{"nvme", "serve", file, "mem:1M", dir, "--listen", "127.0.0.1:0"}, flags...)...)
			hangup := func(want string) {
				t.Helper()
				p.cmd.Process.Signal(syscall.SIGHUP)
				p.waitStderr(want)
			}
			sized(two, 1<<20)
			hangup("\"disk added\" file=" + two + " namespace=3")
			sized(file, 2<<20)
			if flags == nil {
				hangup("\"disk resized\" file=" + file + " namespace=1 bytes=2097152")
			} else { // a mapping cannot grow
				hangup("\"disk removed\" file=" + file + " namespace=1")
				p.waitStderr("\"disk added\" file=" + file + " namespace=4")
			}
			os.Remove(two)
			hangup("\"disk removed\" file=" + two + " namespace=3")
			os.Remove(file)
			sized(file, 1<<20) // another file with the same name
			hangup("\"disk added\" file=" + file + " namespace=" + map[bool]string{true: "4", false: "5"}[flags == nil])
			sized(two, 100)
			hangup("not served as it is now\" file=" + two)
			if code := p.stop(syscall.SIGTERM); code != 0 {
				t.Errorf("exit %d", code)
			}
		})
	}
}

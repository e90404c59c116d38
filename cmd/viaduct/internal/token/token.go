// Package token handles the secret between a file server and the clients. The secret is read from a
// file. Both sides prove possession without sending the secret.
package token

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"viaduct/cmd/viaduct/internal/shell"
)

// The length of a token, in characters.
const (
	MinLength = 16
	MaxLength = 1024
)

// The answers of a server to a client without the right token.
var (
	ErrMissing = errors.New("a token is needed (--token-file)")
	ErrWrong   = errors.New("the token is wrong")
)

// A Token is the secret. A Token formats as a placeholder, so that no log shows the secret. Methods
// are safe for concurrent use.
type Token struct{ secret atomic.Pointer[[]byte] }

func (*Token) String() string { return "(token)" }

// GoString is String.
func (t *Token) GoString() string { return t.String() }

// New makes a token of the text: letters, digits and -._~+/=, as HTTP allows for a bearer token
// [RFC 6750 2.1].
func New(text string) (*Token, error) {
	if n := len(text); n < MinLength || n > MaxLength {
		return nil, fmt.Errorf("the token has %d characters, not %d to %d", n, MinLength, MaxLength)
	}
	for _, c := range []byte(text) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0) {
			return nil, errors.New("a token consists of letters, digits and -._~+/=")
		}
	}
	t, secret := new(Token), []byte(text)
	t.secret.Store(&secret)
	return t, nil
}

// Replace gives t the secret of other.
func (t *Token) Replace(other *Token) { t.secret.Store(other.secret.Load()) }

// Read reads the token from a file of one line. The file must not be readable by other users.
func Read(file string) (*Token, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := st.Mode(); mode.Perm()&forbidden(file) != 0 && runtime.GOOS != "windows" {
		return nil, shell.Hint(fmt.Errorf("%s: other users can read or write the token (its mode is %04o)", file, mode.Perm()), "chmod 600 "+file)
	}
	const want = "write one line of random characters there, such as that of: openssl rand -hex 32"
	line, err := bufio.NewReaderSize(io.LimitReader(f, 4*MaxLength), 4*MaxLength).ReadString('\n')
	if err != nil && err != io.EOF {
		return nil, err
	}
	t, err := New(strings.TrimSpace(line))
	if err != nil {
		return nil, shell.Hint(fmt.Errorf("%s: %w", file, err), want)
	}
	return t, nil
}

// forbidden returns the permissions a file with a secret must not have. In systemd's directory of
// credentials, group permissions are allowed: they are the mask of an access control list for a
// single user.
func forbidden(file string) fs.FileMode {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" &&
		filepath.Dir(filepath.Clean(file)) == filepath.Clean(dir) {
		return 0o007
	}
	return 0o077
}

// Authorization returns the value of the HTTP Authorization field presenting the token.
func (t *Token) Authorization() string { return "Bearer " + string(*t.secret.Load()) }

// Check checks the Authorization field of a request. The error is nil, ErrMissing or ErrWrong.
func (t *Token) Check(authorization string) error {
	scheme, given, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ErrMissing
	}
	a, b := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256(*t.secret.Load())
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return ErrWrong
	}
	return nil
}

// A Nonce is a random number. Each side draws a new nonce for each proof.
type Nonce [32]byte

// NewNonce draws a nonce.
func NewNonce() (n Nonce) {
	rand.Read(n[:])
	return n
}

// A Proof proves the sender's possession of the token.
type Proof [sha256.Size]byte

// A Role is a side of a connection. The proof depends on the role, so that a proof cannot be sent
// back to the sender.
type Role string

// The two sides.
const (
	Client Role = "viaduct memory service, client\x00"
	Server Role = "viaduct memory service, server\x00"
)

// Prove returns the proof of a side: HMAC-SHA256 of the side's role and both nonces, with the token
// as the key.
func (t *Token) Prove(r Role, client, server Nonce) (p Proof) {
	m := hmac.New(sha256.New, *t.secret.Load())
	io.WriteString(m, string(r))
	m.Write(client[:])
	m.Write(server[:])
	m.Sum(p[:0])
	return p
}

// Verify reports whether p is the right proof of a side. It takes constant time.
func (t *Token) Verify(r Role, client, server Nonce, p Proof) bool {
	want := t.Prove(r, client, server)
	return hmac.Equal(want[:], p[:])
}

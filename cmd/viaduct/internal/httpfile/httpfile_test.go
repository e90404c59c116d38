package httpfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"viaduct/cmd/viaduct/internal/store"
)

func start(t *testing.T, writable bool) (*Client, string, *httptest.Server) {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(dir, writable, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(Observe(NewHandler(s, slog.New(slog.DiscardHandler)), func(Request) {}))
	t.Cleanup(func() { srv.Close(); s.Close() })
	return &Client{HTTP: srv.Client(), Host: strings.TrimPrefix(srv.URL, "http://")}, dir, srv
}

func TestGet(t *testing.T) {
	c, dir, _ := start(t, false)
	body := bytes.Repeat([]byte("viaduct "), 60000)
	os.WriteFile(filepath.Join(dir, "a b%c"), body, 0o600)
	for _, off := range []int{0, 1, 77777, len(body)} {
		h := sha256.New()
		h.Write(body[:off])
		var out bytes.Buffer
		var length, size int64
		if err := c.Get(t.Context(), "a b%c", int64(off), &out, h, func(l, s int64) { length, size = l, s }, nil); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), body[off:]) || length != int64(len(body)-off) || size != int64(len(body)) {
			t.Errorf("from %d: %d bytes, told %d of %d", off, out.Len(), length, size)
		}
	}
	h := sha256.New() // without the prefix the sum must differ
	if err := c.Get(t.Context(), "a b%c", 5, io.Discard, h, nil, nil); !errors.Is(err, ErrChanged) {
		t.Error(err)
	}
	// Get notices a change of the file during the transfer.
	err := c.Get(t.Context(), "a b%c", 0, io.Discard, sha256.New(), nil,
		func(int) { os.WriteFile(filepath.Join(dir, "a b%c"), []byte("other"), 0o600) })
	if err == nil {
		t.Error("a changing file passed")
	}
	for _, p := range []string{"none", "../x", "."} {
		if err := c.Get(t.Context(), p, 0, io.Discard, sha256.New(), nil, nil); err == nil {
			t.Errorf("%q was served", p)
		}
	}
}

func TestPut(t *testing.T) {
	c, dir, srv := start(t, true)
	put := func(c *Client, path string, r io.Reader) error {
		return c.PutStream(t.Context(), path, r, sha256.New(), nil)
	}
	for _, n := range []int{0, 1, 300_000} {
		body := bytes.Repeat([]byte{7}, n)
		if err := put(c, "d/x", bytes.NewReader(body)); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(filepath.Join(dir, "d/x")); !bytes.Equal(got, body) {
			t.Errorf("stored %d bytes of %d", len(got), n)
		}
	}
	if err := put(c, "y", io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(os.ErrInvalid))); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("a file that could not be read: %v", err)
	}
	if err := put(c, "y", bytes.NewReader(make([]byte, 1<<20+1))); err == nil ||
		!strings.Contains(err.Error(), "too large") {
		t.Error(err)
	}
	// Other clients may give the digest before the bytes, or none.
	for _, give := range []struct {
		digest string
		status int
	}{
		{formatDigest(sha256.Sum256([]byte("abd"))), http.StatusBadRequest},
		{formatDigest(sha256.Sum256([]byte("abc"))), http.StatusCreated},
		{"", http.StatusCreated},
	} {
		q, err := c.request(t.Context(), http.MethodPut, "d/x", strings.NewReader("abc"))
		if err != nil {
			t.Fatal(err)
		}
		if give.digest != "" {
			q.Header.Set(reprDigest, give.digest)
		}
		a, err := srv.Client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if a.StatusCode != give.status {
			t.Errorf("digest %q: %s", give.digest, a.Status)
		}
	}
	srv.Close() // waits for the handler of the upload that was broken off
	if es, _ := os.ReadDir(dir); len(es) != 1 {
		t.Errorf("left %v", es)
	}
	ro, _, _ := start(t, false)
	if err := put(ro, "y", strings.NewReader("")); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Error(err)
	}
}

// TestTornPut: a broken-off upload leaves no file.
func TestTornPut(t *testing.T) {
	c, dir, srv := start(t, true)
	nc, err := net.Dial("tcp", c.Host)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(nc, "PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nsome")
	nc.(*net.TCPConn).SetLinger(0)
	nc.Close()
	srv.Close() // waits for the handler
	if es, _ := os.ReadDir(dir); len(es) != 0 {
		t.Errorf("left %v", es)
	}
}

func TestOtherPrograms(t *testing.T) {
	c, dir, srv := start(t, true)
	os.MkdirAll(filepath.Join(dir, "sub"), 0o700)
	os.WriteFile(filepath.Join(dir, "index.html"), []byte("<p>"), 0o600)
	os.WriteFile(filepath.Join(dir, "a&b"), nil, 0o600)
	get := func(path, accept string) (*http.Response, string) {
		t.Helper()
		q, _ := http.NewRequest("GET", srv.URL+path, nil)
		q.Header.Set("Accept", accept)
		r, err := c.HTTP.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r, string(b)
	}
	if r, b := get("/index.html", ""); r.StatusCode != 200 || b != "<p>" {
		t.Error(r.Status, b)
	}
	if _, b := get("/", ""); !strings.Contains(b, "a&amp;b") || !strings.Contains(b, "sub/") {
		t.Error(b)
	}
	if _, b := get("/", "application/json"); !strings.Contains(b, `{"name":"sub","dir":true}`) {
		t.Error(b)
	}
	q, _ := http.NewRequest("DELETE", srv.URL+"/a&b", nil)
	if r, err := c.HTTP.Do(q); err != nil || r.StatusCode != http.StatusMethodNotAllowed {
		t.Error(r, err)
	}
}

func TestDigest(t *testing.T) {
	sum := sha256.Sum256([]byte("x"))
	for s, want := range map[string]bool{formatDigest(sum): true, "md5=:xx:, " +
		formatDigest(sum): true, "": false, "sha-256=:xx:": false} {
		if got, ok := parseDigest(s); ok != want || ok && got != sum {
			t.Errorf("%q: %v", s, ok)
		}
	}
}

// TestRefuse: each reason of the store has a separate status.
func TestRefuse(t *testing.T) {
	h := &handler{log: slog.New(slog.DiscardHandler)}
	for err, want := range map[error]int{
		store.ErrNotFound: http.StatusNotFound,
		store.ErrDenied:   http.StatusForbidden,
		store.ErrReadOnly: http.StatusForbidden,
		store.ErrTooLarge: http.StatusRequestEntityTooLarge,
		store.ErrNoSpace:  http.StatusInsufficientStorage,
		io.ErrNoProgress:  http.StatusBadRequest,
	} {
		w := httptest.NewRecorder()
		if h.refuse(w, httptest.NewRequest("GET", "/f", nil), fmt.Errorf("store: %w", err)); w.Code != want {
			t.Errorf("%v: status %d, want %d", err, w.Code, want)
		}
	}
}

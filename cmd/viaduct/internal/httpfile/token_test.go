package httpfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
)

func TestToken(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o600)
	s, err := store.Open(dir, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	right, err := token.New("0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	wrong, _ := token.New("0123456789abcdeF")
	var log bytes.Buffer
	var denied []error
	files := NewHandler(s, slog.New(slog.DiscardHandler))
	srv := httptest.NewServer(RequireToken(files, right, slog.New(slog.NewTextHandler(&log, nil)),
		func(err error) { denied = append(denied, err) }))
	host := strings.TrimPrefix(srv.URL, "http://")
	client := func(tok *token.Token) *Client { return &Client{HTTP: srv.Client(), Host: host, Token: tok} }

	var out bytes.Buffer
	if err := client(right).Get(t.Context(), "f", 0, &out, sha256.New(), nil, nil); err != nil ||
		out.String() != "content" {
		t.Errorf("%q, %v", out.String(), err)
	}
	body := []byte("new")
	if err := client(right).PutStream(t.Context(), "n", bytes.NewReader(body), sha256.New(), nil); err != nil {
		t.Error(err)
	}
	var all []error
	for tok, want := range map[*token.Token]error{nil: token.ErrMissing, wrong: token.ErrWrong} {
		c := client(tok)
		refusal := func(what string, err error) {
			t.Helper()
			all = append(all, want)
			if !errors.Is(err, want) || errors.Is(err, ErrRefused) { // the refusal must not reveal whether the file exists
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		refusal("get", c.Get(t.Context(), "f", 0, io.Discard, sha256.New(), nil, nil))
		refusal("put", c.PutStream(t.Context(), "x", bytes.NewReader(body), sha256.New(), nil))
		_, err := c.List(t.Context(), "")
		refusal("list", err)
		_, _, err = c.PrefixSum(t.Context(), "f", 3)
		refusal("prefix", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
		t.Error("stored without the token")
	}
	r, err := http.Get(srv.URL + "/f")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusUnauthorized ||
		r.Header.Get("WWW-Authenticate") != `Bearer realm="viaduct"` || !r.Close {
		t.Errorf("%s, %v", r.Status, r.Header)
	}
	srv.Close() // the handlers are done
	all = append(all, token.ErrMissing)
	if len(denied) != len(all) || strings.Count(log.String(), "level=WARN") != len(all) ||
		strings.Count(log.String(), "remote=") != len(all) || strings.Contains(log.String(), "0123456789") {
		t.Errorf("%d refusals of %d are told of; log:\n%s", len(denied), len(all), &log)
	}
	if got := RequireToken(files, nil, nil, nil); got == nil {
		t.Error("no handler without a token")
	}
}

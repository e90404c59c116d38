package memsvc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/msg/msgfake"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
	"viaduct/internal/testkit"
)

func newToken(t testing.TB, text string) *token.Token {
	t.Helper()
	tok, err := token.New(text)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// guarded starts a server with a token, whose directory has the file f. denied collects each
// refusal.
func guarded(t *testing.T, tok *token.Token) (c *msgfake.Conn, log *bytes.Buffer, denied *[]error, done chan error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(dir, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := msgfake.Pair(1 << 16)
	log, denied, done = new(bytes.Buffer), new([]error), make(chan error, 1)
	watch := Observer{Request: func(_ string, _ time.Duration, err error) {
		if errors.Is(err, token.ErrMissing) || errors.Is(err, token.ErrWrong) {
			*denied = append(*denied, err)
		}
	}}
	go func() {
		err := Serve(context.Background(), b, s, tok, slog.New(slog.NewTextHandler(log, nil)), watch)
		s.Close()
		done <- err
	}()
	t.Cleanup(func() { a.Close() })
	return a, log, denied, done
}

const secret = "0123456789abcdef"

// TestToken: a client with the token is served; a client without the token gets no information.
func TestToken(t *testing.T) {
	tok := newToken(t, secret)
	c, log, denied, done := guarded(t, tok)
	for _, q := range []string{`{"op":"list","path":""}`, `{"op":"open","path":"f","mode":"read"}`, `{"op":"open","path":"n","mode":"write","length":5}`} {
		if r := exchange(t, c, q); r["ok"] != false || r["error"] != token.ErrMissing.Error() {
			t.Errorf("%s: %v", q, r)
		}
	}
	cl, _ := NewClient(c)
	if _, err := cl.List(t.Context(), ""); !errors.Is(err, token.ErrMissing) || errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if err := cl.Authenticate(t.Context(), tok); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cl.Get(t.Context(), "f", 0, &out, sha256.New(), nil, nil); err != nil || out.String() != "content" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := cl.Authenticate(t.Context(), tok); err == nil {
		t.Error("a proof is asked for twice")
	}
	cl.Close()
	c.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(*denied) != 4 || strings.Count(log.String(), "level=WARN") != 4 || strings.Contains(log.String(), secret) {
		t.Errorf("refusals %v, log:\n%s", *denied, log)
	}

	c, log, denied, _ = guarded(t, tok)
	cl, _ = NewClient(c)
	if err := cl.Authenticate(t.Context(), newToken(t, "0123456789abcdeF")); !errors.Is(err, token.ErrWrong) ||
		errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if r := exchange(t, c, `{"op":"list","path":""}`); r["ok"] != false {
		t.Error(r)
	}
	if len(*denied) == 0 || (*denied)[0] != token.ErrWrong || !strings.Contains(log.String(), token.ErrWrong.Error()) {
		t.Errorf("refusals %v, log:\n%s", *denied, log)
	}

	c, _, _, _ = guarded(t, nil)
	cl, _ = NewClient(c)
	if err := cl.Authenticate(t.Context(), tok); !errors.Is(err, ErrNoToken) {
		t.Error(err)
	}
}

// TestProofOnce: a proof is good once, and only for the nonces drawn for the proof. A client may
// send only a few requests for a proof.
func TestProofOnce(t *testing.T) {
	tok := newToken(t, secret)
	c, _, _, done := guarded(t, tok)
	mine := strings.Repeat("00", 32)
	challenge := func() string {
		t.Helper()
		n, _ := exchange(t, c, `{"op":"auth","nonce":"`+mine+`"}`)["nonce"].(string)
		return n
	}
	proof := func(theirs string) string {
		n, err := parse32("nonce", theirs)
		if err != nil {
			t.Fatal(err)
		}
		p := tok.Prove(token.Client, token.Nonce{}, n)
		return `{"op":"auth","proof":"` + hex.EncodeToString(p[:]) + `"}`
	}
	zero := `{"op":"auth","proof":"` + mine + `"}`
	if r := exchange(t, c, zero); r["ok"] != false { // request 1
		t.Error(r)
	}
	first := challenge()                                                                   // request 2
	if r := exchange(t, c, zero); r["ok"] != false || r["error"] != "the token is wrong" { // request 3
		t.Error(r)
	}
	if r := exchange(t, c, proof(first)); r["ok"] != false { // request 4: its nonces are used up
		t.Error(r)
	}
	if second := challenge(); second == first { // request 5
		t.Error("a nonce came twice")
	}
	if r := exchange(t, c, proof(first)); r["ok"] != false { // request 6: a proof for other nonces
		t.Error(r)
	}
	select {
	case err := <-done:
		if !errors.Is(err, token.ErrMissing) {
			t.Errorf("after %d requests: %v", authRequests, err)
		}
	case <-time.After(testkit.Patience):
		t.Errorf("the server takes more than %d requests", authRequests)
	}
}

// TestTokenTime: the server closes the connection of a client without a proof after authTime.
func TestTokenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, _, _, done := guarded(t, newToken(t, secret))
		if err := <-done; err == nil || time.Since(began) != authTime {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestImpostor: a server accepting every proof must still prove possession of the token.
func TestImpostor(t *testing.T) {
	for _, proof := range []string{"", "zz", strings.Repeat("00", 32)} {
		a, b := msgfake.Pair(1 << 16)
		go func() {
			for _, r := range []reply{{OK: true, Nonce: strings.Repeat("11", 32)}, {OK: true, Proof: proof}} {
				if _, err := b.Recv(t.Context()); err != nil {
					return
				}
				b.Send(t.Context(), msg.Message{Data: encode(r)})
			}
		}()
		cl, _ := NewClient(a)
		if err := cl.Authenticate(t.Context(), newToken(t, secret)); !errors.Is(err, ErrImpostor) {
			t.Errorf("proof %q: %v", proof, err)
		}
		a.Close()
		b.Close()
	}
}

// FuzzAuth: a client without the token gets nothing but nonces, for any requests in any order.
func FuzzAuth(f *testing.F) {
	nonce := strings.Repeat("ab", 32)
	f.Add(`{"op":"auth","nonce":"` + nonce + `"}` + "\n" + `{"op":"auth","proof":"` + nonce + `"}`)
	f.Add(`{"op":"auth","nonce":"ab"}` + "\n" + `{"op":"list","path":""}`)
	f.Add(`{"op":"auth","proof":"` + nonce + `"}` + "\n" + `{"op":"open","path":"f","mode":"read"}`)
	f.Add(`{"op":"auth","nonce":"` + nonce + `","proof":"` + nonce + `"}`)
	tok := newToken(f, secret)
	f.Fuzz(func(t *testing.T, text string) {
		_, b := msgfake.Pair(1 << 16)
		ses := &session{conn: b, token: tok, log: slog.New(slog.DiscardHandler), open: map[openKey]*opened{}}
		for line := range strings.Lines(text) {
			var q request
			if json.Unmarshal([]byte(line), &q) != nil {
				continue
			}
			out, err := ses.auth(q)
			if err != nil {
				continue
			}
			var r, want reply
			if err := json.Unmarshal(out, &r); err != nil {
				t.Fatal(err)
			}
			want.OK, want.Nonce = true, r.Nonce
			if n, err := parse32("nonce", r.Nonce); err != nil || n != ses.nonces[1] ||
				!reflect.DeepEqual(r, want) || len(out) > MaxMessage {
				t.Fatalf("%q is answered %s", line, out)
			}
			if n, err := parse32("nonce", q.Nonce); err != nil ||
				hex.EncodeToString(n[:]) != strings.ToLower(q.Nonce) || n != ses.nonces[0] {
				t.Fatalf("the nonce of %q is %x", line, n)
			}
		}
		if ses.proven {
			t.Fatal("proven without the token")
		}
	})
}

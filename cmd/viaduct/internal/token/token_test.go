package token

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	const good = "0123456789abcdef-._~+/=XYZ"
	for _, text := range []string{good, good + "\n", good + "\r\n", good + "\nmore\n"} {
		write(text, 0o600)
		tok, err := Read(file)
		if err != nil || tok.Authorization() != "Bearer "+good {
			t.Errorf("%q: %v", text, err)
		}
		if s := fmt.Sprintf("%v %+v %#v %s", tok, tok, tok, tok); strings.Contains(s, good) {
			t.Errorf("the token shows: %s", s)
		}
	}
	for text, want := range map[string]string{
		"": "has 0 characters", "short\n": "has 5 characters", "two words are too few\n": "consists of letters",
		strings.Repeat("x", MaxLength+1): "characters, not 16", "0123456789abcde\x00\n": "consists of letters",
	} {
		write(text, 0o600)
		if _, err := Read(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604, 0o620} {
		write(good, mode)
		if _, err := Read(file); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("its mode is %04o", mode)) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", filepath.Dir(file)+"/")
	write(good, 0o440)
	if _, err := Read(file); err != nil {
		t.Error(err)
	}
	write(good, 0o444)
	if _, err := Read(file); err == nil {
		t.Error("a credential that all may read is taken")
	}
}

func TestCheck(t *testing.T) {
	tok, err := New("0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]error{
		tok.Authorization(): nil, "bearer 0123456789abcdef": nil, "Bearer  0123456789abcdef ": nil,
		"": ErrMissing, "Basic 0123456789abcdef": ErrMissing, "0123456789abcdef": ErrMissing,
		"Bearer": ErrWrong, "Bearer 0123456789abcdeF": ErrWrong, "Bearer 0123456789abcdef0": ErrWrong, "Bearer 0123456789abcde": ErrWrong,
	} {
		if err := tok.Check(field); err != want {
			t.Errorf("%q: %v, want %v", field, err, want)
		}
	}
}

// TestProof: a proof is valid only for one token, role and pair of nonces.
func TestProof(t *testing.T) {
	tok, _ := New("0123456789abcdef")
	other, _ := New("0123456789abcdeF")
	c, s := NewNonce(), NewNonce()
	if c == s || c == (Nonce{}) {
		t.Fatal("nonces are not drawn")
	}
	p := tok.Prove(Client, c, s)
	if !tok.Verify(Client, c, s, p) {
		t.Error("a proof is refused")
	}
	if tok.Verify(Server, c, s, p) || tok.Verify(Client, s, c, p) || tok.Verify(Client, c, NewNonce(), p) ||
		other.Verify(Client, c, s, p) || tok.Verify(Client, c, s, Proof{}) {
		t.Error("a proof of something else is taken")
	}
	// HMAC-SHA256 as computed by another program: printf '...' | openssl dgst -sha256 -hmac
	// 0123456789abcdef
	if got := fmt.Sprintf("%x", tok.Prove(Server, Nonce{}, Nonce{1})); got != "446497349da19caa3bb9bed6854c6d8ec6fee86749dfb56ba3f1076f8e8d4cb0" {
		t.Error(got)
	}
}

package testkit

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// A recorder is a testing.TB that records failures instead of failing the test. The Fatal methods
// end the goroutine, as in testing.T.
type recorder struct {
	testing.TB
	log    strings.Builder
	failed bool
}

func (r *recorder) Helper()      {}
func (r *recorder) Failed() bool { return r.failed }
func (r *recorder) FailNow()     { r.failed = true; panic(r) }
func (r *recorder) Errorf(f string, a ...any) {
	r.failed = true
	fmt.Fprintf(&r.log, f, a...)
}
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); r.FailNow() }
func (r *recorder) Fatal(a ...any)            { r.Fatalf("%s", fmt.Sprint(a...)) }

// try runs f with a recorder, and returns whether f failed and the logged text.
func try(t *testing.T, f func(testing.TB)) (failed bool, log string) {
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		f(r)
	}()
	return r.failed, r.log.String()
}

func TestHex(t *testing.T) {
	EqualBytes(t, Hex(`
		0102 03   # a field
		fF        # 04 is a comment
	`), []byte{1, 2, 3, 255})
	defer func() {
		if recover() == nil {
			t.Error("Hex took a bad digit")
		}
	}()
	Hex("0g")
}

func TestCheckVectors(t *testing.T) {
	appendTo := func(v uint16, b []byte) []byte { return binary.BigEndian.AppendUint16(b, v) }
	parse := func(b []byte) (uint16, int, error) {
		if len(b) < 2 {
			return 0, 0, io.ErrUnexpectedEOF
		}
		return binary.BigEndian.Uint16(b), 2, nil
	}
	CheckVectors(t, []Vector[uint16]{{"zero", 0, "0000"}, {"one", 0x0102, "01 02"}}, appendTo, parse)
}

func TestEqualBytes(t *testing.T) {
	failed, log := try(t, func(t testing.TB) { EqualBytes(t, []byte{1, 2, 3}, []byte{1, 2, 4}) })
	if !failed || !strings.Contains(log, "differ at 2") || !strings.Contains(log, "[03]") {
		t.Errorf("failed %v: %s", failed, log)
	}
	if failed, log := try(t, func(t testing.TB) { EqualBytes(t, make([]byte, 40), make([]byte, 41)) }); !failed ||
		!strings.Contains(log, "[end]") {
		t.Errorf("failed %v: %s", failed, log)
	}
	if failed, log := try(t, func(t testing.TB) { EqualBytes(t, nil, []byte{}) }); failed {
		t.Error(log)
	}
}

func TestGolden(t *testing.T) {
	t.Chdir(t.TempDir())
	if failed, log := try(t, func(t testing.TB) { Golden(t, "a/b.txt", []byte("x\n")) }); !failed ||
		!strings.Contains(log, "-update") {
		t.Errorf("missing file: failed %v: %s", failed, log)
	}
	*update = true
	Golden(t, "a/b.txt", []byte("x\n"))
	*update = false
	if got, err := os.ReadFile(filepath.Join("testdata", "a", "b.txt")); err != nil || string(got) != "x\n" {
		t.Errorf("written %q, %v", got, err)
	}
	Golden(t, "a/b.txt", []byte("x\n"))
	if failed, log := try(t, func(t testing.TB) { Golden(t, "a/b.txt", []byte("y\n")) }); !failed ||
		!strings.Contains(log, "y") {
		t.Errorf("difference: failed %v: %s", failed, log)
	}
}

func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		p := NewPeer(t, b)
		a.Write([]byte{1, 2, 3})
		p.Expect("01 02 03")
		p.Send("0405")
		got := make([]byte, 2)
		io.ReadFull(a, got)
		EqualBytes(t, got, []byte{4, 5})
		p.ExpectSilence(time.Hour)
		go func() {
			time.Sleep(time.Second)
			a.Close()
		}()
		if p.ExpectEnd() {
			t.Error("orderly close taken for a reset")
		}
	})
}

func TestPeerFails(t *testing.T) {
	for name, script := range map[string]func(a *Conn, p *Peer){
		"other bytes":     func(a *Conn, p *Peer) { a.Write([]byte{1, 2}); p.Expect("0103") },
		"too few bytes":   func(a *Conn, p *Peer) { a.Write([]byte{1}); a.Close(); p.Expect("0102") },
		"no bytes":        func(a *Conn, p *Peer) { p.Expect("01") },
		"not silent":      func(a *Conn, p *Peer) { a.Write([]byte{1}); p.ExpectSilence(time.Second) },
		"ended":           func(a *Conn, p *Peer) { a.Close(); p.ExpectSilence(time.Second) },
		"did not end":     func(a *Conn, p *Peer) { p.ExpectEnd() },
		"bytes before it": func(a *Conn, p *Peer) { a.Write([]byte{1}); a.Close(); p.ExpectEnd() },
		"closed":          func(a *Conn, p *Peer) { a.Close(); p.Send("01") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := Pipe()
				if failed, _ := try(t, func(tb testing.TB) { script(a, NewPeer(tb, b)) }); !failed {
					t.Error("the peer was content")
				}
			})
		})
	}
}

func TestPeerSeesReset(t *testing.T) {
	a, b := Pipe()
	p := NewPeer(t, b)
	a.Reset()
	if !p.ExpectEnd() {
		t.Error("reset taken for an orderly close")
	}
}

func TestNoLeaks(t *testing.T) {
	stop := make(chan struct{})
	t.Run("clean", func(t *testing.T) { NoLeaks(t) })
	var leaky recorder
	leaky.TB = t
	cleanup := &cleanups{recorder: &leaky}
	noLeaks(cleanup, 0)
	go func() { <-stop }()
	cleanup.run()
	close(stop)
	if !leaky.failed {
		t.Error("a goroutine left behind was not noticed")
	}
}

// TestLeaksWaits: a goroutine that ends late is no leak.
func TestLeaksWaits(t *testing.T) {
	opts := append(ignored(), goleak.IgnoreCurrent())
	ends := make(chan struct{})
	go func() { <-ends }()
	time.AfterFunc(time.Second, func() { close(ends) })
	if err := leaks(Patience, opts...); err != nil {
		t.Error(err)
	}
}

// A cleanups is a recorder whose cleanup functions run when the test asks for cleanup.
type cleanups struct {
	*recorder
	fs []func()
}

func (c *cleanups) Cleanup(f func()) { c.fs = append(c.fs, f) }
func (c *cleanups) Error(a ...any)   { c.Errorf("%s", fmt.Sprint(a...)) }
func (c *cleanups) run() {
	for _, f := range c.fs {
		f()
	}
}

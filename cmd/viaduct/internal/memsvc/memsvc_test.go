package memsvc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/msg/msgfake"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/internal/testkit"
)

// limit is the longest file a client may store.
const limit = 4 << 20

// start runs a server on an end of a pair. start returns the client's end, the server's end, the
// root directory, and a channel for the result of Serve.
func start(t *testing.T, writable bool) (*msgfake.Conn, *msgfake.Conn, string, chan error) {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(dir, writable, limit)
	if err != nil {
		t.Fatal(err)
	}
	a, b := msgfake.Pair(1 << 16)
	done := make(chan error, 1)
	go func() {
		done <- Serve(context.Background(), b, s, nil, slog.New(slog.DiscardHandler), Observer{})
		s.Close()
	}()
	t.Cleanup(func() { a.Close() })
	return a, b, dir, done
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	r.Read(b)
	return b
}

// exchange sends text unchanged and returns the answer.
func exchange(t *testing.T, c msg.Conn, text string) map[string]any {
	t.Helper()
	if err := c.Send(t.Context(), msg.Message{Data: []byte(text)}); err != nil {
		t.Fatal(err)
	}
	m, err := c.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Data) > MaxMessage {
		t.Fatalf("answer of %d bytes", len(m.Data))
	}
	var v map[string]any
	if err := json.Unmarshal(m.Data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestGet(t *testing.T) {
	c, srv, dir, done := start(t, false)
	for _, n := range []int{0, 1, pieceBytes, pieceBytes*7 + 5} {
		body := random(n)
		os.WriteFile(filepath.Join(dir, "f"), body, 0o600)
		cl, _ := NewClient(c)
		for _, off := range []int{0, n / 3, n} {
			var out bytes.Buffer
			told, size := int64(-1), int64(-1)
			moved := 0
			err := cl.Get(t.Context(), "f", int64(off), &out, sha256.New(),
				func(l, s int64) { told, size = l, s }, func(n int) { moved += n })
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), body[off:]) || told != int64(n-off) || size != int64(n) || moved != n-off {
				t.Errorf("%d from %d: wrong bytes or figures (%d of %d, %d moved)", n, off, told, size, moved)
			}
		}
		if n > 1 {
			if sum, err := cl.Sum(t.Context(), "f", int64(n/2)); err != nil || sum != sha256.Sum256(body[:n/2]) {
				t.Errorf("sum of the first half: %v", err)
			}
		}
		cl.Close()
		if srv.Regions() != 0 || c.Regions() != 0 {
			t.Errorf("%d and %d regions left", srv.Regions(), c.Regions())
		}
	}
	cl, _ := NewClient(c)
	if err := cl.Get(t.Context(), "none", 0, io.Discard, sha256.New(), nil, nil); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "not found") {
		t.Error(err)
	}
	c.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestShrinkingFile(t *testing.T) {
	c, _, dir, _ := start(t, false)
	os.WriteFile(filepath.Join(dir, "f"), random(1<<20), 0o600)
	cl, _ := NewClient(c)
	defer cl.Close()
	shrink := func(int64, int64) { os.Truncate(filepath.Join(dir, "f"), 5) }
	if err := cl.Get(t.Context(), "f", 0, io.Discard, sha256.New(), shrink, nil); err == nil {
		t.Error("a shrinking file arrived")
	}
	// The service refuses the close of a shortened file.
	if r := exchange(t, c, `{"op":"close","path":"f","mode":"read"}`); !strings.Contains(fmt.Sprint(r["error"]), "shrank") {
		t.Error(r)
	}
	// The service still answers the next request.
	if r := exchange(t, c, `{"op":"open","path":"f","mode":"read"}`); r["length"] != 5.0 {
		t.Error(r)
	}
}

func TestPut(t *testing.T) {
	c, srv, dir, _ := start(t, true)
	cl, _ := NewClient(c)
	for _, n := range []int{0, 1, pieceBytes*6 + 1} {
		body := random(n)
		moved := 0
		if err := cl.Put(t.Context(), "d/new", int64(n), bytes.NewReader(body), sha256.New(), func(n int) { moved += n }); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "d/new")); err != nil || !bytes.Equal(got, body) || moved != n {
			t.Errorf("%d bytes stored, %d moved, %v", len(got), moved, err)
		}
	}
	cl.Close()
	if srv.Regions() != 0 {
		t.Errorf("%d regions left", srv.Regions())
	}
}

// TestStream: a file of unknown length is sent piece by piece. The client may no longer write to a
// stored piece.
func TestStream(t *testing.T) {
	c, srv, dir, done := start(t, true)
	cl, _ := NewClient(c)
	for _, n := range []int{0, 1, uploadPiece, 2*uploadPiece + 5} {
		body := random(n)
		moved := 0
		if err := cl.PutStream(t.Context(), "d/new", iotest.OneByteReader(bytes.NewReader(body)), sha256.New(), func(n int) { moved += n }); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "d/new")); err != nil || !bytes.Equal(got, body) || moved != n {
			t.Errorf("%d bytes stored, %d moved, %v", len(got), moved, err)
		}
	}
	broken := io.MultiReader(bytes.NewReader(random(uploadPiece)), iotest.ErrReader(os.ErrInvalid))
	if err := cl.PutStream(t.Context(), "broken", broken, sha256.New(), nil); !errors.Is(err, os.ErrInvalid) {
		t.Error(err)
	}
	// The client gets the server's reason for a refusal, during the transfer or at the end, and the
	// connection remains usable.
	for _, n := range []int{limit + 1, limit + 4*uploadPiece} {
		err := cl.PutStream(t.Context(), "long", bytes.NewReader(random(n)), sha256.New(), nil)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "too large") {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := cl.Put(t.Context(), "short", 3*uploadPiece, bytes.NewReader(random(2*uploadPiece)), sha256.New(), nil); !errors.Is(err, ErrSourceShrank) {
		t.Error(err)
	}
	if srv.Regions() != 0 {
		t.Errorf("%d regions left", srv.Regions())
	}
	cl.Close()

	sum := strings.Repeat("00", 32)
	r := exchange(t, c, `{"op":"open","path":"x","mode":"write","length":-1,"pieces":true}`)
	pieces, _ := r["pieces"].([]any)
	if r["length"] != float64(uploadPiece) || len(pieces) != uploadPieces {
		t.Fatalf("the server lends %v", r)
	}
	r = exchange(t, c, `{"op":"extend","path":"x","mode":"write","length":7}`)
	if again, _ := r["pieces"].([]any); r["ok"] != true || len(again) != 1 ||
		again[0].(map[string]any)["handle"] == pieces[0].(map[string]any)["handle"] {
		t.Errorf("after %v: %v", pieces[0], r)
	}
	for _, bad := range []string{`{"op":"extend","path":"y","mode":"write","length":1}`, `{"op":"extend","path":"x","mode":"read","length":1}`,
		`{"op":"open","path":"z","mode":"write","offset":1}`, `{"op":"open","path":"z","mode":"write","length":-2,"pieces":true}`,
		`{"op":"open","path":"z","mode":"write","length":-1}`,
		`{"op":"close","path":"x","mode":"write","sha256":"` + sum + `"}`, `{"op":"close","path":"x","mode":"write","sha256":"` + sum + `"}`} {
		if r := exchange(t, c, bad); r["ok"] != false {
			t.Errorf("%s: %v", bad, r)
		}
	}
	// A piece of a wrong length ends the upload. The memory of the upload stays registered until
	// the client has closed the file.
	for _, bad := range []string{`"length":-1`, `"length":0`, `"length":1048577`, `"length":11`} {
		before := srv.Regions()
		exchange(t, c, `{"op":"open","path":"z","mode":"write","length":10,"pieces":true}`)
		r := exchange(t, c, `{"op":"extend","path":"z","mode":"write",`+bad+`}`)
		if again := exchange(t, c, `{"op":"extend","path":"z","mode":"write","length":1}`); r["ok"] != false ||
			bad != `"length":0` && again["ok"] != false {
			t.Errorf("%s: %v, then %v", bad, r, again)
		}
		if srv.Regions() != before+1 {
			t.Errorf("%s: %d regions, then %d", bad, before, srv.Regions())
		}
		if r := exchange(t, c, `{"op":"close","path":"z","mode":"write","length":1,"sha256":"`+sum+`"}`); r["ok"] != false || srv.Regions() != before {
			t.Errorf("%s: %v, %d regions", bad, r, srv.Regions())
		}
	}
	// The server does not accept a part of the file as the file, even with the right sum.
	exchange(t, c, `{"op":"open","path":"z","mode":"write","length":10,"pieces":true}`)
	if r := exchange(t, c, fmt.Sprintf(`{"op":"close","path":"z","mode":"write","length":1,"sha256":"%x"}`, sha256.Sum256([]byte{0}))); r["ok"] != false {
		t.Error(r)
	}
	c.Close()
	<-done
	if es, _ := os.ReadDir(dir); len(es) != 1 || srv.Regions() != 0 {
		t.Errorf("left %v and %d regions", es, srv.Regions())
	}
}

// older is a server's connection that hides the clients' requests for pieces.
type older struct{ msg.Conn }

func (o older) Recv(ctx context.Context) (msg.Message, error) {
	m, err := o.Conn.Recv(ctx)
	m.Data = bytes.Replace(m.Data, []byte(`"pieces":true`), []byte(`"peaces":true`), 1)
	return m, err
}

// TestWholeFile: a client that does not ask for pieces is lent the file itself, and the file is
// stored at the client's close. A client of this package can use a server without pieces.
func TestWholeFile(t *testing.T) {
	c, srv, dir, done := start(t, true)
	body := random(3*pieceBytes + 7)
	r := exchange(t, c, fmt.Sprintf(`{"op":"open","path":"d/x","mode":"write","length":%d}`, len(body)))
	handle, _ := r["handle"].(float64)
	address, err := parseAddress(fmt.Sprint(r["address"]))
	if r["ok"] != true || r["length"] != float64(len(body)) || r["pieces"] != nil || handle == 0 || err != nil {
		t.Fatalf("lent %v, %v", r, err)
	}
	if r := exchange(t, c, `{"op":"extend","path":"d/x","mode":"write","length":5}`); r["ok"] != false {
		t.Errorf("a part of a whole file: %v", r)
	}
	reg, err := c.Register(bytes.Clone(body), 0)
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(body); off += 1 << 15 {
		if err := c.PostWrite(reg, off, min(1<<15, len(body)-off), msg.Remote{Address: address + uint64(off), Handle: uint32(handle)}); err != nil {
			t.Fatal(err)
		}
		if err := c.Reap(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if es, _ := os.ReadDir(filepath.Join(dir, "d")); len(es) > 1 || len(es) == 1 && es[0].Name() == "x" {
		t.Errorf("before it is closed: %v", es)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(body))
	if r := exchange(t, c, `{"op":"close","path":"d/x","mode":"write","sha256":"`+sum+`"}`); r["ok"] != true ||
		r["sha256"] != sum {
		t.Error(r)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "d/x")); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes stored, %v", len(got), err)
	}
	// Also store an empty file, a file with a wrong sum, and an upload never closed.
	empty := fmt.Sprintf("%x", sha256.Sum256(nil))
	exchange(t, c, `{"op":"open","path":"e","mode":"write","length":0}`)
	if r := exchange(t, c, `{"op":"close","path":"e","mode":"write","sha256":"`+empty+`"}`); r["ok"] != true {
		t.Error(r)
	}
	exchange(t, c, `{"op":"open","path":"f","mode":"write","length":9}`)
	if r := exchange(t, c, `{"op":"close","path":"f","mode":"write","sha256":"`+empty+`"}`); r["ok"] != false {
		t.Error(r)
	}
	if r := exchange(t, c, fmt.Sprintf(`{"op":"open","path":"g","mode":"write","length":%d}`, limit+1)); r["ok"] != false {
		t.Error(r)
	}
	exchange(t, c, `{"op":"open","path":"g","mode":"write","length":9}`)
	reg.Close()
	c.Close()
	<-done
	if es, _ := os.ReadDir(dir); len(es) != 2 || srv.Regions() != 0 { // d and e
		t.Errorf("left %v and %d regions", es, srv.Regions())
	}
	if st, err := os.Stat(filepath.Join(dir, "e")); err != nil || st.Size() != 0 {
		t.Errorf("the empty file: %v, %v", st, err)
	}

	s, err := store.Open(dir, true, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, b := msgfake.Pair(1 << 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(context.Background(), older{b}, s, nil, slog.New(slog.DiscardHandler), Observer{})
	}()
	cl, _ := NewClient(a)
	defer func() { cl.Close(); a.Close(); testkit.Await(t, "the server ends", ended) }()
	for _, n := range []int{0, 1, len(body)} {
		if err := cl.Put(t.Context(), "old", int64(n), bytes.NewReader(body[:n]), sha256.New(), nil); err != nil {
			t.Errorf("%d bytes to an older server: %v", n, err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "old")); err != nil || !bytes.Equal(got, body[:n]) {
			t.Errorf("%d bytes to an older server: %d stored, %v", n, len(got), err)
		}
	}
	if err := cl.PutStream(t.Context(), "pipe", bytes.NewReader(body), sha256.New(), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a pipe to an older server: %v", err)
	}
}

// TestNothingLeft: a put that ends early, whatever the cause, leaves nothing in the directory.
func TestNothingLeft(t *testing.T) {
	for name, end := range map[string]func(c *msgfake.Conn){
		"closed": func(c *msgfake.Conn) { c.Close() },
		"broken": func(c *msgfake.Conn) { c.Break() },
	} {
		c, srv, dir, done := start(t, true)
		if r := exchange(t, c, `{"op":"open","path":"x","mode":"write","length":100}`); r["ok"] != true {
			t.Fatal(r)
		}
		end(c)
		<-done
		es, _ := os.ReadDir(dir)
		if len(es) != 0 || srv.Regions() != 0 {
			t.Errorf("%s: left %v and %d regions", name, es, srv.Regions())
		}
	}
	c, _, dir, _ := start(t, true)
	exchange(t, c, `{"op":"open","path":"x","mode":"write","length":100}`)
	for _, bad := range []string{`""`, `"zz"`, `"` + strings.Repeat("00", 32) + `"`} {
		r := exchange(t, c, `{"op":"close","path":"x","mode":"write","sha256":`+bad+`}`)
		if r["ok"] != false {
			t.Error(r)
		}
	}
	if es, _ := os.ReadDir(dir); len(es) != 0 {
		t.Errorf("left %v", es)
	}
}

// endsEarly is the connection of a client that disconnects as soon as it has an answer. The server's
// Send has then not returned, and reports the end.
type endsEarly struct{ *msgfake.Conn }

func (c endsEarly) Send(ctx context.Context, m msg.Message) error {
	if err := c.Conn.Send(ctx, m); err != nil {
		return err
	}
	return fmt.Errorf("the connection ended: %w", io.EOF)
}

// TestEndBeforeSent: the end of a client that has its answer is orderly, although the server's Send
// was still waiting for its completion.
func TestEndBeforeSent(t *testing.T) {
	s, err := store.Open(t.TempDir(), true, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, b := msgfake.Pair(1 << 16)
	done := make(chan error, 1)
	go func() {
		done <- Serve(t.Context(), endsEarly{b}, s, nil, slog.New(slog.DiscardHandler), Observer{})
	}()
	if r := exchange(t, a, `{"op":"list","path":"."}`); r["ok"] != true {
		t.Error(r)
	}
	a.Close()
	if err := <-done; err != nil {
		t.Errorf("served: %v", err)
	}
}

func TestWire(t *testing.T) {
	c, _, dir, _ := start(t, false)
	os.WriteFile(filepath.Join(dir, "x.bin"), []byte("hello, world"), 0o600)
	os.Mkdir(filepath.Join(dir, "a"), 0o700)
	r := exchange(t, c, `{"op":"open","path":"x.bin","mode":"read","offset":0,"length":0}`)
	if r["ok"] != true || r["length"] != 12.0 || r["size"] != 12.0 ||
		!strings.HasPrefix(r["address"].(string), "0x") || r["handle"] == nil {
		t.Error(r)
	}
	if r := exchange(t, c, `{"op":"close","path":"x.bin","mode":"read"}`); r["sha256"] != fmt.Sprintf("%x", sha256.Sum256([]byte("hello, world"))) {
		t.Error(r)
	}
	r = exchange(t, c, `{"op":"list","path":""}`)
	want := []any{map[string]any{"name": "a", "dir": true}, map[string]any{"name": "x.bin", "size": 12.0}}
	if fmt.Sprint(r["entries"]) != fmt.Sprint(want) || r["more"] != nil {
		t.Error(r)
	}
	for _, bad := range []string{``, `{`, `[]`, `{"op":"x"}`, `{"op":"open","path":"x.bin"}`, `{"op":"open","path":"x.bin","mode":"append"}`,
		`{"op":"open","path":"x.bin","mode":"write","length":5}`, `{"op":"open","path":"../x","mode":"read"}`, `{"op":"open","path":"a","mode":"read"}`,
		`{"op":"open","path":"x.bin","mode":"read","offset":-1}`, `{"op":"open","path":"x.bin","mode":"read","offset":13}`,
		`{"op":"open","path":"x.bin","mode":"read","length":13}`, `{"op":"open","path":"x.bin","mode":"read","length":99999999999999999999}`,
		`{"op":"close","path":"x.bin","mode":"read"}`, `{"op":"list","path":"x.bin"}`, `{"op":"list","path":"/"}`, `{"op":"open","path":"` + strings.Repeat("y", 5000) + `"}`} {
		r := exchange(t, c, bad)
		if e, _ := r["error"].(string); r["ok"] != false || e == "" || strings.Contains(e, dir) {
			t.Errorf("%.60q: %v", bad, r)
		}
	}
	// A client may open one range per name and mode, and a limited number of ranges.
	exchange(t, c, `{"op":"open","path":"x.bin","mode":"read"}`)
	if r := exchange(t, c, `{"op":"open","path":"./x.bin","mode":"read"}`); r["error"] != "already open" {
		t.Error(r)
	}
	full := false
	for i := range maxOpen + 1 {
		n := fmt.Sprintf("n%d", i)
		os.WriteFile(filepath.Join(dir, n), []byte("x"), 0o600)
		r := exchange(t, c, `{"op":"open","path":"`+n+`","mode":"read"}`)
		full = full || r["ok"] == false
	}
	if !full {
		t.Error("any number of ranges can be open")
	}
}

func TestLongListing(t *testing.T) {
	c, _, dir, _ := start(t, false)
	for i := range 500 {
		os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%04d-%s", i, strings.Repeat("\"", i%40))), nil, 0o600)
	}
	cl, _ := NewClient(c)
	es, err := cl.List(t.Context(), "")
	if err != nil || len(es) != 500 || es[0].Name != "file-0000-" {
		t.Errorf("%d entries, %v", len(es), err)
	}
	for i, e := range es {
		if want := fmt.Sprintf("file-%04d-%s", i, strings.Repeat("\"", i%40)); string(e.Name) != want {
			t.Fatalf("entry %d is %q, want %q", i, e.Name, want)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(`{"op":"open","path":"f","mode":"read","offset":0,"length":0}`)
	f.Add(`{"op":"open","path":"n","mode":"write","length":7}`)
	f.Add(`{"op":"open","path":"n","mode":"write","length":-1,"pieces":true}`)
	f.Add(`{"op":"close","path":"n","mode":"write","sha256":"00"}`)
	f.Add(`{"op":"list","path":""}`)
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o600)
		s, err := store.Open(dir, true, 1<<16)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, b := msgfake.Pair(1 << 16)
		ses := &session{conn: b, store: s, log: slog.New(slog.DiscardHandler), open: map[openKey]*opened{}}
		var q request
		if json.Unmarshal([]byte(text), &q) != nil {
			return
		}
		if out, err := ses.handle(q); err == nil && len(out) > MaxMessage {
			t.Errorf("answer of %d bytes", len(out))
		}
		for k := range ses.open {
			ses.drop(k)
		}
		if es, _ := os.ReadDir(dir); q.Op != "open" && len(es) != 1 {
			t.Errorf("left %v", es)
		}
	})
}

// A stopped is a client's connection to a server stopping after a number of pieces.
type stopped struct {
	*msgfake.Conn
	pieces int
}

func (s *stopped) Reap(ctx context.Context) error {
	if s.pieces--; s.pieces < 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.Conn.Reap(ctx)
}

// TestStalled: the client gives up if the server stops in the middle of any request. The client
// waits longer while the server hashes a large file.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := msgfake.Pair(1 << 16)
		defer a.Close()
		c := &stopped{Conn: a}
		cl, _ := NewClient(c)
		defer cl.Close()
		mem := make([]byte, 10<<20)
		far, _ := b.Register(mem, msg.RemoteRead|msg.RemoteWrite)
		at := far.Remote()
		answer := func(r reply) {
			if r.Handle == nil && r.OK {
				n := int64(len(mem))
				r.Handle, r.Address, r.Length = &at.Handle, hexAddress(at.Address), &n
			}
			b.Send(t.Context(), msg.Message{Data: encode(r)})
		}
		get := func() error {
			return cl.Get(t.Context(), "f", 0, io.Discard, sha256.New(), nil, nil)
		}
		stalls := func(what string, want time.Duration, f func() error) {
			t.Helper()
			began := time.Now()
			if err := f(); !errors.Is(err, ErrStalled) || time.Since(began) != want {
				t.Errorf("%s: %v after %v", what, err, time.Since(began))
			}
		}
		stalls("list", stallTime, func() error { _, err := cl.List(t.Context(), "/"); return err })
		stalls("open", stallTime, get)
		answer(reply{OK: true})
		c.pieces = 5
		stalls("transfer", stallTime, get)
		answer(reply{OK: true})
		c.pieces = 1 << 30
		stalls("close", stallTime+time.Duration(len(mem))*hashTimeByte, get)

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(net.ErrClosed) // a context that the caller ended is not reported as a stalled server
		if _, err := cl.List(ctx, "/"); err == nil || errors.Is(err, ErrStalled) {
			t.Error(err)
		}
	})
}

// An interrupted is a client's connection where the second Send waits for the end of the context.
type interrupted struct {
	*msgfake.Conn
	end   func(cause error)
	sends int
}

func (c *interrupted) Send(ctx context.Context, m msg.Message) error {
	if c.sends++; c.sends != 2 {
		return c.Conn.Send(ctx, m)
	}
	c.end(fmt.Errorf("another file: %w", ErrRefused))
	return context.Cause(ctx)
}

// TestEndedInSend: a client sends nothing after a context has ended a Send, because the memory of
// that message may still be in use. A cause that reads like an answer of the server changes nothing.
func TestEndedInSend(t *testing.T) {
	a, _, _, _ := start(t, true)
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &interrupted{Conn: a, end: cancel}
	cl, _ := NewClient(c)
	defer cl.Close()
	body := random(100)
	if err := cl.Put(ctx, "f", 100, bytes.NewReader(body), sha256.New(), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("Put: %v, want the cause of the context", err)
	}
	if c.sends != 2 {
		t.Errorf("%d messages were sent, want 2: one that opens the file and the interrupted one", c.sends)
	}
}

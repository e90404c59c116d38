package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

func open(t *testing.T, writable bool) (*Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(dir, writable, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

func TestView(t *testing.T) {
	s, dir := open(t, false)
	body := bytes.Repeat([]byte("0123456789abcdef"), 5000)
	os.WriteFile(filepath.Join(dir, "f"), body, 0o600)
	v, err := s.View("f", 16, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(v.Data, body[16:]) || v.Size != int64(len(body)) {
		t.Error("wrong bytes")
	}
	if sum, err := v.Sum(); err != nil || sum != sha256.Sum256(body[16:]) {
		t.Error("wrong sum", err)
	}
	os.Truncate(filepath.Join(dir, "f"), 100)
	if _, err := v.Sum(); !errors.Is(err, ErrShrank) { // and Sum does not fault
		t.Error(err)
	}
	v.Close()
	v, err = s.View("f", 100, 0) // the offset is the end of the file
	if err != nil || len(v.Data) != 0 {
		t.Fatal(err)
	}
	v.Close()
	os.WriteFile(filepath.Join(dir, "g"), body, 0o600)
	for _, off := range []int64{1, 4095, 4096, 10001} { // callers need not align offsets to pages
		v, err := s.View("g", off, 5000)
		if err != nil || !bytes.Equal(v.Data, body[off:][:5000]) {
			t.Fatalf("from %d: %v", off, err)
		}
		v.Close()
	}
	for _, r := range [][2]int64{{101, 0}, {-1, 0}, {0, -1}, {0, 101}, {50, 51}, {1, 1<<63 - 1}} {
		if _, err := s.View("f", r[0], r[1]); !errors.Is(err, ErrRange) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

func TestPaths(t *testing.T) {
	s, dir := open(t, true)
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600)
	os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link"))
	os.Symlink(outside, filepath.Join(dir, "dirlink"))
	os.Symlink("../"+filepath.Base(outside), filepath.Join(dir, "rel"))
	os.WriteFile(filepath.Join(dir, "in"), []byte("in"), 0o600)
	os.Symlink("in", filepath.Join(dir, "good"))
	os.Mkdir(filepath.Join(dir, "d"), 0o700)
	for _, p := range []string{"link", "dirlink/secret", "rel/secret", "../" +
		filepath.Base(outside) + "/secret", "/etc/passwd", "a\\b", "a\x00",
		"d/../../x", "..", ".viaduct-x.partial", "missing", "d", ""} {
		if v, err := s.View(p, 0, 0); err == nil {
			v.Close()
			t.Errorf("%q could be read", p)
		}
	}
	for _, p := range []string{"link", "dirlink/new", "rel/new", "../x", "/tmp/x", "", ".", "d", "d/", "..", ".viaduct-x.partial"} {
		if u, err := s.Create(p, 1); err == nil {
			// A link as the last element is replaced, never followed.
			if err := u.Commit(); err == nil && p != "link" {
				t.Errorf("%q could be written", p)
			}
			u.Abort()
		}
	}
	if b, _ := os.ReadFile(filepath.Join(outside, "secret")); string(b) != "x" || len(names(t, outside)) != 1 {
		t.Error("the world outside changed")
	}
	v, err := s.View("./d/../good", 0, 0)
	if err != nil || string(v.Data) != "in" {
		t.Fatal(err)
	}
	v.Close()
	es, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if out := e.Name == "dirlink" || e.Name == "rel"; e.Other != out || out && (e.Dir || e.Size != nil) {
			t.Errorf("listing has %+v", e)
		}
	}
	if _, err := s.List("in"); err == nil {
		t.Error("a file was listed")
	}
}

func TestUpload(t *testing.T) {
	for _, named := range []bool{false, true} {
		s, dir := open(t, true)
		create := func(p string, n int64) *Upload {
			t.Helper()
			u, err := s.Create(p, n)
			if err != nil {
				t.Fatal(err)
			}
			if named && u.temp == "" { // as on a file system without files that have no name
				u.Abort()
				u = &Upload{s: s, dir: filepath.Dir(p), base: filepath.Base(p)}
				if u.f, u.temp, err = s.named(u.dir); err != nil {
					t.Fatal(err)
				}
			}
			return u
		}
		u := create("sub/x", 5)
		u.Write([]byte("hello"))
		if _, err := os.Stat(filepath.Join(dir, "sub/x")); err == nil {
			t.Error("visible before its time")
		}
		if err := u.Commit(); err != nil {
			t.Fatal(err)
		}
		u.Abort() // does nothing after Commit
		u = create("sub/x", 3)
		u.Write([]byte("new"))
		if err := u.Commit(); err != nil { // replaces the file
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "sub/x")); err != nil || string(b) != "new" {
			t.Errorf("%q %v", b, err)
		}
		u = create("sub/y", 3)
		u.Abort()
		u = create("empty", 0)
		if err := u.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := names(t, filepath.Join(dir, "sub")); len(n) != 1 {
			t.Errorf("left behind: %v", n)
		}
		if n := names(t, dir); len(n) != 2 {
			t.Errorf("left behind: %v", n)
		}
	}
}

// TestUnmapFails: Commit publishes nothing if the bytes of the mapping cannot be written to the
// file.
func TestUnmapFails(t *testing.T) {
	s, dir := open(t, true)
	u, err := s.Create("x", 5)
	if err != nil {
		t.Fatal(err)
	}
	b, err := u.Map(5)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, "hello")
	spoilMapping(t, &u.m)
	if err := u.Commit(); err == nil {
		t.Error("no error")
	}
	if n := names(t, dir); len(n) != 0 {
		t.Errorf("left behind: %v", n)
	}
}

func TestStream(t *testing.T) {
	s, dir := open(t, true)
	u, err := s.Create("s", -1)
	if err != nil {
		t.Fatal(err)
	}
	u.Write([]byte("ab"))
	u.Write([]byte("cd"))
	if _, err := u.Write(make([]byte, 1<<20)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if err := u.Commit(); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "s")); string(b) != "abcd" {
		t.Errorf("%q", b)
	}
}

func TestLimits(t *testing.T) {
	s, dir := open(t, true)
	if _, err := s.Create("big", 1<<20+1); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	s.maxFile = 0
	if u, err := s.Create("huge", 1<<62); err == nil { // larger than any disk
		u.Abort()
		t.Error("reserved 4 EiB")
	}
	if n := names(t, dir); len(n) != 0 {
		t.Errorf("left behind: %v", n)
	}
	s.writable = false
	if _, err := s.Create("x", 1); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
}

func TestSweep(t *testing.T) {
	s, dir := open(t, true)
	live, name, err := s.named(".")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	os.Mkdir(filepath.Join(dir, "d"), 0o700)
	os.WriteFile(filepath.Join(dir, "d", tempName()), []byte("dead"), 0o600)
	os.WriteFile(filepath.Join(dir, "d", "mine.partial"), []byte("keep"), 0o600)
	again, err := Open(dir, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if n := names(t, filepath.Join(dir, "d")); len(n) != 1 || n[0] != "mine.partial" {
		t.Errorf("after the sweep: %v", n)
	}
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		t.Error("a file in use was removed")
	}
}

// TestZeros: skipped blocks of zeros read as zeros, wherever the blocks begin and end and however
// the file is cut into writes. Skipped blocks use no disk space.
func TestZeros(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := rand.New(rand.NewPCG(19, 1))
	for i := range 40 {
		var want []byte
		for range r.IntN(8) {
			b := make([]byte, r.IntN(5*zeroBlock))
			if r.IntN(2) == 0 {
				for j := range b {
					b[j] = 1 + byte(r.IntN(255))
				}
			}
			want = append(want, b...)
		}
		length := int64(-1)
		if r.IntN(2) == 0 {
			length = int64(len(want))
		}
		u, err := s.Create("z", length)
		if err != nil {
			t.Fatal(err)
		}
		for rest := want; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			if r.IntN(2) == 0 {
				n = min(n, zeroBlock)
			}
			if k, err := u.Write(rest[:n]); k != n || err != nil {
				t.Fatal(k, err)
			}
			rest = rest[n:]
		}
		if err := u.Commit(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "z"))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("file %d: %d bytes of %d, or others; %v", i, len(got), len(want), err)
		}
	}

	u, err := s.Create("sparse", -1)
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		u.Write(make([]byte, 1<<20))
	}
	u.Write([]byte("end"))
	if err := u.Commit(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, "sparse"))
	if err != nil || st.Size() != 64<<20+3 {
		t.Fatalf("%v, %v", st, err)
	}
	if used, ok := blocks(st); ok && used > 1<<20 {
		t.Errorf("64 MiB of zeros take %d bytes of the disk", used)
	}
}

// TestNames: names of any bytes work in paths and in listings, and JSON keeps the names unchanged.
func TestNames(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skipf("SKIPPED: the file systems of %s have no names that are not UTF-8", runtime.GOOS)
	}
	s, dir := open(t, true)
	want := []string{"a\nb", "caf\xc3\xa9", "caf\xe9", "caf\xea", "x\xff/y\xfe"}
	for _, n := range want {
		u, err := s.Create(n, -1)
		if err != nil {
			t.Fatalf("%q: %v", n, err)
		}
		u.Write([]byte(n))
		if err := u.Commit(); err != nil {
			t.Fatalf("%q: %v", n, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, n)); string(b) != n {
			t.Errorf("%q has %q, %v", n, b, err)
		}
	}
	var got []string
	for _, d := range []string{"", "x\xff"} {
		es, err := s.List(d)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(es)
		if err != nil {
			t.Fatal(err)
		}
		var back []Entry
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		for _, e := range back {
			if !e.Dir {
				got = append(got, path.Join(d, string(e.Name)))
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSweepAnyName: the temporary files of a killed server are removed, whatever the name of the
// directory.
func TestSweepAnyName(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"plain", "\xff"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Skipf("SKIPPED: the file system has no name %q: %v", d, err)
		}
		os.WriteFile(filepath.Join(dir, d, tempName()), nil, 0o644)
	}
	s, err := Open(dir, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, d := range []string{"plain", "\xff"} {
		if left := names(t, filepath.Join(dir, d)); len(left) != 0 {
			t.Errorf("%q has %q", d, left)
		}
	}
}

// TestListTooLong: a directory with too many names is an error, not a shorter listing.
func TestListTooLong(t *testing.T) {
	s, dir := open(t, false)
	s.maxNames = 2
	for i, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		es, err := s.List("")
		if i < s.maxNames && (err != nil || len(es) != i+1) || i == s.maxNames && !errors.Is(err, ErrTooMany) {
			t.Errorf("of %d names: %d entries, %v", i+1, len(es), err)
		}
	}
}

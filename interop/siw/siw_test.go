package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// unpack returns the files of a newc archive, by name. unpack is a simple second implementation of
// the format.
func unpack(t *testing.T, b []byte) map[string]string {
	t.Helper()
	if len(b)%512 != 0 {
		t.Errorf("archive of %d bytes", len(b))
	}
	files := make(map[string]string)
	inodes := make(map[string]bool)
	for {
		if len(b) < 110 || string(b[:6]) != "070701" {
			t.Fatalf("no header: %q", b[:min(len(b), 110)])
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		if ino := string(b[6:14]); inodes[ino] {
			t.Errorf("inode %s twice", ino)
		} else {
			inodes[ino] = true
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(b[110 : 110+nameSize-1])
		at := (110 + nameSize + 3) &^ 3
		data := string(b[at : at+size])
		b = b[(at+size+3)&^3:]
		if name == "TRAILER!!!" {
			return files
		}
		files[name] = fmt.Sprintf("%o %s", mode, data)
	}
}

func TestArchive(t *testing.T) {
	var buf bytes.Buffer
	a := newArchive(&buf)
	a.dir("etc")
	a.dir("etc")
	a.dir(".")
	a.file("etc/a", 0o644, []byte("x"))
	a.file("init", 0o755, []byte("hello"))
	a.file("empty", 0o600, nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, buf.Bytes())
	want := map[string]string{"etc": "40755 ", "etc/a": "100644 x", "init": "100755 hello", "empty": "100600 "}
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: %q, want %q", name, got[name], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d entries: %v", len(got), got)
	}
}

type full struct{ room int }

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

func TestArchiveReportsErrors(t *testing.T) {
	a := newArchive(&full{room: 300})
	a.file("a", 0o644, make([]byte, 100))
	a.file("b", 0o644, make([]byte, 100))
	if err := a.close(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("close = %v", err)
	}
}

func TestTreeCopiesOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("data"), 0o755); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tr := &tree{a: newArchive(&buf), done: make(map[string]bool)}
	tr.copy("usr/lib/x/f", file)
	tr.copy("usr/lib/x/f", file)
	if err := tr.a.close(); err != nil || tr.err != nil {
		t.Fatal(err, tr.err)
	}
	got := unpack(t, buf.Bytes())
	if got["usr/lib/x/f"] != "100755 data" || got["usr/lib/x"] != "40755 " || got["usr"] != "40755 " {
		t.Errorf("entries %v", got)
	}
	tr.copy("y", file+".missing")
	if !errors.Is(tr.err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", tr.err)
	}
}

func TestParseAnswer(t *testing.T) {
	id, res, n, err := parseAnswer("c12 124 3000\n")
	if id != "c12" || res.status != 124 || n != 3000 || err != nil {
		t.Errorf("%q %v %d %v", id, res, n, err)
	}
	for _, bad := range []string{"", "\n", "c1 0\n", "c1 x 3\n", "c1 0 x\n", "c1 0 -1\n", "c1 0 999999999\n", "a b c d\n"} {
		if _, _, _, err := parseAnswer(bad); err == nil {
			t.Errorf("%q was taken for an answer", bad)
		}
	}
}

func TestParseReading(t *testing.T) {
	d := new(reading)
	d.parse([]byte(`
Frame 4: 90 bytes on wire
iWARP Marker Protocol data unit Aligned framing
    Request frame header
    Reply frame header
    FPDU
        ULPDU length: 46 bytes
        CRC check: 0xa3df0d59 (Bad CRC32, should be 0xa3df0d58)
    FPDU
        CRC check: 0x94da2b02 (Good CRC32)
    FPDU
        CRC: 0x00000000
`))
	if d.requests != 1 || d.replies != 1 || d.fpdus != 3 || d.goodCRC != 1 || d.badCRC != 1 {
		t.Errorf("%+v", d)
	}
}

func TestMacs(t *testing.T) {
	a, b := macFor("10.9.0.1/24"), macFor("10.9.0.2/24")
	if a == b || a != "52:54:0a:09:00:01" {
		t.Errorf("%s %s", a, b)
	}
}

func TestImagePackage(t *testing.T) {
	m := imagePackage.FindStringSubmatch("linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n")
	if m == nil || m[1] != "6.1.0-56-amd64" {
		t.Fatalf("%q", m)
	}
	b := &builder{release: m[1]}
	if b.base() != "6.1.0-56" || b.series() != "6.1" {
		t.Errorf("%s %s", b.base(), b.series())
	}
}

func TestNeed(t *testing.T) {
	err := need("sh", "no-such-program", "rping-of-none")
	var s skip
	if !errors.As(err, &s) || !strings.Contains(err.Error(), "no-such-program rping-of-none") {
		t.Errorf("%v", err)
	}
	if err := need("sh"); err != nil {
		t.Error(err)
	}
}

func TestProcess(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	r := &runner{options: &options{viaduct: sh}}
	h, err := r.startViaduct(t.Context(), "-c", "echo listening here; read x; echo done")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.waitFor("listening ", testkit.Patience); err != nil {
		t.Error(err)
	}
	h.kill()
	if h, err = r.startViaduct(t.Context(), "-c", "echo broken; exit 3"); err != nil {
		t.Fatal(err)
	}
	if err := h.waitFor("listening ", testkit.Patience); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("waitFor: %v", err)
	}
	if err := h.wait(testkit.Patience); err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("wait: %v", err)
	}
}

// TestGuestScript lets a shell parse the guest's program, so that a syntax error fails here instead
// of making a guest hang.
func TestGuestScript(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	cmd := exec.Command(sh, "-n")
	cmd.Stdin = bytes.NewReader(guestInit)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLadder: every form that ladder writes, of an exchange and of a capture.
func TestLadder(t *testing.T) {
	dir := t.TempDir()
	var list struct {
		Exchanges []struct{ Name, Title, Source string }
	}
	if err := json.Unmarshal([]byte(good(t, "ladder", "--list", "--json").stdout), &list); err != nil || len(list.Exchanges) < 8 {
		t.Fatalf("%v, %d exchanges", err, len(list.Exchanges))
	}
	if out := good(t, "ladder", "--list").stdout; strings.Count(out, "\n") != len(list.Exchanges)+1 {
		t.Errorf("the list is\n%s", out)
	}
	capture := filepath.Join(dir, "x.pcapng")
	good(t, "ladder", "--demo", "sdp-read-zcopy", "-o", capture)
	for _, c := range []struct{ name, want string }{
		{"x.svg", "RDMA Read Response"}, {"x.html", "<!DOCTYPE html>"}, {"x.txt", "SrcAvail"},
	} {
		for _, from := range [][]string{{"--demo", "sdp-read-zcopy"}, {capture}} {
			f := filepath.Join(dir, c.name)
			if r := good(t, append([]string{"ladder", "-o", f}, from...)...); r.stdout != "" {
				t.Errorf("stdout %q", r.stdout)
			}
			if b, err := os.ReadFile(f); err != nil || !strings.Contains(string(b), c.want) {
				t.Errorf("%s of %v: %v, %d bytes without %q", c.name, from, err, len(b), c.want)
			}
		}
	}
	b, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	text := good(t, "ladder", capture, "--title", "of a file").stdout
	if r := runIn(t, "", strings.NewReader(string(b)), "ladder", "-", "--title", "of a file"); r.stdout != text || !strings.Contains(text, "RdmaRdCompl") || !strings.HasPrefix(text, "of a file\n") {
		t.Errorf("of standard input:\n%s\nof the file:\n%s", r.stdout, text)
	}
	fails(t, 1, "no message to draw", "ladder", capture, "--filter", "proto=fcvi")
	fails(t, 1, "neither a pcap nor a pcapng", "ladder", filepath.Join(dir, "x.svg"))
	fails(t, 1, "no such file", "ladder", filepath.Join(dir, "nothing"))
}

// TestWireshark: the dissectors get where they are to go.
func TestWireshark(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	printed := good(t, "wireshark", "--print").stdout
	out := strings.Fields(good(t, "wireshark", "--install", "--dir", dir).stdout)
	if len(out) != 4 {
		t.Fatalf("installed %q", out)
	}
	for _, p := range out {
		if b, err := os.ReadFile(p); err != nil || filepath.Dir(p) != dir || !strings.Contains(printed, string(b)) {
			t.Errorf("%s: %v, %d bytes", p, err, len(b))
		}
	}
	if d := document(t, good(t, "wireshark", "--install", "--dir", dir, "--json")); len(d["files"].([]any)) != 4 {
		t.Errorf("%v", d)
	}
	fails(t, 1, "not a directory", "wireshark", "--install", "--dir", filepath.Join(out[0], "x"))
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/cmd/viaduct/internal/tshark"
)

// TestLadder: ladder writes every format, for an exchange and for a capture.
func TestLadder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var list struct {
		Exchanges []struct{ Name, Title, Source string }
	}
	if err := json.Unmarshal([]byte(good(t, "ladder", "--list", "--json").stdout), &list); err != nil ||
		len(list.Exchanges) < 8 {
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
	if r := runFrom(t, strings.NewReader(string(b)), "ladder", "-", "--title", "of a file"); r.stdout != text ||
		!strings.Contains(text, "RdmaRdCompl") || !strings.HasPrefix(text, "of a file\n") {
		t.Errorf("of standard input:\n%s\nof the file:\n%s", r.stdout, text)
	}
	fails(t, 1, "no message to draw", "ladder", capture, "--filter", "proto=fcvi")
	fails(t, 1, "neither a pcap nor a pcapng", "ladder", filepath.Join(dir, "x.svg"))
	fails(t, 1, "no such file", "ladder", filepath.Join(dir, "nothing"))
}

// TestWireshark: wireshark --install writes the dissectors to the directory given by --dir.
func TestWireshark(t *testing.T) {
	t.Parallel()
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

// TestPcap: tshark and decode agree on every field of every message in captures of both sides.
func TestPcap(t *testing.T) {
	t.Parallel()
	shark := newShark(t)
	fields := map[string]string{ // a field that occurs in a transfer, by scheme
		"vitcp": "vitcp.rdma_length", "iwarp": "rdmap.size", "sdp": "sdp.mseq", "fcvi": "fcvi.rmt_va", "tcp": "",
	}
	for _, scheme := range transport.Names() {
		t.Run(scheme, func(t *testing.T) {
			field, ok := fields[scheme]
			if !ok {
				t.Fatal("it is not known which field a transfer has")
			}
			for _, f := range captured(t, scheme, 600_000) {
				if r := agree(t, shark, f); r.Packets < 10 || field != "" && (r.Messages < 10 || r.Fields[field] == 0) {
					t.Errorf("%s: %d packets, %d messages, %v", filepath.Base(f), r.Packets, r.Messages, r.Fields)
				}
			}
		})
	}
	t.Run("portmap", func(t *testing.T) {
		a, b := filepath.Join(t.TempDir(), "server.pcapng"), filepath.Join(t.TempDir(), "client.pcapng")
		srv, urls := start(t, 1, "portmap", "serve", "--listen", "127.0.0.1:0", "--map", ":80=:8080", "--pcap", a)
		server := strings.TrimPrefix(urls[0], "udp://")
		good(t, "portmap", "query", "127.0.0.1:80", "--server", server, "--pcap", b)
		if code := srv.stop(syscall.SIGTERM); code != 0 {
			t.Errorf("exit %d", code)
		}
		_, port, _ := strings.Cut(server, ":")
		for _, f := range []string{a, b} { // the server may have been stopped before the last message
			if r := agree(t, shark, f, "--as", port+"=portmap"); r.Messages < 2 || r.Fields["portmap.ap"] < 2 {
				t.Errorf("%s: %d messages, %v", filepath.Base(f), r.Messages, r.Fields)
			}
		}
	})
}

// newShark prepares tshark with the dissectors. It skips the test if tshark is not installed.
func newShark(t *testing.T) *tshark.Shark {
	t.Helper()
	program(t, "tshark")
	s, err := tshark.New(t.TempDir())
	if errors.Is(err, tshark.ErrAbsent) {
		t.Skip("SKIPPED: tshark is not installed, nothing has judged what is recorded")
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// agree fails the test unless decode finds nothing wrong in a capture and agrees with tshark. In
// captures of FCIP, each frame is first moved to a separate packet.
func agree(t *testing.T, s *tshark.Shark, file string, as ...string) *tshark.Report {
	t.Helper()
	decode := append([]string{"decode", "--json", "--segments"}, as...)
	lines := good(t, append(decode, file)...).stdout
	for line := range strings.Lines(lines) {
		if !strings.Contains(line, `"wrong":[]`) {
			t.Errorf("%s: a false alarm: %s", filepath.Base(file), line)
		}
	}
	if strings.Contains(lines, `"proto":"fcip"`) {
		one := file + ".split.pcapng"
		if err := tshark.FramePerPacket(one, file); err != nil {
			t.Fatal(err)
		}
		again := good(t, append(decode, one)...).stdout
		if a, b := strings.Count(lines, "\n"), strings.Count(again, "\n"); a != b {
			t.Errorf("%s: %d messages, with a packet for each frame %d", filepath.Base(file), a, b)
		}
		file, lines = one, again
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := s.Compare(ctx, file, []byte(lines))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range r.Differ {
		t.Errorf("%s: %s", filepath.Base(file), d)
	}
	return r
}

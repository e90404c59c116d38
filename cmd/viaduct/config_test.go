package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfig: services read their flags from a file, the command line takes precedence, and each
// mistake is reported with the line number.
func TestConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "viaduct.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	os.Mkdir(root, 0o700)
	random(t, filepath.Join(dir, "f"), 100)
	write(`# all services
log-level = "info"

[serve]
root = '` + root + `'
listen = [
  "tcp://127.0.0.1:0", # plain
  "vitcp://127.0.0.1:0/files",
]
writable = true
max-file = "1K"

[echo]
listen = "tcp://127.0.0.1:0"
[proxy]
listen = ["tcp://127.0.0.1:0"]
to = "sdp://127.0.0.1:1"
[fabric]
listen = "127.0.0.1:0"
domain = 7
same-host = "auto"
[portmap.serve]
listen = "127.0.0.1:0"
map = ["*:5000=127.0.0.1:7000"]
`)
	good(t, "config", "check", file)
	server, urls := start(t, 2, "serve", "--config", file)
	for _, u := range urls {
		good(t, "put", filepath.Join(dir, "f"), at(u, "f"))
	}
	server.waitStderr("level=INFO")
	_, urls = start(t, 1, "serve", "--config", file, "--writable=false", "--listen", "sdp://127.0.0.1:0",
		"--log-level", "error")
	if !strings.HasPrefix(urls[0], "sdp://") {
		t.Error(urls)
	}
	fails(t, 1, "read-only", "put", filepath.Join(dir, "f"), at(urls[0], "f"))
	_, urls = start(t, 1, "echo", "--config", file)
	good(t, "ping", urls[0], "-c", "1")
	start(t, 1, "proxy", "--config", file)
	start(t, 1, "fabric", "--config", file)
	start(t, 1, "portmap", "serve", "--config", file)

	write(`log-level = "loud"
roof = "/"
root = "/"
[serve]
root = 5
writable = "yes"
listen = ["tcp://127.0.0.1:0", "vitcp://h"]
colour = 1
max-file = "lots"
[proxy]
to = "iwarp://h:1"
listen = [1]
tls-pin = "x"
[server]
root = "/"
[fabric]
domain = 300
listen = ":99999"
[portmap.serve]
cache = "soon"
map = "x"
config = "y"
`)
	r := run(t, "config", "check", file)
	want := []string{`:1: log-level: "loud" is none of`, ":2: roof is no key before",
		":3: root belongs into", ":5: root: want a string", ":6: writable: want true or false",
		":7: listen: address", ":8: colour is no key of [serve]", ":9: max-file", ":11: to: iwarp carries", ":12: listen: want", ":13: tls-pin", ":14: [server] is none of",
		":17: domain", ":18: listen", ":20: cache", ":21: map", ":22: config is no key"}
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.code != 1 || len(lines) != len(want) || !strings.Contains(r.last(), "17 mistakes") {
		t.Fatalf("exit %d, %d lines, %s\n%s", r.code, len(lines), r.last(), r.stdout)
	}
	for i, w := range want {
		if !strings.Contains(lines[i], file+w) {
			t.Errorf("%s, want %s", lines[i], w)
		}
	}
	fails(t, 2, ":8: colour is no key", "serve", "--config", file)
	for text, reason := range map[string]string{"[serve\n": ":1: ", "[serve]\nroot = \"a\"\nroot = \"b\"": ":3: ", "[echo]\n": "there is no [serve]", "[[serve]]\n": "a table is there once"} {
		write(text)
		fails(t, 2, reason, "serve", "--config", file)
	}
	fails(t, 1, "no such file", "serve", "--config", filepath.Join(dir, "none"))
}

// TestConfigDefaults: the file overrides --default, and the command line overrides the file. A file
// whose name begins with - may be missing.
func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "viaduct.toml")
	serve := []string{"serve", "--default", "root=" + dir, "--default", "listen=tcp://127.0.0.1:0",
		"--default", "listen=sdp://127.0.0.1:0", "--config", "-" + file}
	_, urls := start(t, 2, serve...)
	if !strings.HasPrefix(urls[0], "tcp:") || !strings.HasPrefix(urls[1], "sdp:") {
		t.Errorf("defaults alone: %q", urls)
	}
	if err := os.WriteFile(file, []byte("[serve]\nlisten = [\"vitcp://127.0.0.1:0/f\"]\nwritable = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, urls = start(t, 1, serve...)
	if !strings.HasPrefix(urls[0], "vitcp:") {
		t.Errorf("with a file: %q", urls)
	}
	random(t, filepath.Join(dir, "f"), 100)
	good(t, "put", filepath.Join(dir, "f"), at(urls[0], "g"))
	_, urls = start(t, 1, append(serve, "--listen", "iwarp://127.0.0.1:0")...)
	if !strings.HasPrefix(urls[0], "iwarp:") {
		t.Errorf("with a flag: %q", urls)
	}
	for d, reason := range map[string]string{"roof=/": "roof is no flag", "config=x": "config is no flag", "root": "want FLAG=VALUE", "writable=perhaps": "invalid syntax"} {
		fails(t, 2, reason, "serve", "--default", d)
	}
	if err := os.WriteFile(file, []byte("[serve]\nroof = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, 2, ":2: roof is no key", serve...) // with -, the file may be missing but not wrong
}

// TestUnits: the command line of each shipped systemd unit starts the service with the
// configuration from the unit's file in /etc/viaduct.
func TestUnits(t *testing.T) {
	t.Parallel()
	for unit, text := range map[string]string{
		"serve@":  "[serve]\nlisten = [\"vitcp://127.0.0.1:0/f\", \"sdp://127.0.0.1:0\"]\nwritable = true\n",
		"proxy@":  "[proxy]\nlisten = [\"tcp://127.0.0.1:0\", \"sdp://127.0.0.1:0\"]\nto = \"sdp://127.0.0.1:1\"\n",
		"portmap": "", // the shipped file is used
		"fabric":  "[fabric]\nlisten = \"127.0.0.1:0\"\ndomain = 7\n",
	} {
		b, err := os.ReadFile("../../packaging/systemd/viaduct-" + unit + ".service")
		if err != nil {
			t.Fatal(err)
		}
		_, line, ok := strings.Cut(string(b), "\nExecStart=/usr/bin/viaduct ")
		line, _, _ = strings.Cut(line, "\n")
		line, options := strings.CutSuffix(line, " $OPTIONS")
		dir := t.TempDir()
		name := strings.TrimSuffix(unit, "@")
		if unit == "portmap" {
			b, err := os.ReadFile("../../packaging/etc/portmap.toml")
			if err != nil {
				t.Fatal(err)
			}
			text = strings.ReplaceAll(string(b), "/etc/viaduct", dir) + "listen = \"127.0.0.1:0\"\n"
		}
		file := filepath.Join(dir, name+".toml")
		if strings.HasSuffix(unit, "@") {
			file = filepath.Join(dir, name+"-some.toml")
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil || !ok || !options {
			t.Fatalf("%s: %v; it starts %q, then OPTIONS %v", unit, err, line, options)
		}
		os.WriteFile(filepath.Join(dir, "portmap.conf"), []byte(":80 :8080\n"), 0o600)
		os.Mkdir(filepath.Join(dir, "some"), 0o700)
		line = strings.NewReplacer("/etc/viaduct", dir, "/var/lib/viaduct", dir, "%i", "some").Replace(line)
		n := max(1, strings.Count(text, "://127.0.0.1:0"))
		_, urls := start(t, n, strings.Fields(line)...)
		switch unit {
		case "serve@":
			random(t, filepath.Join(dir, "a"), 100)
			good(t, "put", filepath.Join(dir, "a"), at(urls[0], "b"))
			if _, err := os.Stat(filepath.Join(dir, "some", "b")); err != nil {
				t.Error(err)
			}
		case "portmap":
			r := good(t, "portmap", "query", "127.0.0.1:80", "--server", strings.TrimPrefix(urls[0], "udp://"))
			if !strings.Contains(r.stdout, ":8080") {
				t.Error(r.stdout)
			}
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, reason string }{
		{"", "a verb is missing"},
		{"frobnicate", `unknown verb "frobnicate" (see`},
		{"serv", `unknown verb "serv", did you mean serve?`},
		{"pnig", `unknown verb "pnig", did you mean ping?`},
		{"portmap qerry", `unknown verb of portmap "qerry", did you mean query?`},
		{"version --metrics 99999", "--metrics"},
		{"version --metrics :99999", "--metrics"},
		{"version --metrics nowhere:httpx", "--metrics"},
		{"bench --ops stream --transports vitcp", "stream is no operation of vitcp"},
		{"bench --ops wait,read --transports tcp,sdp", "read is no operation of tcp, sdp"},
		{"get", "got no argument, want: viaduct get URL/PATH"},
		{"get :7001/x", "it must start with"},
		{"get 127.0.0.1:7001/x", "it must start with"},
		{"get --nonsense tcp://h:1/x", "unknown flag"},
		{"get http://h:1/x", "it must start with"},
		{"get tcp://h/x", "the port is missing"},
		{"get tcp://h:1", "the path of a file is missing"},
		{"get tcp://h:1/x -o - --json", "-o -"},
		{"get vitcp://h", "the discriminator is missing"},
		{"get vitcp://h/12345678901234567/x", "17 bytes"},
		{"get vitcp://h/d/x?mtu=0", "mtu"},
		{"get vitcp://h/d/x?reliability=perhaps", "reliability"},
		{"get vitcp://h/d/x?colour=red", `no parameter "colour"`},
		{"get iwarp://h:1/x?crc=maybe", "crc"},
		{"put x", `got the argument "x", want: viaduct put FILE... URL/PATH`},
		{"sync x", `got the argument "x", want: viaduct sync DIR`},
		{"get tcp://h:1/x -r -o -", "wants a directory"},
		{"serve", "--root"},
		{"serve --root . --listen tcp://:0/path", "a path means nothing"},
		{"serve --root . --listen tcp://:0 --max-file lots", "--max-file"},
		{"echo", "--listen"},
		{"ping", "got no argument, want: viaduct ping URL"},
		{"ping a b", "got 2 arguments"},
		{"ping tcp://h:1 -c x", `--count "x" is not a whole number`},
		{"rping -s -p 99999", `--port "99999" is not in the range of this flag`},
		{"fabric --listen :99999", `--listen ":99999" is not HOST:PORT`},
		{"fabric --join h", `--join "h" is not HOST:PORT`},
		{"ping tcp://h:1 -s 0", "-s 0"},
		{"ping tcp://h:1 -c -1", "negative"},
		{"ping tcp://h:1 -i soon", `--interval "soon" is not a time such as 10s`},
		{"nc", "one URL is wanted"},
		{"nc -l --peer vitcp://h/d", "exclude each other"},
		{"nc --peer tcp://h:1 tcp://h:2", "no peer-to-peer"},
		{"nc --peer vitcp://h/d", "LOCALURL"},
		{"nc --peer vitcp://h/d tcp://h:1", "two transports"},
		{"proxy --listen tcp://:0", "--to"},
		{"proxy --listen vitcp://:0/x --to tcp://h:1", "messages, not streams"},
		{"rping", "exactly one of"},
		{"rping -s -c", "exactly one of"},
		{"rping -c", "-a HOST"},
		{"rping -c -a h -S 1", "-S 1"},
		{"portmap", "serve and query"},
		{"portmap serve --map x", "--map x"},
		{"portmap serve --map :1=:2 --file f", "exclude"},
		{"portmap query nonsense", "HOST:PORT"},
		{"ladder", "one of FILE and --demo"},
		{"ladder x --demo sdp-modes", "one of FILE and --demo"},
		{"ladder --demo nothing", "--list"},
		{"ladder --list x", "--list stands alone"},
		{"ladder --demo sdp-modes -o x.gif", ".svg, .html, .txt or .pcapng"},
		{"ladder x -o y.pcapng", "--demo only"},
		{"ladder --demo sdp-modes --stream 1", "not for --demo"},
		{"ladder x --as 7=nothing", "--as"},
		{"ladder x --max 0", "--max 0"},
		{"ladder --demo sdp-modes --filter =", "--filter"},
		{"wireshark", "one of --install and --print"},
		{"wireshark --install --print", "one of --install and --print"},
		{"wireshark --print --dir x", "--dir is for --install"},
		{"conform iwarp://h:1 --pause -1s", "must not be negative"},
		{"conform vitcp://h/d --pause 1s", "--pause comes after the Reply"},
		{"conform --listen iwarp://:0 --pause 1s", "--pause comes after the Reply"},
		{"bench --pcap x", "bench records nothing"},
		{"decode x --pcap y", "--pcap: decode has no connection to record"},
		{"vipl check --pcap y", "--pcap: vipl has no connection to record"},
		{"version --pcap y", "--pcap: version has no connection to record"},
		{"version extra", `got the argument "extra", want: viaduct version`},
		{"version --log-level loud", "--log-level"},
		{"version --log-format runes", "--log-format"},
		{"echo --listen tcp://:0 --tls-cert x", "belong together"},
	} {
		r := runHere(t, strings.Fields(c.args)...)
		if r.code != 2 || r.stdout != "" && !strings.Contains(c.args, "--json") ||
			!strings.Contains(r.last(), c.reason) || !strings.Contains(r.last(), "--help") {
			t.Errorf("viaduct %s: exit %d, stdout %q, last line %q, want 2 and %q", c.args,
				r.code, r.stdout, r.last(), c.reason)
		}
	}
}

// TestWrongPeer checks the advice in the error if the server is of the wrong kind, or a file is
// given instead of a directory.
func TestWrongPeer(t *testing.T) {
	t.Parallel()
	_, urls := start(t, 3, "echo", "--listen", "iwarp://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0",
		"--listen", "sdp://127.0.0.1:0")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for _, u := range urls {
		scheme, rest, _ := strings.Cut(u, "://")
		at[scheme] = rest
	}
	for args, hint := range map[string]string{
		"get iwarp://" + at["iwarp"] + "/f":                  "(check that the other side is viaduct serve)",
		"put " + file + " iwarp://" + at["iwarp"]:            "(check that the other side is viaduct serve)",
		"ls tcp://" + at["tcp"]:                              "(check that the other side is viaduct serve)",
		"ping iwarp://" + at["sdp"]:                          "(check that the other side speaks iwarp at this port: it may speak SDP)",
		"ping iwarp://" + at["tcp"]:                          "(check that the other side speaks iwarp at this port, and whether it wants --tls; ?mpa=1",
		"serve --listen tcp://127.0.0.1:0 --root " + file:    "(name a directory)",
		"get tcp://" + at["tcp"] + "/f -o " + file + "/copy": "(name a directory)",
	} {
		if r := run(t, strings.Fields(args)...); r.code != 1 || !strings.Contains(r.last(), hint) {
			t.Errorf("viaduct %s: exit %d, last line %q, want 1 and %q", args, r.code, r.last(), hint)
		}
	}
}

func TestHelp(t *testing.T) {
	r := runHere(t, "help")
	for _, v := range []string{"demo", "serve", "get", "put", "echo", "ping", "nc", "proxy", "rping", "portmap", "version", "bench", "decode", "ladder", "wireshark"} {
		if !strings.Contains(r.stdout, "\n  "+v+" ") {
			t.Errorf("help does not list %s", v)
		}
		if h := runHere(t, v, "--help"); h.code != 0 || !strings.Contains(h.stdout, "Usage:") {
			t.Errorf("%s has no help", v)
		}
	}
	if !strings.Contains(r.stdout, `"viaduct run --rdma"`) || !strings.Contains(r.stdout, "(--rdma)\n") {
		t.Errorf("help does not name run --rdma in the introduction and in the list of verbs:\n%s", r.stdout)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if r := good(t, "version"); !strings.Contains(r.stdout, "go1.") || !strings.Contains(r.stdout, "RFC 5044") {
		t.Error(r.stdout)
	}
	d := document(t, good(t, "version", "--json"))
	for _, k := range []string{"version", "commit", "go", "platform", "protocols"} {
		if d[k] == nil {
			t.Errorf("no %s in %v", k, d)
		}
	}
}

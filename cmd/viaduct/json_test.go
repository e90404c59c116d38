package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A jsonCase runs a verb with --json, once to success and once to failure. Words are separated by
// spaces. Names in braces are replaced by values of jsonPlaces.
type jsonCase struct {
	good, bad string
	service   bool   // good runs until it is stopped, and prints where it listens
	stdin     string // input of good
	data      bool   // stdout is the data that the verb moves; documents are on stderr
	status    int    // exit status of bad, if not 1
}

var jsonCases = map[string]jsonCase{
	"bench":         {good: "--transports vitcp --ops wait --sizes 64 --rounds 1 --time 5ms -i 1ms", bad: "--client tcp://{closed}"},
	"completion":    {bad: "bash", status: 2}, // refused, because a script is not JSON
	"config check":  {good: "{config}", bad: "{file}"},
	"conform":       {good: "--list vitcp", bad: "iwarp://{closed}"},
	"decode":        {good: "{capture}", bad: "{file}"},
	"demo":          {good: "{file}", bad: "{none}"},
	"echo":          {service: true, good: "--listen tcp://127.0.0.1:0 --listen vitcp://127.0.0.1:0/x", bad: "--listen tcp://192.0.2.1:1"},
	"fabric":        {service: true, good: "--listen 127.0.0.1:0", bad: "--listen 192.0.2.1:1"},
	"get":           {good: "{files}/f -o {dir}/got", bad: "{files}/none -o {dir}/none"},
	"help":          {good: "urls", bad: "--no-such-flag", status: 2},
	"ladder":        {good: "--demo sdp-modes -o {dir}/x.svg", bad: "{none} -o {dir}/none.svg"},
	"ls":            {good: "{files} -r", bad: "{files}/none"},
	"man":           {good: "{dir}/man", bad: "{file}/man"},
	"nc":            {data: true, good: "{echo}", stdin: `{"data":1}` + "\n", bad: "tcp://{closed}"},
	"nvme serve":    {service: true, good: "mem:1M {file} --listen 127.0.0.1:0", bad: "mem:1M --listen 192.0.2.1:1"},
	"ping":          {good: "{echo} -c 2 -i 0", bad: "{files} -c 1"},
	"portmap query": {good: "127.0.0.1:80 --server {mapper}", bad: "127.0.0.1:81 --server {mapper}"},
	"portmap serve": {service: true, good: "--listen 127.0.0.1:0 --map 127.0.0.1:80=127.0.0.1:81", bad: "--listen 127.0.0.1:0 --file {none}"},
	"proxy":         {service: true, good: "--listen tcp://127.0.0.1:0 --to {echo}", bad: "--listen tcp://192.0.2.1:1 --to {echo}"},
	"ps":            {good: "", bad: "--interval 1ms", status: 2},
	"put":           {good: "-r {source} {files}/put", bad: "{none} {files}/x"},
	"registry":      {good: "file:{names}", bad: "file:{names} vi none"},
	"rping":         {good: "-c -a 127.0.0.1 -p {rping} -C 3 -v", bad: "-c -a 127.0.0.1 -p 1 -C 1"},
	"run":           {data: true, bad: "--portmap-listen off -- {none}", status: 127},
	"serve":         {service: true, good: "--root {tree} --listen tcp://127.0.0.1:0 --listen iwarp://127.0.0.1:0", bad: "--root {none} --listen tcp://127.0.0.1:0"},
	"stat":          {good: "--interval 10ms", bad: "1999999999"},
	"sync":          {good: "{source} {files}/sync", bad: "{none} {files}/sync"},
	"version":       {good: "", bad: "extra", status: 2},
	"vipl check":    {good: "/dev/via_lo", bad: "none"},
	"wireshark":     {good: "--install --dir {dir}/plugins", bad: "--install --dir {file}"},
}

// TestJSON: with --json every verb prints only JSON on stdout, each document on a line, after
// success and after failure. A failure is a document with the reason, or is part of the result.
func TestJSON(t *testing.T) {
	t.Parallel()
	if got, want := leafVerbs(t), slices.Sorted(maps.Keys(jsonCases)); !slices.Equal(got, want) {
		t.Errorf("the help lists the verbs %q\nand the table has        %q", got, want)
	}
	places := jsonPlaces(t)
	for verb, c := range jsonCases {
		args := func(words string) []string {
			return append(append(strings.Fields(verb), "--json"), strings.Fields(places.Replace(words))...)
		}
		if c.good != "" || c.bad != "extra" && !c.data && verb != "completion" {
			t.Run(verb+"/good", func(t *testing.T) { t.Parallel(); c.runGood(t, args(c.good)) })
		}
		t.Run(verb+"/bad", func(t *testing.T) { t.Parallel(); c.runBad(t, args(c.bad)) })
	}
}

func (c jsonCase) runGood(t *testing.T, args []string) {
	if c.service {
		p, _ := start(t, 0, args...)
		first := documents(t, p.line())[0].(map[string]any)
		if at, _ := first["listening"].(string); !strings.Contains(at, "127.0.0.1:") {
			t.Errorf("%q begins with %v", args, first)
		}
		if code := p.stop(syscall.SIGTERM); code != 0 {
			t.Errorf("%q: exit %d", args, code)
		}
		for line := range p.out {
			documents(t, line)
		}
		return
	}
	r := runFrom(t, strings.NewReader(c.stdin), args...)
	if all := documents(t, r.stdout); r.code != 0 || len(all) == 0 {
		t.Errorf("%q: exit %d, %d documents, %s", args, r.code, len(all), r.stderr)
	}
}

func (c jsonCase) runBad(t *testing.T, args []string) {
	r := run(t, args...)
	if want := max(c.status, 1); r.code != want || !strings.HasPrefix(r.last(), "viaduct") {
		t.Errorf("%q: exit %d, want %d, last line %q", args, r.code, want, r.last())
	}
	out := r.stdout
	if c.data {
		if r.stdout != "" {
			t.Errorf("%q printed %q where the data goes", args, r.stdout)
		}
		out, _, _ = strings.Cut(r.stderr, "\n")
	}
	all := documents(t, out)
	if len(all) == 0 {
		t.Errorf("%q: no document", args)
		return
	}
	reasons := 0
	for _, key := range []string{`"error":"`, `"mistakes":[{`} {
		reasons += strings.Count(lastLine(out), key)
	}
	if d, ok := all[len(all)-1].(map[string]any); reasons == 0 ||
		ok && d["status"] != nil && d["status"] != float64(r.code) {
		t.Errorf("%q: exit %d, and the last document gives no reason or another status: %s", args, r.code, out)
	}
}

// documents decodes every line of s. A line without valid JSON fails the test and counts as {}.
func documents(t *testing.T, s string) (all []any) {
	t.Helper()
	for line := range strings.Lines(s) {
		var v any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Errorf("a line is no JSON: %v: %.300q", err, line)
			v = map[string]any{}
		}
		all = append(all, v)
	}
	return all
}

// jsonPlaces creates the files and starts the servers for the names in braces.
func jsonPlaces(t *testing.T) *strings.Replacer {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"tree", "source"} { // what is copied must not change meanwhile
		os.MkdirAll(in(d+"/d"), 0o700)
		random(t, in(d+"/f"), 1000)
		random(t, in(d+"/d/g"), 1000)
	}
	random(t, in("file"), 1000)
	os.WriteFile(in("config"), []byte("[echo]\nlisten = [\"tcp://127.0.0.1:0\"]\n"), 0o600)
	os.WriteFile(in("names"), []byte("vi node1 127.0.0.1:3936\n"), 0o600)
	good(t, "ladder", "--demo", "sdp-modes", "-o", in("x.pcapng"))
	_, files := start(t, 1, "serve", "--root", in("tree"), "--writable", "--listen", "tcp://127.0.0.1:0")
	_, echo := start(t, 1, "echo", "--listen", "tcp://127.0.0.1:0")
	_, mapper := start(t, 1, "portmap", "serve", "--listen", "127.0.0.1:0", "--map", "127.0.0.1:80=127.0.0.1:8080")
	_, rping := start(t, 1, "rping", "-s", "-P", "-a", "127.0.0.1", "-p", "0")
	return strings.NewReplacer("{dir}", dir, "{tree}", in("tree"), "{source}", in("source"), "{file}", in("file"), "{none}",
		in("none"), "{config}", in("config"), "{names}", in("names"),
		"{capture}", in("x.pcapng"), "{files}", files[0], "{echo}", echo[0], "{mapper}", strings.TrimPrefix(mapper[0], "udp://"),
		"{rping}", rping[0][strings.LastIndexByte(rping[0], ':')+1:], "{closed}", "127.0.0.1:1")
}

// leafVerbs returns the verbs listed by the help. A verb with subcommands is replaced by the
// subcommands, such as "portmap serve".
func leafVerbs(t *testing.T) (all []string) {
	t.Helper()
	var below func(verb string)
	below = func(verb string) {
		words := strings.Fields(verb)
		r := runHere(t, append([]string{"help"}, words...)...)
		if r.code != 0 {
			t.Fatalf("help %s: exit %d", verb, r.code)
		}
		leaf := true
		for section := range strings.SplitSeq(r.stdout, "\n\n") {
			title, list, _ := strings.Cut(section, "\n")
			if !strings.HasPrefix(title, "Verbs") {
				continue
			}
			leaf = false
			for line := range strings.Lines(list) {
				if name := strings.Fields(line)[0]; strings.HasPrefix(line, "  "+
					name) { // otherwise the line continues the one above
					below(strings.TrimSpace(verb + " " + name))
				}
			}
		}
		if leaf {
			all = append(all, verb)
		}
	}
	below("")
	slices.Sort(all)
	return all
}

// TestJSONUsage: with --json, invalid command lines and unknown verbs are reported as JSON.
func TestJSONUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"ping", "ping --no-such-flag tcp://127.0.0.1:1", "no-such-verb", "portmap", "config none"} {
		r := run(t, append(strings.Fields(args), "--json")...)
		if d := document(t, r); r.code != 2 || d["status"] != 2.0 || d["error"] == "" || d["advice"] == "" {
			t.Errorf("%q: exit %d, %v", args, r.code, d)
		}
	}
}

package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed c/*.c
var sources embed.FS

// A toolbox holds the peers available on the machine.
type toolbox struct {
	dir        string // directory of the compiled programs
	congestion string
	seconds    float64
	missing    map[string]string // the reason why a peer is missing, by its name
	versions   []string          // versions of the installed packages

	ucxCount map[string]int // number of messages that take about the measuring time, by test
	nextPort int
}

// packages are the Debian packages of the peers.
var packages = []string{"ucx-utils", "libfabric-bin", "libfabric-dev", "iperf3", "sockperf", "gcc", "libc6-dev"}

// equip installs missing packages if install is set, compiles our own baselines, and notes what is
// still missing.
func equip(install bool, congestion string, seconds float64) (*toolbox, error) {
	t := &toolbox{
		congestion: congestion, seconds: seconds,
		missing: make(map[string]string), ucxCount: make(map[string]int), nextPort: 23100,
	}
	var want []string
	for _, p := range packages {
		if !installed(p) {
			want = append(want, p)
		}
	}
	if install && len(want) > 0 {
		// The packages are installed separately, so that a package unknown to the system does not
		// prevent the installation of the others.
		for _, p := range want {
			cmd := exec.Command("apt-get", "install", "-y", "--no-install-recommends", p)
			cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
			if out, err := cmd.CombinedOutput(); err != nil {
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				fmt.Fprintf(os.Stderr, "peers: %s can't be installed: %s\n", p, lines[len(lines)-1])
			}
		}
	}
	for _, p := range packages[:5] {
		if v := version(p); v != "" {
			t.versions = append(t.versions, p+" "+v)
		}
	}
	var err error
	if t.dir, err = os.MkdirTemp("", "peers-*"); err != nil {
		return nil, err
	}
	t.compile("c", "tcp", "tcp.c")
	t.compile("libfabric", "libfabric", "libfabric.c", "-lfabric")
	t.buildVIPL()
	t.compile("congestion", "congestion.so", "congestion.c", "-shared", "-fPIC", "-ldl")
	for _, name := range []string{"ucx_perftest", "iperf3", "sockperf", "taskset"} {
		if _, err := exec.LookPath(name); err != nil {
			t.missing[name] = name + " is not installed"
		}
	}
	return t, nil
}

// buildVIPL builds libvipl from the module in the working directory, and the program for measuring
// libvipl.
func (t *toolbox) buildVIPL() {
	const script = "capi/build.sh"
	if _, err := os.Stat(script); err != nil {
		t.missing["vipl"] = "libvipl is built from the directory of the module only"
		return
	}
	lib := filepath.Join(t.dir, "libvipl")
	if msg, err := exec.Command(script, lib).CombinedOutput(); err != nil {
		t.missing["vipl"] = fmt.Sprintf("%s: %s", script, bytes.TrimSpace(msg))
		return
	}
	t.compile("vipl", "vipl", "vipl.c", "-I"+lib+"/include", "-L"+lib+"/lib", "-Wl,-rpath,"+lib+"/lib", "-lvipl")
}

func (t *toolbox) close() { os.RemoveAll(t.dir) }

func installed(pkg string) bool { return version(pkg) != "" }

func version(pkg string) string {
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Status} ${Version}", pkg).Output()
	if v, ok := strings.CutPrefix(string(out), "install ok installed "); ok && err == nil {
		return v
	}
	return ""
}

func (t *toolbox) compile(name, out, source string, flags ...string) {
	text, err := sources.ReadFile("c/" + source)
	if err == nil {
		err = os.WriteFile(filepath.Join(t.dir, source), text, 0o600)
	}
	if err == nil {
		args := append([]string{"-O2", "-o", filepath.Join(t.dir, out), filepath.Join(t.dir, source)}, flags...)
		var msg []byte
		if msg, err = exec.Command("cc", args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("cc %s: %s", source, bytes.TrimSpace(msg))
		}
	}
	if err != nil {
		t.missing[name] = err.Error()
	}
}

var errMissing = errors.New("not available")

// command returns a command whose TCP sockets use the congestion control of the comparison.
func (t *toolbox) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = os.Environ()
	if t.congestion != "" && t.missing["congestion"] == "" {
		cmd.Env = append(cmd.Env,
			"LD_PRELOAD="+filepath.Join(t.dir, "congestion.so"), "BENCH_CONGESTION="+t.congestion)
	}
	return cmd
}

// patience is how long a run of a program may take.
const patience = 2 * time.Minute

// output runs cmd, kills cmd after patience, and returns the standard output.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	stop.Stop()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(msg.String()), "\n")
		err = fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, lines[len(lines)-1])
	}
	return out.Bytes(), err
}

// c runs a measurement of the plain C program over TCP.
func (t *toolbox) c(op string, size, batch, footprint int) (result, error) {
	if t.missing["c"] != "" {
		return result{}, errMissing
	}
	cc := t.congestion
	if cc == "" {
		cc = "-"
	}
	return jsonOf(output(exec.Command(filepath.Join(t.dir, "tcp"), op, strconv.Itoa(size), strconv.Itoa(batch),
		strconv.Itoa(footprint), fmt.Sprint(t.seconds), cc)))
}

// vipl runs a measurement of the program on libvipl.
func (t *toolbox) vipl(op string, size, depth, bell, footprint int, gather, rings bool) (result, error) {
	if t.missing["vipl"] != "" {
		return result{}, errMissing
	}
	conf := "bench -> vitcp listen 127.0.0.1:0 transfer 1M"
	if t.congestion != "" {
		conf += " congestion " + t.congestion
	}
	if !gather {
		conf += " gather off"
	}
	if rings {
		conf += " samehost require"
	} else {
		conf += " samehost off"
	}
	file := filepath.Join(t.dir, "vipl.conf")
	if err := os.WriteFile(file, []byte(conf+"\n"), 0o600); err != nil {
		return result{}, err
	}
	cmd := exec.Command(filepath.Join(t.dir, "vipl"), op, strconv.Itoa(size), strconv.Itoa(depth), strconv.Itoa(bell),
		strconv.Itoa(footprint), fmt.Sprint(t.seconds))
	cmd.Env = append(os.Environ(), "VIPL_CONFIG="+file)
	return jsonOf(output(cmd))
}

// libfabric runs a measurement of our libfabric program.
func (t *toolbox) libfabric(provider, op string, size int) (result, error) {
	if t.missing["libfabric"] != "" {
		return result{}, errMissing
	}
	return jsonOf(output(t.command(filepath.Join(t.dir, "libfabric"), provider, op, strconv.Itoa(size), "64", fmt.Sprint(t.seconds))))
}

func jsonOf(out []byte, err error) (r result, _ error) {
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	return r, err
}

// ucx runs a test of ucx_perftest over a transport of UCX: tcp or posix (shared memory).
func (t *toolbox) ucx(transport, test string, size int) (result, error) {
	if t.missing["ucx_perftest"] != "" {
		return result{}, errMissing
	}
	key := fmt.Sprint(transport, test, size)
	n := t.ucxCount[key]
	if n == 0 {
		// The tests of ucx_perftest run for a number of messages instead of a time.
		n = max(20, min(2000, 32<<20/size))
		r, err := t.ucxRun(transport, test, size, n)
		if err != nil {
			return r, err
		}
		n = max(10, int(float64(n)*t.seconds/max(r.Seconds, 1e-4)))
		t.ucxCount[key] = n
	}
	return t.ucxRun(transport, test, size, n)
}

func (t *toolbox) ucxRun(transport, test string, size, n int) (result, error) {
	t.nextPort++
	port := strconv.Itoa(t.nextPort)
	env := []string{"UCX_TLS=" + transport + ",self", "UCX_NET_DEVICES=lo", "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_LOG_LEVEL=error"}
	server := t.command("ucx_perftest", "-p", port)
	server.Env = append(server.Env, env...)
	if err := server.Start(); err != nil {
		return result{}, err
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	if err := waitListening(t.nextPort); err != nil {
		return result{}, err
	}
	client := t.command("ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", strconv.Itoa(size),
		"-n", strconv.Itoa(n), "-w", strconv.Itoa(max(1, n/10)), "-v")
	client.Env = append(client.Env, env...)
	out, err := output(client)
	if err != nil {
		return result{}, err
	}
	// The last line has the count, latency (median, average, overall), bandwidth and rate (average,
	// overall).
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	fields := strings.Split(strings.TrimSpace(lines[len(lines)-1]), ",")
	if len(fields) < 8 {
		return result{}, fmt.Errorf("ucx_perftest: unexpected output %q", lines[len(lines)-1])
	}
	var v [8]float64
	for i := range v {
		v[i], _ = strconv.ParseFloat(fields[i], 64)
	}
	r := result{Messages: float64(n), Bytes: float64(n) * float64(size), LatencyUS: v[1]}
	if v[7] > 0 {
		r.Seconds = float64(n) / v[7]
	}
	return r, nil
}

// waitListening waits until a program listens on a TCP port, without connecting to the port.
func waitListening(port int) error {
	want := fmt.Sprintf(":%04X ", port)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, _ := os.ReadFile(f)
			for line := range strings.Lines(string(text)) {
				w := strings.Fields(line)
				if len(w) > 3 && w[3] == "0A" && strings.HasSuffix(w[1]+" ", want) {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("nothing listens on port %d", port)
}

// iperf3 measures a TCP stream with the program iperf3. The shortest run of iperf3 takes a second.
func (t *toolbox) iperf3(size int) (result, error) {
	if t.missing["iperf3"] != "" {
		return result{}, errMissing
	}
	t.nextPort++
	port := strconv.Itoa(t.nextPort)
	server := exec.Command("iperf3", "-s", "-1", "-p", port)
	if err := server.Start(); err != nil {
		return result{}, err
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	if err := waitListening(t.nextPort); err != nil {
		return result{}, err
	}
	args := []string{"-c", "127.0.0.1", "-p", port, "-t", "1", "-l", strconv.Itoa(size), "-J"}
	if t.congestion != "" {
		args = append(args, "-C", t.congestion)
	}
	out, err := output(exec.Command("iperf3", args...))
	if err != nil {
		return result{}, err
	}
	var r struct {
		End struct {
			Received struct {
				Seconds float64 `json:"seconds"`
				Bytes   float64 `json:"bytes"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	err = json.Unmarshal(out, &r)
	return result{Bytes: r.End.Received.Bytes, Seconds: r.End.Received.Seconds, Messages: r.End.Received.Bytes / float64(size)}, err
}

// sockperf measures TCP latency with sockperf.
func (t *toolbox) sockperf(size int) (result, error) {
	if t.missing["sockperf"] != "" {
		return result{}, errMissing
	}
	t.nextPort++
	port := strconv.Itoa(t.nextPort)
	server := t.command("sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port)
	if err := server.Start(); err != nil {
		return result{}, err
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	if err := waitListening(t.nextPort); err != nil {
		return result{}, err
	}
	out, err := output(t.command("sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", port, "-t", "1", "-m", strconv.Itoa(max(14, size))))
	if err != nil {
		return result{}, err
	}
	for line := range strings.Lines(string(out)) {
		if _, v, ok := strings.Cut(line, "percentile 50.000 ="); ok {
			us, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return result{LatencyUS: us, Seconds: 1}, err
		}
	}
	return result{}, errors.New("sockperf: unexpected output")
}

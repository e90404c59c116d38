package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestMappedService: the address in a URL with portmap= belongs to a TCP service. get reaches the
// service over SDP if the Port Mapper returns a working mapping. Otherwise, also if no Port Mapper
// answers, get uses plain TCP. [D-71]
func TestMappedService(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	body := random(t, filepath.Join(root, "f"), 300_000)
	_, urls := start(t, 2, "serve", "--root", root, "--listen", "sdp://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0")
	sdpAt, tcpAt := strings.TrimPrefix(urls[0], "sdp://"), strings.TrimPrefix(urls[1], "tcp://")
	dead := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	mapper := func(target string) string {
		_, m := start(t, 1, "portmap", "serve", "--listen", "127.0.0.1:0", "--map", tcpAt+"="+target)
		return strings.TrimPrefix(m[0], "udp://")
	}
	good1, bad := mapper(sdpAt), mapper(dead)
	unused := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	for _, c := range []struct{ name, mapper, want string }{
		{"mapped", good1, "SDP"},
		{"denied", good1, "TCP"}, // the Port Mapper only maps another service
		{"dead end", bad, "TCP"},
		{"no mapper", unused, "TCP"},
	} {
		at := tcpAt
		if c.name == "denied" {
			_, more := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
			at = strings.TrimPrefix(more[0], "tcp://")
		}
		out := filepath.Join(t.TempDir(), "out")
		took := func() bool {
			r := good(t, "get", "sdp://"+at+"/f?portmap="+c.mapper, "-o", out, "--log-level", "info")
			same(t, out, body)
			_, path, _ := strings.Cut(r.stderr, "path=")
			path, _, _ = strings.Cut(path, "\n")
			t.Logf("%s: took %s", c.name, path)
			return strings.HasPrefix(strings.TrimPrefix(strings.ToUpper(path), `"`), c.want)
		}
		if c.want == "SDP" { // a Port Mapper that needs two seconds for its answer counts as none
			eventually(t, c.name+": SDP", took)
		} else if !took() {
			t.Errorf("%s: want %s", c.name, c.want)
		}
		if c.want == "TCP" {
			if r := run(t, "get", "sdp://"+at+"/f?resolve=require&portmap="+c.mapper, "-o", out); r.code != 1 {
				t.Errorf("%s: SDP was required, exit %d", c.name, r.code)
			}
		}
	}
	fails(t, 2, "side that connects", "echo", "--listen", "sdp://127.0.0.1:0?portmap=x")
	fails(t, 2, "recv-buffers", "echo", "--listen", "sdp://127.0.0.1:0?recv-buffers=1")
}

// TestSDPSettings: a file arrives unchanged with each policy, layout and Hello placement.
func TestSDPSettings(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	big := random(t, filepath.Join(root, "big"), 2<<20+1)
	small := random(t, filepath.Join(root, "small"), 20_001)
	for _, q := range []string{"policy=buffered", "policy=combined", "policy=pipelined", "crc=off", "recv-buffers=3&recv-buffer-size=37"} {
		_, urls := start(t, 1, "serve", "--root", root, "--listen", "sdp://127.0.0.1:0?"+q)
		out := filepath.Join(t.TempDir(), "out")
		name, body := "big", big
		if strings.Contains(q, "=37") { // a message has only 21 bytes
			name, body = "small", small
		}
		for _, d := range []string{"", "layout=ibta", "hello=raw"} {
			u := at(urls[0], name)
			if d != "" {
				u = withQuery(u, d)
			}
			good(t, "get", u, "-o", out)
			same(t, out, body)
		}
	}
}

// TestFabric: two NICs reach each other in a fabric served by a separate process, and across two
// linked fabrics.
func TestFabric(t *testing.T) {
	t.Parallel()
	_, first := start(t, 1, "fabric", "--listen", "127.0.0.1:0")
	one := strings.TrimPrefix(first[0], "fcip://")
	p, second := start(t, 1, "fabric", "--listen", "127.0.0.1:0", "--domain", "2", "--join", one)
	two := strings.TrimPrefix(second[0], "fcip://")
	_, urls := start(t, 1, "echo", "--listen", "fcvi://10.0.0.1/echo?fabric="+one)
	if !strings.Contains(urls[0], "10.0.0.1") {
		t.Errorf("listens at %s", urls[0])
	}
	for _, f := range []string{one, two} {
		d := document(t, good(t, "ping", "fcvi://10.0.0.1/echo?self=10.0.0.2&fabric="+f, "-c", "5",
			"-i", "0", "-s", "10000", "--json"))
		if d["received"] != 5.0 {
			t.Errorf("%v", d)
		}
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d", code)
	}
	fails(t, 2, "--domain", "fabric", "--domain", "0")
	fails(t, 1, "join", "fabric", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1")
}

// TestFabricRestart: after a fabric was killed and restarted, the members and the linked fabrics
// reconnect. The members log the loss at the default level. [FCFS-3.2-5]
func TestFabricRestart(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	fabric, _ := start(t, 1, "fabric", "--listen", address)
	other, urls := start(t, 1, "fabric", "--listen", "127.0.0.1:0", "--domain", "2", "--join", address)
	two := strings.TrimPrefix(urls[0], "fcip://")
	echo, _ := start(t, 1, "echo", "--listen", "fcvi://10.0.0.1/echo?fabric="+address)
	ping := func(fabric string) {
		t.Helper()
		d := document(t, good(t, "ping", "fcvi://10.0.0.1/echo?self=10.0.0.2&fabric="+fabric, "-c", "1",
			"--wait", "1m", "--json"))
		if d["received"] != 1.0 {
			t.Errorf("%v", d)
		}
	}
	ping(address)
	ping(two)
	for n := range 2 {
		fabric.stop(syscall.SIGKILL)
		for _, p := range []*proc{echo, other} {
			eventually(t, "warning of the loss", func() bool {
				return strings.Count(p.stderr(), "level=WARN msg=\"link to fabric lost\"") == n+1
			})
		}
		fabric, _ = start(t, 1, "fabric", "--listen", address)
		back := time.Now()
		ping(address)
		took := time.Since(back)
		ping(two)
		t.Logf("back after %v, from the other fabric after %v", took, time.Since(back))
	}
}

// withPrograms skips a test of a foreign program, unless tests run at full length. Dozens of tests
// with foreign programs take longer than all others together. Tests needing only a shell or a C
// compiler are not skipped.
func withPrograms(t *testing.T, name string) {
	t.Helper()
	if name != "sh" && name != "cc" && !testkit.LongRuns() {
		t.Skipf("SKIPPED: runs %s: VIADUCT_LONG=1 runs tests with other people's programs, as .ci/run test does", name)
	}
}

// program returns the path of an installed program of another project. It skips the test if the
// program is absent or tests do not run at full length.
func program(t *testing.T, name string) string {
	t.Helper()
	withPrograms(t, name)
	p, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED: %s is not installed", name)
	}
	return p
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%.2000s", filepath.Base(name), strings.Join(args, " "), err, b)
	}
	return string(b)
}

// tunnel starts a proxy from TCP to SDP and a proxy from SDP to TCP. The second proxy connects to
// the address to. tunnel returns the TCP address of the first proxy.
func tunnel(t *testing.T, to string) (host, port string) {
	t.Helper()
	_, far := start(t, 1, "proxy", "--listen", "sdp://127.0.0.1:0", "--to", "tcp://"+to)
	_, near := start(t, 1, "proxy", "--listen", "tcp://127.0.0.1:0", "--to", far[0])
	host, port, err := net.SplitHostPort(hostPort(near[0]))
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// daemon starts a program, waits until the program listens at a port, and kills the program at the
// end of the test.
func daemon(t *testing.T, port int, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	eventually(t, name+" to listen", func() bool {
		n, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			n.Close()
		}
		return err == nil
	})
}

// TestCurl: curl fetches, fetches in part and stores files, directly and through the proxy.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl := program(t, "curl")
	root, work := t.TempDir(), t.TempDir()
	body := random(t, filepath.Join(root, "f"), 1<<20+3)
	_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", "tcp://127.0.0.1:0")
	host, port := tunnel(t, hostPort(urls[0]))
	for _, base := range []string{"http://" + hostPort(urls[0]), "http://" + net.JoinHostPort(host, port)} {
		out := filepath.Join(work, "out")
		output(t, curl, "-sSf", "-o", out, base+"/f")
		same(t, out, body)
		output(t, curl, "-sSf", "-r", "100-199", "-o", out, base+"/f")
		same(t, out, body[100:200])
		output(t, curl, "-sSf", "-T", filepath.Join(root, "f"), base+"/up")
		same(t, filepath.Join(root, "up"), body)
		os.Remove(filepath.Join(root, "up"))
	}
}

// TestFetchers: rclone and wget copy a served directory completely, directly and through the proxy,
// and find no changes the second time.
func TestFetchers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sow(t, root, 3, 12, 60000)
	os.Mkdir(filepath.Join(root, "with space"), 0o755)
	random(t, filepath.Join(root, "with space", "a+b &c.bin"), 5000)
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
	host, port := tunnel(t, hostPort(urls[0]))
	for name, at := range map[string]string{"directly": hostPort(urls[0]), "through the proxy": net.JoinHostPort(host, port)} {
		t.Run(name, func(t *testing.T) {
			t.Run("rclone", func(t *testing.T) {
				rclone := program(t, "rclone")
				config, to := filepath.Join(t.TempDir(), "rclone.conf"), filepath.Join(t.TempDir(), "copy")
				if err := os.WriteFile(config, nil, 0o600); err != nil { // the user's configuration is not read
					t.Fatal(err)
				}
				output(t, rclone, "--config", config, "copy", ":http:", to, "--http-url", "http://"+at+"/")
				alike(t, root, to)
				if out := output(t, rclone, "--config", config, "copy", "-v", ":http:", to, "--http-url", "http://"+at+"/"); strings.Contains(out, "Copied") {
					t.Errorf("copied again:\n%s", out)
				}
			})
			t.Run("wget", func(t *testing.T) {
				wget, to := program(t, "wget"), t.TempDir()
				fetch := []string{"--no-config", "--no-verbose", "--recursive", "--no-parent",
					"--no-host-directories", "--timestamping", "--directory-prefix", to, "http://" + at + "/"}
				output(t, wget, fetch...)
				again := output(t, wget, fetch...)
				if strings.Contains(again, "/long ") {
					t.Errorf("fetched again:\n%s", again)
				}
				listings := 0
				for _, rel := range files(t, to) {
					if filepath.Base(rel) == "index.html" {
						listings++
						os.Remove(filepath.Join(to, rel))
					}
				}
				if listings == 0 {
					t.Error("no listings")
				}
				alike(t, root, to)
			})
		})
	}
}

// TestRedis runs redis-benchmark through SDP, and fails if redis-benchmark reports an error.
func TestRedis(t *testing.T) {
	t.Parallel()
	server, bench := program(t, "redis-server"), program(t, "redis-benchmark")
	cli := program(t, "redis-cli")
	port := freePort(t)
	daemon(t, port, server, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "no", "--dir", t.TempDir())
	host, near := tunnel(t, fmt.Sprintf("127.0.0.1:%d", port))
	if s := output(t, cli, "-h", host, "-p", near, "set", "key", "value over SDP"); !strings.Contains(s, "OK") {
		t.Error(s)
	}
	if s := output(t, cli, "-h", host, "-p", near, "get", "key"); !strings.Contains(s, "value over SDP") {
		t.Error(s)
	}
	s := output(t, bench, "-h", host, "-p", near, "-n", "3000", "-c", "20", "-P", "4", "-d", "1000",
		"-q", "-t", "ping,set,get,lpush,lrange_100")
	if strings.Contains(strings.ToLower(s), "error") || !strings.Contains(s, "requests per second") {
		t.Errorf("%.2000s", s)
	}
}

// TestIperf runs iperf3 through SDP, in both directions and with several streams.
func TestIperf(t *testing.T) {
	t.Parallel()
	iperf := program(t, "iperf3")
	port := freePort(t)
	c := exec.Command(iperf, "-s", "-p", strconv.Itoa(port), "-B", "127.0.0.1", "--forceflush")
	said, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	lines := make(chan string, 1000)
	go func() {
		for sc := bufio.NewScanner(said); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	host, near := tunnel(t, fmt.Sprintf("127.0.0.1:%d", port))
	for _, extra := range [][]string{nil, {"-R"}, {"-P", "4"}} {
		// The server accepts one client at a time, and says when it listens again.
		for !strings.HasPrefix(testkit.Await(t, "iperf3 to listen", lines), "Server listening") {
		}
		args := append([]string{"-c", host, "-p", near, "-n", "64M", "-J"}, extra...)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		b, err := exec.CommandContext(ctx, iperf, args...).CombinedOutput()
		cancel()
		var r struct {
			Error string `json:"error"`
			End   struct {
				Received struct {
					Bytes float64 `json:"bytes"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if uerr := json.Unmarshal(b, &r); err != nil || uerr != nil || r.Error != "" || r.End.Received.Bytes < 1<<20 {
			t.Errorf("iperf3 %v: %v %v %q, %.0f bytes", extra, err, uerr, r.Error, r.End.Received.Bytes)
		}
	}
}

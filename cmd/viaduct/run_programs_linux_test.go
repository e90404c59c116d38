//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/sdp"
)

// buildC compiles a C program, and skips the test if there is no compiler.
func buildC(t *testing.T, source string) string {
	t.Helper()
	cc := need(t, "cc", "gcc libc6-dev")
	out := filepath.Join(t.TempDir(), "program")
	src := out + ".c"
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command(cc, "-O1", "-Wall", "-Werror", "-pthread", "-o", out, src).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, b)
	}
	return out
}

// acceptC accepts connections while a timer interrupts the calls: INTERVAL_US RESTART. On each
// connection acceptC echoes 8 bytes, followed by the peer's port as accept and getpeername returned
// it.
const acceptC = `
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void tick(int s) { (void)s; }

int main(int argc, char **argv) {
	int us = atoi(argv[1]), restart = atoi(argv[2]);
	int l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t n = sizeof a;
	if (bind(l, (void *)&a, n) || listen(l, 128) || getsockname(l, (void *)&a, &n)) { perror("listen"); return 1; }
	struct sigaction sa = {.sa_handler = tick, .sa_flags = restart ? SA_RESTART : 0};
	sigaction(SIGALRM, &sa, 0);
	struct itimerval it = {{0, us}, {0, us}};
	setitimer(ITIMER_REAL, &it, 0);
	printf("port %d\n", ntohs(a.sin_port));
	fflush(stdout);
	for (;;) {
		struct sockaddr_in p, q;
		socklen_t pn = sizeof p, qn = sizeof q;
		memset(&p, 0, sizeof p);
		int c = accept(l, (void *)&p, &pn);
		if (c < 0 && errno == EINTR && !restart) continue;
		if (c <= 2) { fprintf(stderr, "accept: %d: %s\n", c, strerror(errno)); return 1; }
		char b[12];
		int got = 0, r;
		while (got < 8) {
			r = read(c, b + got, 8 - got);
			if (r < 0 && errno == EINTR) continue;
			if (r <= 0) break;
			got += r;
		}
		while ((r = getpeername(c, (void *)&q, &qn)) && errno == EINTR && !restart) ; // documented
		if (r) { perror("getpeername"); return 1; }
		memcpy(b + 8, &p.sin_port, 2);
		memcpy(b + 10, &q.sin_port, 2);
		if (got == 8 && pn == sizeof p && write(c, b, 12) != 12) { perror("write"); return 1; }
		close(c);
	}
}
`

// nginxAt writes a configuration of nginx with two workers at a loopback port, and returns the
// configuration's directory and file. serve is the body of the location.
func nginxAt(t *testing.T, port, serve string) (dir, conf string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "viaduct-nginx") // its workers run as another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	conf = filepath.Join(dir, "conf")
	text := "worker_processes 2; error_log DIR/error.log; pid DIR/pid; daemon off; events { worker_connections 64; }\n" +
		"http { access_log DIR/access.log; sendfile on; tcp_nopush on; client_body_temp_path DIR/t1; proxy_temp_path DIR/t2; fastcgi_temp_path DIR/t3;\n" +
		"uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5; server { listen 127.0.0.1:PORT; SERVE } }\n"
	text = strings.NewReplacer("DIR", dir, "PORT", port, "SERVE", strings.ReplaceAll(serve, "DIR", dir)).Replace(text)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, conf
}

// nginx with two workers serves carried and plain clients completely. Its log has the real
// addresses of carried clients.
func TestRunNginx(t *testing.T) {
	t.Parallel()
	nginx := need(t, "nginx", "nginx-light")
	port := strconv.Itoa(freePort(t))
	dir, conf := nginxAt(t, port, "root DIR;")
	want := make([]byte, 5<<20)
	rand.Read(want)
	if err := os.WriteFile(filepath.Join(dir, "a.bin"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	s := startRun(t, []string{"--listen", port}, nginx, "-c", conf)
	sdpPort := s.sdpPort(port)
	get := func(c *http.Client) {
		t.Helper()
		resp, err := c.Get("http://127.0.0.1:" + port + "/a.bin")
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%d bytes came, want %d: %v", len(b), len(want), err)
		}
	}
	d := sdp.Dialer{}
	d.Net.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return d.DialContext(ctx, network, "127.0.0.1:"+sdpPort)
			}}
			get(&http.Client{Transport: tr, Timeout: patience})
		})
	}
	wg.Wait()
	get(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience})
	if code := s.stop(syscall.SIGQUIT); code != 0 { // the command passes the signal on
		t.Errorf("nginx: exit %d", code)
	}
	log, err := os.ReadFile(filepath.Join(dir, "access.log"))
	if n := strings.Count(string(log), "127.0.0.9 "); err != nil || n != 8 {
		t.Errorf("%d lines of the log have the true address, want 8; %v\n%s", n, err, log)
	}
	if n := count(s.explained(), "accept", "sdp"); n != 8 {
		t.Errorf("%d connections were carried, want 8", n)
	}
}

// runMapped is runRun, repeated if the Port Mapper has not answered in time, as on a busy machine.
func runMapped(t *testing.T, flags []string, program ...string) (r result, es []explained) {
	t.Helper()
	for range 20 {
		r, es = runRun(t, flags, program...)
		if !slices.ContainsFunc(es, func(e explained) bool { return e.Why == "the Port Mapper does not answer" }) {
			break
		}
	}
	return r, es
}

// Both ends of a redis connection run under viaduct; the client finds the server's Port Mapper.
func TestRunRedis(t *testing.T) {
	t.Parallel()
	redis, cli := need(t, "redis-server", "redis-server"), need(t, "redis-cli", "redis-tools")
	port, mapper := strconv.Itoa(freePort(t)), "127.0.0.1:"+strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port, "--portmap-listen", mapper}, redis, "--port", port,
		"--save", "", "--dir", t.TempDir())
	s.sdpPort(port)
	for _, tc := range [][2]string{{"SET k value", "OK\n"}, {"GET k", "value\n"}} {
		r, es := runMapped(t, []string{"--portmap", mapper, "--require"},
			append([]string{cli, "-p", port}, strings.Fields(tc[0])...)...)
		if r.code != 0 || r.stdout != tc[1] || count(es, "connect", "sdp") != 1 ||
			count(es, "connect", "refused") != 0 {
			t.Errorf("%s: exit %d, %q; %+v\n%s", tc[0], r.code, r.stdout, es, r.stderr)
		}
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("redis: exit %d", code)
	}
	if n := count(s.explained(), "accept", "sdp"); n != 2 {
		t.Errorf("%d connections were carried, want 2: %+v", n, s.explained())
	}
}

// iperf3 moves data in both directions and over several connections.
func TestRunIperf(t *testing.T) {
	t.Parallel()
	iperf := need(t, "iperf3", "iperf3")
	port, mapper := strconv.Itoa(freePort(t)), "127.0.0.1:"+strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port, "--portmap-listen", mapper}, iperf, "-s", "-p", port, "--forceflush")
	s.sdpPort(port)
	for _, flags := range [][]string{{"-n", "20M"}, {"-n", "20M", "-R", "-P", "2"}} {
		// The server accepts one client at a time, and says when it listens again.
		for !strings.HasPrefix(s.line(), "Server listening") {
		}
		r, es := runMapped(t, []string{"--portmap", mapper, "--require"},
			append([]string{iperf, "-c", "127.0.0.1", "-p", port}, flags...)...)
		if r.code != 0 || count(es, "connect", "sdp") < 2 || count(es, "connect", "tcp") != 0 {
			t.Errorf("%v: exit %d\n%s%s%+v", flags, r.code, r.stdout, r.stderr, es)
		}
	}
}

// With --same-host, programs of one host are connected by socket pairs and see the addresses TCP
// would show. If the listener does not run under viaduct, the connection is plain TCP.
func TestRunSameHost(t *testing.T) {
	t.Parallel()
	redis, cli := need(t, "redis-server", "redis-server"), need(t, "redis-cli", "redis-tools")
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--same-host"}, redis, "--port", port, "--save", "", "--dir", t.TempDir())
	testkit.Eventually(t, "listening", func() bool { return count(s.explained(), "listen", "pair") > 0 })
	big := strings.Repeat("x", 100_000)
	for _, tc := range []struct{ args, want string }{
		{"SET k " + big, "OK\n"}, {"GET k", big + "\n"}, {"CLIENT LIST", "addr=127.0.0.1:"},
	} {
		r, es := runRun(t, []string{"--same-host"}, append([]string{cli, "-p", port}, strings.Fields(tc.args)...)...)
		if r.code != 0 || !strings.Contains(r.stdout, tc.want) || count(es, "connect", "pair") != 1 {
			t.Errorf("%.20s: exit %d, %.200q; %+v\n%s", tc.args, r.code, r.stdout, es, r.stderr)
		}
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("redis: exit %d", code)
	}
	if _, es := s.finish(); count(es, "accept", "pair") != 3 {
		t.Errorf("%d connections came by a pair, want 3: %+v", count(es, "accept", "pair"), es)
	}

	// The other program does not run under viaduct run.
	port = strconv.Itoa(freePort(t))
	plain := exec.Command(redis, "--port", port, "--save", "", "--dir", t.TempDir())
	if err := plain.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { plain.Process.Kill(); plain.Wait() }()
	testkit.Eventually(t, "an answer", func() bool {
		return exec.Command(cli, "-p", port, "PING").Run() == nil
	})
	r, es := runRun(t, []string{"--same-host"}, cli, "-p", port, "PING")
	if r.code != 0 || r.stdout != "PONG\n" || count(es, "connect", "pair") != 0 {
		t.Errorf("plain server: exit %d, %q; %+v\n%s", r.code, r.stdout, es, r.stderr)
	}
}

// An nginx with an upstream server registers upstream sockets with epoll before connecting. The
// upstream connections therefore stay TCP, and the responses are complete.
func TestRunSameHostUpstream(t *testing.T) {
	t.Parallel()
	nginx := need(t, "nginx", "nginx-light")
	back, front := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	dir, conf := nginxAt(t, back, "root DIR;")
	want := make([]byte, 5<<20)
	rand.Read(want)
	if err := os.WriteFile(filepath.Join(dir, "a.bin"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	_, proxy := nginxAt(t, front, "location / { proxy_pass http://127.0.0.1:"+back+"; }")
	b, f := startRun(t, []string{"--same-host"}, nginx, "-c", conf),
		startRun(t, []string{"--same-host"}, nginx, "-c", proxy)
	for _, s := range []*served{b, f} {
		eventually(t, "the listener", func() bool { return count(s.explained(), "listen", "pair") == 1 })
	}
	for range 3 {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		resp, err := c.Get("http://127.0.0.1:" + front + "/a.bin")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came, want %d: %v", len(got), len(want), err)
		}
		resp.Body.Close()
	}
	for _, s := range []*served{f, b} {
		if code := s.stop(syscall.SIGQUIT); code != 0 {
			t.Errorf("nginx: exit %d", code)
		}
	}
	es := f.explained()
	n := 0
	for _, e := range es {
		if e.Call == "connect" && e.Path == "tcp" && strings.Contains(e.Why, "registered with epoll") {
			n++
		}
	}
	if n != 3 || count(es, "connect", "pair") != 0 {
		t.Errorf("%d connections stayed TCP because of epoll, want 3: %+v", n, es)
	}
}

// hostileC closes, duplicates and replaces descriptors while other threads make calls on the same
// descriptors, for SECONDS against an echo server at PORT. Two threads use descriptors of their
// own, and check every byte.
const hostileC = `
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { low = 100, high = 116 }; // the numbers that all threads use
static struct sockaddr_in to = {.sin_family = AF_INET};
static volatile int over;

static int sock(int flags) {
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	if (fd >= low && fd < high) abort();
	return fd;
}

static void *careful(void *arg) {
	unsigned seed = (unsigned)(size_t)arg;
	long rounds = 0;
	while (!over) {
		int fd = sock(0), b[2] = {rand_r(&seed), (int)seed}, g[2] = {0, 0};
		struct sockaddr_in p;
		socklen_t n = sizeof p;
		if (connect(fd, (void *)&to, sizeof to)) { perror("connect"); exit(1); }
		if (getpeername(fd, (void *)&p, &n) || p.sin_port != to.sin_port) { fprintf(stderr, "wrong peer\n"); exit(1); }
		if (write(fd, b, sizeof b) != sizeof b || recv(fd, g, sizeof g, MSG_WAITALL) != sizeof g || memcmp(b, g, sizeof b)) {
			fprintf(stderr, "wrong bytes: %s\n", strerror(errno));
			exit(1);
		}
		close(fd);
		rounds++;
	}
	return (void *)rounds;
}

static void *caller(void *arg) {
	unsigned seed = (unsigned)(size_t)arg;
	struct sockaddr_in p;
	while (!over) {
		int fd = low + rand_r(&seed) % (high - low);
		socklen_t n = sizeof p;
		switch (rand_r(&seed) % 6) {
		case 0: case 1: connect(fd, (void *)&to, sizeof to); break;
		case 2: getsockname(fd, (void *)&p, &n); break;
		case 3: getpeername(fd, (void *)&p, &n); break;
		case 4: accept4(fd, (void *)&p, &n, SOCK_NONBLOCK); break;
		case 5: listen(fd, 5); break;
		}
	}
	return 0;
}

static void *breaker(void *arg) {
	unsigned seed = (unsigned)(size_t)arg;
	int null = open("/dev/null", O_RDWR);
	while (!over) {
		int fd = low + rand_r(&seed) % (high - low), s;
		switch (rand_r(&seed) % 4) {
		case 0: close(fd); break;
		case 1: dup2(null, fd); break;
		case 2: dup2(low + rand_r(&seed) % (high - low), fd); break;
		case 3: s = sock(SOCK_NONBLOCK); dup2(s, fd); close(s); break;
		}
		usleep(20);
	}
	return 0;
}

int main(int argc, char **argv) {
	to.sin_port = htons(atoi(argv[1]));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	pthread_t t[6];
	void *r0, *r1;
	pthread_create(&t[0], 0, careful, (void *)1);
	pthread_create(&t[1], 0, careful, (void *)2);
	pthread_create(&t[2], 0, caller, (void *)3);
	pthread_create(&t[3], 0, caller, (void *)4);
	pthread_create(&t[4], 0, breaker, (void *)5);
	pthread_create(&t[5], 0, breaker, (void *)6);
	sleep(atoi(argv[2]));
	over = 1;
	pthread_join(t[0], &r0);
	pthread_join(t[1], &r1);
	if (!r0 || !r1) { fprintf(stderr, "nothing was done\n"); return 1; }
	_exit(0); // other threads may wait in a call
}
`

// A program that changes descriptors during its own calls harms at most itself. The supervisor
// survives, and no connection gets the bytes of another.
func TestRunHostile(t *testing.T) {
	lengthy(t, "6 s")
	t.Parallel()
	program := buildC(t, hostileC)
	_, urls := start(t, 1, "echo", "--listen", "sdp://127.0.0.1:0")
	echo := strings.TrimPrefix(urls[0], "sdp://")
	_, port, _ := net.SplitHostPort(echo)
	r, es := runRun(t, []string{"--to", echo, "--listen", "any", "--portmap-listen", "off"},
		program, port, strconv.Itoa(int(hostileFor.Seconds())))
	if r.code != 0 {
		t.Errorf("exit %d\n%s", r.code, r.stderr)
	}
	if sum := summaryOf(es); sum["carried"] == 0 {
		t.Errorf("the supervisor has not come to the program's end, or carried nothing: summary %v of %d lines, the last ones %+v\n%s",
			sum, len(es), es[max(0, len(es)-5):], r.stderr)
	}
}

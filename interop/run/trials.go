//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strings"
	"syscall"
)

// A trial is a server and the server's clients.
type trial struct {
	name           string
	client, server string   // the programs, as named in the table
	needs          []string // programs that must be installed
	run            func(l *lab) error
}

// A skipped is the reason why this machine can't run a trial.
type skipped string

func (s skipped) Error() string { return string(s) }

// missing returns a missing program, or "".
func (tr trial) missing() string {
	for _, p := range tr.needs {
		if find(p) == "" {
			return p
		}
	}
	return ""
}

// find returns the path of a program, or "" if not installed.
func find(name string) string {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p := filepath.Join(dir, name); exec.Command("test", "-x", p).Run() == nil {
			return p
		}
	}
	if name == "python3" { // the system's Python, which every user may run
		if _, err := os.Stat("/usr/bin/python3"); err == nil {
			return "/usr/bin/python3"
		}
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1]
	}
	p, _ := exec.LookPath(name)
	return p
}

var trials = []trial{
	{"curl, nginx", "curl", "nginx", []string{"curl", "nginx"}, nginxTrial(func(l *lab, url, out string) []string {
		return []string{"curl", "-sS", "--interface", "127.0.0.9", "-w", tellPeer, "-o", out, url}
	}, "127.0.0.9")},
	{"curl --parallel, nginx", "curl", "nginx", []string{"curl", "nginx"}, nginxTrial(func(l *lab, url, out string) []string {
		return []string{"curl", "-sS", "--parallel", "-o", out, url, "-o", out + ".2", url, "-o", out + ".3", url}
	}, "127.0.0.1")},
	{"wget, nginx", "wget", "nginx", []string{"wget", "nginx"}, nginxTrial(func(l *lab, url, out string) []string {
		return []string{"wget", "-q", "-O", out, url}
	}, "127.0.0.1")},
	{"busybox wget, nginx", "busybox wget", "nginx", []string{"busybox", "nginx"}, nginxTrial(func(l *lab, url, out string) []string {
		return []string{"busybox", "wget", "-q", "-O", out, url}
	}, "127.0.0.1")},
	{"Go client, nginx", "Go net/http", "nginx", []string{"nginx"}, nginxTrial(func(l *lab, url, out string) []string {
		return []string{l.self, "-helper", "get", url, out}
	}, "127.0.0.1")},
	{"curl, nginx deferred", "curl", "nginx, `deferred`", []string{"curl", "nginx"}, deferredNginx},
	{"curl, Apache prefork", "curl", "Apache httpd, prefork", []string{"curl", "apache2"}, apache("prefork")},
	{"curl, Apache worker", "curl", "Apache httpd, worker", []string{"curl", "apache2"}, apache("worker")},
	{"curl, Apache event", "curl", "Apache httpd, event", []string{"curl", "apache2"}, apache("event")},
	{"curl, haproxy", "curl", "haproxy, `defer-accept`", []string{"curl", "haproxy"}, haproxy},
	{"two services, no flags", "curl", "two Go net/http of one host", []string{"curl", "ip", "unshare", "nsenter"}, twoServices},
	{"nginx upstream", "nginx", "nginx", []string{"curl", "nginx"}, upstream},
	{"curl, Go server", "curl", "Go net/http", []string{"curl"}, func(l *lab) error {
		return l.web([]string{l.self, "-helper", "http"}, func(url, out string) []string { return []string{"curl", "-sS", "-w", tellPeer, "-o", out, url} })
	}},
	{"Go client, Go server", "Go net/http", "Go net/http", nil, func(l *lab) error {
		return l.web([]string{l.self, "-helper", "http"}, func(url, out string) []string {
			return []string{l.self, "-helper", "get", url, out}
		})
	}},
	{"python urllib, http.server", "python urllib", "python http.server", []string{"python3"}, func(l *lab) error {
		serve := `
import functools, http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
	def log_message(self, *_): print("%s:%d" % self.client_address, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), functools.partial(Handler, directory=sys.argv[2])).serve_forever()`
		get := `import sys, urllib.request; open(sys.argv[2], "wb").write(urllib.request.urlopen(sys.argv[1]).read())`
		return l.web([]string{find("python3"), "-c", serve}, func(url, out string) []string { return []string{find("python3"), "-c", get, url, out} })
	}},
	{"python asyncio", "python asyncio", "python asyncio", []string{"python3"}, func(l *lab) error {
		serve := `
import asyncio, sys
async def one(r, w):
	print("%s:%d" % w.get_extra_info("peername"), flush=True)
	path = (await r.readuntil(b"\r\n\r\n")).split()[1].decode()
	w.write(b"HTTP/1.0 200 OK\r\n\r\n" + open(sys.argv[2] + path, "rb").read())
	await w.drain()
	w.close()
async def main():
	await (await asyncio.start_server(one, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(main())`
		get := `
import asyncio, sys, urllib.parse
async def main():
	u = urllib.parse.urlsplit(sys.argv[1])
	r, w = await asyncio.open_connection(u.hostname, u.port)
	print("peer %s:%d" % w.get_extra_info("peername"))
	w.write(b"GET %s HTTP/1.0\r\n\r\n" % u.path.encode())
	open(sys.argv[2], "wb").write((await r.read()).partition(b"\r\n\r\n")[2])
	w.close()
asyncio.run(main())`
		return l.web([]string{find("python3"), "-c", serve}, func(url, out string) []string { return []string{find("python3"), "-c", get, url, out} })
	}},
	{"node", "node http", "node http", []string{"node"}, func(l *lab) error {
		serve := `require("http").createServer((q, r) => { console.log(q.socket.remoteAddress + ":" + q.socket.remotePort); require("fs").createReadStream(process.argv[2] + q.url).pipe(r) }).listen(+process.argv[1], "127.0.0.1")`
		get := `require("http").get(process.argv[1], r => { console.log("peer " + r.socket.remoteAddress + ":" + r.socket.remotePort); r.pipe(require("fs").createWriteStream(process.argv[2])) })`
		return l.web([]string{find("node"), "-e", serve, "--"}, func(url, out string) []string { return []string{find("node"), "-e", get, "--", url, out} })
	}},
	{"java HttpClient, HttpServer", "java HttpClient", "java HttpServer", []string{"java"}, java},
	{"redis", "redis-cli, redis-benchmark", "redis-server", []string{"redis-server", "redis-cli", "redis-benchmark"}, redis},
	{"memcached, busybox nc", "busybox nc", "memcached", []string{"memcached", "busybox"}, memcached},
	{"iperf3", "iperf3", "iperf3", []string{"iperf3"}, iperf},
	{"busybox nc", "busybox nc", "busybox nc", []string{"busybox"}, netcat},
	{"postgres, psql, pgbench", "psql, pgbench", "postgres", []string{"postgres", "initdb", "psql", "pgbench"}, postgres},
	{"sshd, ssh, sftp", "ssh, sftp", "sshd", []string{"sshd", "ssh", "sftp", "ssh-keygen"}, sshd},
	{"sshd beside busy loops", "sftp", "sshd, beside busy loops", []string{"sshd", "ssh", "sftp", "ssh-keygen"}, besideBusyLoops(sshd)},
}

// tellPeer makes curl print the peer's address.
const tellPeer = "peer %{remote_ip}:%{remote_port}"

// same returns an error unless each file contains exactly want, and records the comparison.
func (l *lab) same(want []byte, files ...string) error {
	for _, f := range files {
		got, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes came, not the %d that were sent", len(got), len(want))
		}
	}
	l.shown[bytesSame] = true
	return nil
}

// page makes a directory with a file a.bin of random bytes, and returns both.
func (l *lab) page() (dir string, want []byte, err error) {
	if dir, err = l.folder("root"); err != nil {
		return "", nil, err
	}
	want = randomBytes(8 << 20)
	return dir, want, os.WriteFile(filepath.Join(dir, "a.bin"), want, 0o644)
}

// web adds PORT DIR to the command line of the server serve, and fetches a file from the server by
// the command returned by get.
func (l *lab) web(serve []string, get func(url, out string) []string) error {
	dir, want, err := l.page()
	if err != nil {
		return err
	}
	port := freePort()
	s, err := l.serve(overSDP, port, append(serve, port, dir)...)
	if err != nil {
		return err
	}
	out := l.path("out")
	told, err := l.client(overSDP, s, get("http://127.0.0.1:"+port+"/a.bin", out)...)
	if err != nil {
		return err
	}
	if err := l.sawServer(told, port); err != nil {
		return err
	}
	s.shows = s.written
	return l.same(want, out)
}

// sawServer checks the server address printed by a client, if printed as "peer ADDRESS:PORT".
func (l *lab) sawServer(told []byte, port string) error {
	_, peer, ok := strings.Cut(string(told), "peer ")
	if !ok {
		return nil
	}
	if want := "127.0.0.1:" + port; strings.TrimSpace(peer) != want {
		return fmt.Errorf("the client saw %q, not %q", told, want)
	}
	l.shown[clientSaw] = true
	return nil
}

// startNginx starts an nginx with two workers that serves the file of page, whose bytes are want.
func (l *lab) startNginx() (s *server, want []byte, err error) {
	dir, want, err := l.page()
	if err != nil {
		return nil, nil, err
	}
	port := freePort()
	conf := strings.NewReplacer("DIR", dir, "PORT", port).Replace("worker_processes 2; error_log DIR/error.log; pid DIR/pid; daemon off;\n" +
		"events { worker_connections 64; } http { log_format peer '$remote_addr:$remote_port'; access_log DIR/access.log peer; sendfile on; tcp_nopush on; client_body_temp_path DIR/t1; proxy_temp_path DIR/t2;\n" +
		"fastcgi_temp_path DIR/t3; uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5; server { listen 127.0.0.1:PORT; root DIR; } }\n")
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return nil, nil, err
	}
	s, err = l.serve(overSDP, port, find("nginx"), "-e", filepath.Join(dir, "early.log"), "-c", file)
	if s != nil {
		s.quit = syscall.SIGQUIT
		s.shows = func() (string, error) {
			log, err := os.ReadFile(filepath.Join(dir, "access.log"))
			return string(log), err
		}
	}
	return s, want, err
}

func nginxTrial(get func(l *lab, url, out string) []string, from string) func(*lab) error {
	return func(l *lab) error {
		s, want, err := l.startNginx()
		if err != nil {
			return err
		}
		out := l.path("out")
		argv := get(l, "http://127.0.0.1:"+s.port+"/a.bin", out)
		told, err := l.client(overSDP, s, argv...)
		if err != nil {
			return err
		}
		if err := l.sawServer(told, s.port); err != nil {
			return err
		}
		files := []string{out}
		if strings.Contains(strings.Join(argv, " "), out+".3") {
			files = append(files, out+".2", out+".3")
		}
		if err := l.same(want, files...); err != nil {
			return err
		}
		for _, p := range s.peers {
			if !strings.HasPrefix(p, from+":") {
				return fmt.Errorf("the peer is %s, not at %s", p, from)
			}
		}
		return nil
	}
}

// upstream tests an nginx proxying to another server.
func upstream(l *lab) error {
	back, want, err := l.startNginx()
	if err != nil {
		return err
	}
	port := freePort()
	dir, _, err := l.page()
	if err != nil {
		return err
	}
	conf := strings.NewReplacer("DIR", dir, "PORT", port, "BACK", back.port).Replace("error_log DIR/error.log; pid DIR/pid; daemon off;\n" +
		"events { worker_connections 64; } http { access_log off; client_body_temp_path DIR/t1; proxy_temp_path DIR/t2;\n" +
		"fastcgi_temp_path DIR/t3; uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5; server { listen 127.0.0.1:PORT; location / { proxy_pass http://127.0.0.1:BACK; } } }\n")
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return err
	}
	explain := l.path("explain")
	c := l.command(l.ctx, l.viaduct, "run", "--json", "--explain="+explain, "--portmap", back.mapper, "--to", "127.0.0.1:"+back.port+"=portmap", "--require", "--",
		find("nginx"), "-e", filepath.Join(dir, "early.log"), "-c", file)
	if err := c.Start(); err != nil {
		return err
	}
	defer func() { c.Process.Signal(syscall.SIGTERM); c.Wait() }()
	out := l.path("out")
	if b, err := l.command(l.ctx, "curl", "-sS", "--retry", "100", "--retry-connrefused", "--retry-delay", "1", "-o", out, "http://127.0.0.1:"+port+"/a.bin").CombinedOutput(); err != nil {
		return fmt.Errorf("curl: %w\n%s", err, b)
	}
	carried := false
	for _, e := range events(explain) {
		carried = carried || e.Call == "connect" && e.Path == "sdp"
	}
	if !carried {
		return fmt.Errorf("the connection to the upstream was not carried: %+v", events(explain))
	}
	return l.same(want, out)
}

func redis(l *lab) error {
	port := freePort()
	dir, err := l.folder("redis")
	if err != nil {
		return err
	}
	s, err := l.serve(overSDP, port, "redis-server", "--port", port, "--save", "", "--dir", dir)
	if err != nil {
		return err
	}
	value := fmt.Sprintf("%x", randomBytes(50_000))
	for _, step := range [][2]string{{"SET k " + value, "OK\n"}, {"GET k", value + "\n"}} {
		out, err := l.client(overSDP, s, append([]string{"redis-cli", "-p", port}, strings.Fields(step[0])...)...)
		if err != nil || string(out) != step[1] {
			return fmt.Errorf("redis-cli %.10s: %.50q, %w", step[0], out, err)
		}
	}
	l.shown[bytesSame] = true
	out, err := l.client(overSDP, s, "redis-cli", "-p", port, "CLIENT", "LIST")
	if err != nil || !strings.Contains(string(out), " addr="+s.peers[len(s.peers)-1]+" ") {
		return fmt.Errorf("CLIENT LIST does not show %v: %s, %w", s.peers, out, err)
	}
	l.shown[serverSaw] = true
	_, err = l.client(overSDP, s, "redis-benchmark", "-p", port, "-q", "-n", "2000", "-c", "20", "-t", "set,get,lpush")
	return err
}

func memcached(l *lab) error {
	port := freePort()
	argv := []string{"memcached", "-l", "127.0.0.1", "-p", port, "-t", "2"}
	if l.uid == 0 {
		argv = append(argv, "-u", "nobody")
	}
	s, err := l.serve(overSDP, port, argv...)
	if err != nil {
		return err
	}
	value := fmt.Sprintf("%x", randomBytes(5000))
	out, err := l.client(overSDP, s, "sh", "-c", `printf "set k 0 0 %s\r\n%s\r\nget k\r\nstats conns\r\nquit\r\n" "$2" "$1" | busybox nc 127.0.0.1 "$0"`, port, value, fmt.Sprint(len(value)))
	if err != nil || !strings.Contains(string(out), "\r\n"+value+"\r\n") {
		return fmt.Errorf("%.100q, %w", out, err)
	}
	if !strings.Contains(string(out), "addr tcp:"+s.peers[0]+"\r\n") {
		return fmt.Errorf("stats conns does not show %v: %s", s.peers, out[len(value):])
	}
	l.shown[bytesSame], l.shown[serverSaw] = true, true
	return nil
}

// iperf does not compare bytes: after a partial send, a client of iperf3 sending a file (-F)
// replaces the unsent bytes by others, over any TCP.
func iperf(l *lab) error {
	port := freePort()
	s, err := l.serve(overSDP, port, "iperf3", "-s", "-p", port)
	if err != nil {
		return err
	}
	s.shows = func() (string, error) { // converts both formats in which iperf3 prints an address
		return strings.NewReplacer(", port ", ":", " port ", ":").Replace(s.out.String()), nil
	}
	for _, flags := range [][]string{{"-n", "30M"}, {"-n", "30M", "-R", "-P", "3"}, {"-n", "10M", "--bidir"}} {
		told, err := l.client(overSDP, s, append([]string{"iperf3", "-c", "127.0.0.1", "-p", port}, flags...)...)
		if err != nil {
			return err
		}
		// "local ADDRESS port PORT connected to ADDRESS port PORT"
		saw, last := strings.ReplaceAll(string(told), " port ", ":"), s.peers[len(s.peers)-1]
		if want := "local " + last + " connected to 127.0.0.1:" + port; !strings.Contains(saw, want) {
			return fmt.Errorf("the client did not see %q\n%s", want, told)
		}
		l.shown[clientSaw] = true
	}
	return nil
}

func netcat(l *lab) error {
	port, in, out := freePort(), l.path("in"), l.path("out")
	want := randomBytes(1 << 20)
	if err := os.WriteFile(in, want, 0o644); err != nil {
		return err
	}
	s, err := l.serve(overSDP, port, "sh", "-c", `exec busybox nc -l -p "$0" >"$1"`, port, out)
	if err != nil {
		return err
	}
	if _, err := l.client(overSDP, s, "sh", "-c", `exec busybox nc 127.0.0.1 "$0" <"$1"`, port, in); err != nil {
		return err
	}
	<-s.ended
	s.ended <- nil
	return l.same(want, out)
}

func postgres(l *lab) error {
	if l.uid == 0 {
		l.uid = nobody // PostgreSQL refuses to run as root
		defer func() { l.uid = 0 }()
	}
	dir, err := l.folder("postgres")
	if err != nil {
		return err
	}
	if b, err := l.command(l.ctx, find("initdb"), "-D", dir, "-U", "test", "-A", "trust", "--no-sync").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, b)
	}
	port := freePort()
	s, err := l.serve(overSDP, port, find("postgres"), "-D", dir, "-p", port, "-k", dir, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")
	if err != nil {
		return err
	}
	at := []string{"-h", "127.0.0.1", "-p", port, "-U", "test"}
	want := fmt.Sprintf("%x", randomBytes(500_000))
	sent := l.path("sent")
	if err := os.WriteFile(sent, []byte(`\set ON_ERROR_STOP 1
select '`+want+`'; select host(inet_client_addr()) || ':' || inet_client_port();`), 0o644); err != nil {
		return err
	}
	out, err := l.client(overSDP, s, append(append([]string{find("psql")}, at...), "-Atf", sent, "postgres")...)
	if err != nil || string(out) != want+"\n"+s.peers[0]+"\n" {
		return fmt.Errorf("psql as %v: %.100q, %w", s.peers, out[max(0, len(out)-40):], err)
	}
	l.shown[bytesSame], l.shown[serverSaw] = true, true
	bench := append([]string{find("pgbench")}, at...)
	if _, err := l.client(overSDP, s, append(bench, "-i", "-q", "postgres")...); err != nil {
		return err
	}
	_, err = l.client(overSDP, s, append(bench, "-n", "-c", "2", "-t", "50", "postgres")...)
	return err
}

func sshd(l *lab) error {
	dir, err := l.folder("ssh")
	if err != nil {
		return err
	}
	key, id := filepath.Join(dir, "host"), filepath.Join(dir, "id")
	for _, k := range []string{key, id} {
		if b, err := l.command(l.ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", k).CombinedOutput(); err != nil {
			return fmt.Errorf("ssh-keygen: %w\n%s", err, b)
		}
	}
	if l.uid == 0 { // sshd's systemd unit does this
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return err
		}
	}
	port, in, out := freePort(), l.path("in"), l.path("out")
	want := randomBytes(1 << 20)
	if err := os.WriteFile(in, want, 0o644); err != nil {
		return err
	}
	pam := "UsePAM=no"
	if l.uid != 0 { // without PAM, an sshd that can't read passwords treats every account as locked
		pam = "UsePAM=yes"
	}
	s, err := l.serve(overSDP, port, find("sshd"), "-D", "-e", "-p", port, "-h", key, "-o", "AuthorizedKeysFile="+id+".pub", "-o", "StrictModes=no",
		"-o", "PidFile=none", "-o", pam, "-o", "ListenAddress=127.0.0.1", "-o", "Subsystem=sftp internal-sftp", "-f", "/dev/null")
	if err != nil {
		return err
	}
	s.shows = func() (string, error) { // "Accepted publickey for USER from ADDRESS port PORT ssh2: ..."
		return strings.NewReplacer(" port ", ":", " ssh2", "\n").Replace(s.out.String()), nil
	}
	account, err := osuser.LookupId(fmt.Sprint(l.uid))
	if err != nil {
		return err
	}
	with := []string{"-q", "-i", id, "-o", "Port=" + port, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"}
	to := account.Username + "@127.0.0.1"
	// sftp needs no shell. The unprivileged user may not have a shell.
	if _, err := l.client(overSDP, s, append(append([]string{"sftp"}, with...), to+":"+in, out)...); err != nil {
		if strings.Contains(s.out.String(), "account is locked") {
			s.peers = nil
			return skipped("the account of " + account.Username + " is locked: sshd lets nothing in")
		}
		return fmt.Errorf("%w\n%s", err, s.out)
	}
	if l.uid != 0 {
		return l.same(want, out)
	}
	got, err := l.client(overSDP, s, append(append([]string{"ssh"}, with...), to, "cat "+in+"; echo $SSH_CONNECTION")...)
	peer := strings.Replace(s.peers[len(s.peers)-1], ":", " ", 1)
	if err != nil || string(got) != string(want)+peer+" 127.0.0.1 "+port+"\n" {
		return fmt.Errorf("ssh as %s: %.100q, %w", peer, got[max(0, len(got)-50):], err)
	}
	return l.same(want, out)
}

func java(l *lab) error {
	dir, err := l.folder("java")
	if err != nil {
		return err
	}
	get, serve := filepath.Join(dir, "Get.java"), filepath.Join(dir, "Serve.java")
	for file, code := range map[string]string{get: `import java.net.URI; import java.net.http.*; import java.nio.file.Path;
public class Get { public static void main(String[] a) throws Exception {
	HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofFile(Path.of(a[1]))); } }`,
		serve: `import com.sun.net.httpserver.HttpServer; import java.net.InetSocketAddress; import java.nio.file.*;
public class Serve { public static void main(String[] a) throws Exception {
	HttpServer s = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 0);
	s.createContext("/", x -> {
		System.out.println(x.getRemoteAddress().getAddress().getHostAddress() + ":" + x.getRemoteAddress().getPort());
		byte[] b = Files.readAllBytes(Path.of(a[1] + x.getRequestURI()));
		x.sendResponseHeaders(200, b.length);
		x.getResponseBody().write(b);
		x.close(); });
	s.start(); } }`} {
		if err := os.WriteFile(file, []byte(code), 0o644); err != nil {
			return err
		}
	}
	return l.web([]string{"java", serve}, func(url, out string) []string { return []string{"java", get, url, out} })
}

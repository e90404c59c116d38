//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A webServer serves files at a port of 127.0.0.1, and logs ADDRESS:PORT of each client. Its
// listener has TCP_DEFER_ACCEPT, as Apache's has by default: a connection is accepted only once its
// first bytes have arrived.
type webServer struct {
	conf string // with placeholders DIR and PORT
	argv func(conf string) []string
	log  string // log file in DIR; "" if the server logs to standard output
	page []byte // expected content if it is not from DIR; else nil
}

// deferred returns a trial of a web server with curl. curl prints the peer's address.
func deferred(w webServer) func(*lab) error {
	return func(l *lab) error {
		dir, want, err := l.page()
		if err != nil {
			return err
		}
		if w.page != nil {
			want = w.page
		}
		port := freePort()
		conf := filepath.Join(dir, "conf")
		if err := os.WriteFile(conf, []byte(l.fill(w.conf, dir, port)), 0o644); err != nil {
			return err
		}
		s, err := l.serve(overSDP, port, w.argv(conf)...)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, tail(filepath.Join(dir, "error.log")))
		}
		s.shows = s.written
		if w.log != "" {
			s.shows = func() (string, error) {
				b, err := os.ReadFile(filepath.Join(dir, w.log))
				return string(b), err
			}
		}
		for range 2 { // the second request finds an idle server
			out := l.path("out")
			told, err := l.client(overSDP, s, "curl", "-sS", "-w", tellPeer, "-o", out, "http://127.0.0.1:"+port+"/a.bin")
			if err != nil {
				return fmt.Errorf("%w\n%s", err, tail(filepath.Join(dir, "error.log")))
			}
			if err := l.sawServer(told, port); err != nil {
				return err
			}
			if err := l.same(want, out); err != nil {
				return err
			}
		}
		s.logged()
		return nil
	}
}

// logged waits until the server has logged its peers, or for limit. A server logs a request after
// the client has the answer, and a signal may end it in between.
func (s *server) logged() {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		told, err := s.shows()
		if err == nil && !slices.ContainsFunc(s.peers, func(p string) bool { return !strings.Contains(told, p+"\n") }) {
			return
		}
	}
}

// fill replaces the placeholders of a configuration, and adds the lines needed only by a server of
// root.
func (l *lab) fill(conf, dir, port string) string {
	root := ""
	if l.uid == 0 {
		root = "User #65534\nGroup #65534\n"
	}
	return strings.NewReplacer("DIR", dir, "PORT", port, "ASROOT\n", root).Replace(conf)
}

// tail returns the last 500 bytes of a file, for a message.
func tail(file string) string {
	b, _ := os.ReadFile(file)
	return string(b[max(0, len(b)-500):])
}

// apache returns a trial of Apache httpd with a processing module: prefork, worker or event.
func apache(mpm string) func(*lab) error {
	const modules = "/usr/lib/apache2/modules/mod_" // prefix of the modules in Debian's package
	return deferred(webServer{
		conf: "ServerRoot DIR\nServerName localhost\nPidFile DIR/pid\nDefaultRuntimeDir DIR\nErrorLog DIR/error.log\nASROOT\n" +
			"LoadModule mpm_" + mpm + "_module " + modules + "mpm_" + mpm + ".so\nLoadModule authz_core_module " + modules + "authz_core.so\n" +
			"Listen 127.0.0.1:PORT\nAcceptFilter http data\nStartServers 2\nDocumentRoot DIR\n<Directory DIR>\nRequire all granted\n</Directory>\n" +
			"LogFormat \"%a:%{remote}p\" peer\nCustomLog DIR/access.log peer\n",
		argv: func(conf string) []string { return []string{find("apache2"), "-DFOREGROUND", "-f", conf} },
		log:  "access.log",
	})
}

// deferredNginx is a trial of an nginx whose listener has TCP_DEFER_ACCEPT.
var deferredNginx = deferred(webServer{
	conf: "worker_processes 2; error_log DIR/error.log; pid DIR/pid; daemon off;\n" +
		"events { worker_connections 64; } http { log_format peer '$remote_addr:$remote_port'; access_log DIR/access.log peer; client_body_temp_path DIR/t1; proxy_temp_path DIR/t2;\n" +
		"fastcgi_temp_path DIR/t3; uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5; server { listen 127.0.0.1:PORT deferred; root DIR; } }\n",
	argv: func(conf string) []string {
		return []string{find("nginx"), "-e", filepath.Join(filepath.Dir(conf), "error.log"), "-c", conf}
	},
	log: "access.log",
})

// haproxy tests an haproxy whose listener has TCP_DEFER_ACCEPT. The server behind haproxy is
// reached by plain TCP.
func haproxy(l *lab) error {
	dir, want, err := l.page()
	if err != nil {
		return err
	}
	back := freePort()
	if _, err := l.serve(native, back, l.self, "-helper", "http", back, dir); err != nil {
		return err
	}
	return deferred(webServer{
		conf: "global\n log stdout format raw local0\ndefaults\n mode http\n timeout connect 20s\n timeout client 60s\n timeout server 60s\n" +
			"frontend front\n bind 127.0.0.1:PORT defer-accept\n log global\n log-format %ci:%cp\n default_backend back\n" +
			"backend back\n server one 127.0.0.1:" + back + "\n",
		page: want,
		argv: func(conf string) []string { return []string{find("haproxy"), "-db", "-f", conf} },
	})(l)
}

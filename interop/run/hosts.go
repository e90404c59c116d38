//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"strings"
)

// hostsScript has the arguments VIADUCT HELPER DIR FILES. Two services run on one host (a network
// namespace), and clients on another host. No client has a flag with an address. Then the first
// service ends, whose process was the Port Mapper of the host, and clients still find the second
// service.
const hostsScript = `
set -e
viaduct=$1 helper=$2 dir=$3 files=$4
trap 'kill $first $second $client 2>/dev/null || :' EXIT
ip link set lo up
ip link add va type veth peer name vb
unshare -n sleep 300 &
client=$!
until [ "$(readlink /proc/$client/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep .05; done
there() { nsenter -t $client -n -- "$@"; }
ip link set vb netns $client
ip addr add 10.77.0.1/24 dev va
ip link set va up
there ip link set lo up
there ip addr add 10.77.0.2/24 dev vb
there ip link set vb up
said() { # FILE CALL PATH
	n=0
	until grep -q "\"call\":\"$2\".*\"path\":\"$3\"" "$files.$1" 2>/dev/null; do
		n=$((n + 1))
		[ $n -lt 1200 ] || { echo "$files.$1 has no $2 by $3:"; cat "$files.$1"; return 1; }
		sleep .05
	done
}
serve() { exec "$viaduct" run --json --explain="$files.server$1" --listen 800$1 -- "$helper" -helper http 10.77.0.1:800$1 "$dir" >"$files.saw$1"; }
get() { there "$viaduct" run --require --json --explain="$files.client$2" -- curl -sS --max-time 60 -o "$files.got$2" http://10.77.0.1:800$1/a.bin; }
serve 1 & first=$!
said server1 listen sdp
serve 2 & second=$!
said server2 listen sdp
said server1 portmap udp
said server2 portmap registered
get 1 1
get 2 2
kill $first
wait $first || :
said server2 portmap udp
get 2 3
`

// twoServices checks that clients without flags find two services.
func twoServices(l *lab) error {
	alone := []string{"unshare", "-r", "-n"}
	if b, err := l.command(l.ctx, append(alone, "ip", "link", "add", "va", "type", "veth", "peer", "name", "vb")...).CombinedOutput(); err != nil {
		return skipped(fmt.Sprintf("this machine does not let uid %d make a network namespace with a device: %s", l.uid, strings.TrimSpace(string(b))))
	}
	dir, want, err := l.page()
	if err != nil {
		return err
	}
	files, err := l.folder("hosts")
	if err != nil {
		return err
	}
	files += "/f"
	if b, err := l.command(l.ctx, append(alone, "sh", "-c", hostsScript, "sh", l.viaduct, l.self, dir, files)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, b)
	}
	for client, service := range map[string]string{"1": "1", "2": "2", "3": "2"} {
		saw, err := os.ReadFile(files + ".saw" + service)
		if err != nil {
			return err
		}
		peer := ""
		for _, e := range events(files + ".client" + client) {
			if e.Call == "connect" && e.Path == "sdp" && e.Remote == "10.77.0.1:800"+service {
				peer, _, _ = strings.Cut(e.Why, " -> ")
			}
		}
		if !strings.HasPrefix(peer, "10.77.0.2:") || !strings.Contains(string(saw), peer+"\n") {
			return fmt.Errorf("service %s has seen %q, and client %s was carried from %q", service, saw, client, peer)
		}
	}
	l.shown[serverSaw] = true
	return l.same(want, files+".got1", files+".got2", files+".got3")
}

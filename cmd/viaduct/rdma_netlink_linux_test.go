//go:build linux && (amd64 || arm64)

package main

import (
	"regexp"
	"strconv"
	"testing"
)

// iproute2's rdma, which asks for acknowledgements, shows devices, links and the programs' objects.
func TestRDMATool(t *testing.T) {
	t.Parallel()
	need(t, "rdma", "iproute2")
	need(t, "rping", "rdmacm-utils")
	port := strconv.Itoa(freePort(t))
	for _, c := range []struct{ name, script, want string }{
		{"dev", "rdma dev", `^0: siw0: node_type rnic .*node_guid`},
		{"link", "rdma link", `^link siw0/1 state ACTIVE physical_state LINK_UP`},
		{"link of one", "rdma link show siw0/1", `^link siw0/1 state ACTIVE`},
		{"system", "rdma system", `^netns shared`},
		{"resource", "rdma resource", `^0: siw0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0`},
		{"resource qp", "rdma resource show qp", `^$`},
		{"statistic", "rdma statistic", `^link siw0/1 \n$`},
		{"statistic qp", "rdma statistic qp show", `^$`},
		{"connected", `rping -s -a 127.0.0.1 -p $0 2>/dev/null & s=$!
			while [ -e /proc/$s ]; do rping -c -a 127.0.0.1 -p $0; sleep 0.1; done 2>/dev/null &
			until rdma resource show qp | grep RTS; do sleep 0.1; done
			rdma resource show cm_id
			kill $s; wait`,
			`link siw0/- lqpn \d+ .*type RC state RTS .*comm rping(.*\n)+link siw0/\S+ cm-idn \d+ state LISTEN ps TCP .*comm rping src-addr 127.0.0.1:` + port},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "run", "--rdma", "--", "sh", "-c", c.script+"\nexit 0", port)
			if !regexp.MustCompile(c.want).MatchString(r.stdout) || r.code != 0 {
				t.Errorf("exit %d: %q, want %s\n%s", r.code, r.stdout, c.want, r.stderr)
			}
		})
	}
}

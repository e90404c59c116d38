//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"
)

// An interface gets a new address while programs run. The address must appear in the GID table of
// the RoCE device, in sysfs and in the responses of commands. A waiting program must get an event
// and be able to use the address. At first, the device has only a loopback address.
func TestRXELateAddress(t *testing.T) {
	need(t, "ibv_rc_pingpong", "ibverbs-utils")
	need(t, "ibv_asyncwatch", "ibverbs-utils")
	need(t, "ip", "iproute2")
	need(t, "unshare", "util-linux")
	const device = "ip link set lo up && ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up"
	if out, err := exec.Command("unshare", "-rn", "sh", "-c", device).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no network namespace with a veth device here: %v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, "unshare", "-rn", "sh", "-c", device+` && exec "$0" run --rdma --device rxe0 -- sh -c '
		gids=/sys/class/infiniband/rxe0/ports/1/gids
		ibv_asyncwatch >watch 2>&1 & w=$!
		until grep -q rxe0 watch; do sleep 0.1; done
		ip addr add 192.0.2.77/24 dev v0
		until i=$(grep -l c000:024d $gids/*); do sleep 0.1; done
		until grep event watch; do sleep 0.1; done
		kill $w
		i=$(basename $i)
		cat $gids/../gid_attrs/ndevs/$i
		ibv_devinfo -v | grep "GID\\[" | grep 192.0.2.77
		ibv_rc_pingpong -g $i -n 10 -p 18515 >server &
		until grep -qs ":4853 [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done # port 18515
		ibv_rc_pingpong -g $i -n 10 -p 18515 127.0.0.1 && wait $!
	'`, os.Args[0])
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), asCommand+"=1")
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	want := regexp.MustCompile(`(?s)event.*v0\n.*GID\[.*192\.0\.2\.77.*10 iters in`)
	if err != nil || !want.Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// pyverbsTests is the directory of the suite in Debian's rdma-core. Its long files are compressed.
const pyverbsTests = "/usr/share/doc/rdma-core/tests"

// pyverbsScript runs the suite of the rdma-core build given by -rdma-core, which is in the list of
// directories for programs, and otherwise Debian's.
const pyverbsScript = `set -e; at="--dev rxe0 --gid 1 --port 1 -v"
if run=$(command -v run_tests.py); then exec "$run" $at; fi
d=$(mktemp -d "$HOME/pyverbs.XXXXXX"); cp ` + pyverbsTests + `/* "$d"; gunzip -f "$d"/*.gz; cd "$d"
exec python3 run_tests.py $at`

var (
	pyverbsRan  = regexp.MustCompile(`(?m)^Ran (\d+) tests`)
	pyverbsSkip = regexp.MustCompile(`skipped ['"](.*)['"]`)
)

// pyverbsLeast is the number of passing tests on a device like the kernel's rxe.
const pyverbsLeast = 96

// pyverbsReasons are the suite's reasons for skipping tests on a device like the kernel's rxe. Any
// other reason means that our device lacks something.
var pyverbsReasons = []struct{ text, why string }{
	{"MLX", "Mellanox"}, {"mlx", "Mellanox"}, {"EFA", "EFA"}, {"cuda", "CUDA"}, {"PCI device", "VFIO"},
	{"ODP", "on-demand paging"}, {"huge pages", "on-demand paging"}, {"Device memory", "device memory"}, {"dmabuf", "dmabuf"},
	{"XRC", "not in the rxe provider"}, {"Parent Domain", "not in the rxe provider"}, {"Extended CQ", "time stamps and tag matching"},
	{"Rereg MR", "not in the rxe provider"}, {"real time", "not in the rxe provider"}, {"Importing", "not in the rxe provider"},
	{"root", "raw packets"}, {"All gid indices populated", "a full table of GIDs"},
	// These are in newer suites.
	{"CAP_NET_RAW", "raw packets"}, {"CC PD", "confidential computing"}, {"CC_DMA_BOUNCE", "confidential computing"},
	{"DMA Handle", "device memory"}, {"PHC", "time stamps"}, {"FLUSH_GLOBAL", "persistent memory"},
	{"ibv_query_port_speed", "not in the rxe provider"},
}

// judgePyverbs checks the summary of the suite: enough tests have passed, none has failed, and none
// was skipped because of a required feature missing in the device.
func judgePyverbs(out string) (note string, err error) {
	m := pyverbsRan.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("the suite did not run:\n%s", out)
	}
	ran, _ := strconv.Atoi(m[1])
	by := map[string]int{}
	skips := pyverbsSkip.FindAllStringSubmatch(out, -1)
	for _, s := range skips {
		why := ""
		for _, r := range pyverbsReasons {
			if strings.Contains(s[1], r.text) {
				why = r.why
				break
			}
		}
		if why == "" {
			return "", fmt.Errorf("a skip that was not expected: %q", s[1])
		}
		by[why]++
	}
	note = fmt.Sprintf("%d pass, %d skipped: %v", ran-len(skips), len(skips), by)
	switch {
	case strings.Contains(out, "FAILED ("):
		return note, fmt.Errorf("tests fail:\n%s", out[max(strings.Index(out, "======="), 0):])
	case ran-len(skips) < pyverbsLeast:
		return note, fmt.Errorf("fewer than %d pass", pyverbsLeast)
	}
	return note, nil
}

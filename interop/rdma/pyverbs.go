//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// pyverbsTests is the directory of the suite in Debian's python3-pyverbs. Its long files are
// compressed.
const pyverbsTests = "/usr/share/doc/rdma-core/tests"

const pyverbsScript = `set -e; d=$(mktemp -d "$HOME/pyverbs.XXXXXX"); cp ` + pyverbsTests + `/* "$d"; gunzip -f "$d"/*.gz; cd "$d"; exec python3 run_tests.py --dev siw0 -v`

var (
	pyverbsRan  = regexp.MustCompile(`(?m)^Ran (\d+) tests`)
	pyverbsSkip = regexp.MustCompile(`skipped ['"](.*)['"]`)
)

// pyverbsReasons are the suite's reasons for skipping tests on a device like the kernel's siw. Any
// other reason means that our device lacks something.
var pyverbsReasons = []struct{ text, why string }{
	{"No supported port is up", "traffic over InfiniBand and RoCE"},
	{"is not supported", "what siw does not have either"},
	{"MLX", "Mellanox"}, {"mlx", "Mellanox"}, {"EFA", "EFA"}, {"efa", "EFA"},
	{"cuda", "CUDA"}, {"PCI device", "VFIO"}, {"must be done by root", "raw packets"},
	{"All gid indices populated", "one GID"}, {"doesn't have any", "no network of InfiniBand"},
	{"No net device", "no network of InfiniBand"}, {"No device", "no such device"},
}

// judgePyverbs checks the summary of the suite: no failure, and no skip because of a required
// feature missing in the device.
func judgePyverbs(_ *lab, out string) (note string, err error) {
	m := pyverbsRan.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("the suite did not run:\n%s", out)
	}
	ran, _ := strconv.Atoi(m[1])
	by := map[string]int{}
	skipped := 0
	var odd []string
	for _, s := range pyverbsSkip.FindAllStringSubmatch(out, -1) {
		skipped++
		known := false
		for _, r := range pyverbsReasons {
			if strings.Contains(s[1], r.text) {
				by[r.why]++
				known = true
				break
			}
		}
		if !known {
			odd = append(odd, s[1])
		}
	}
	note = fmt.Sprintf("%d tests, %d skipped: %v", ran, skipped, by)
	switch {
	case strings.Contains(out, "FAILED ("):
		at := strings.Index(out, "=======")
		return note, fmt.Errorf("tests fail:\n%s", out[max(at, 0):])
	case len(odd) > 0:
		return note, fmt.Errorf("skips that were not expected: %q", odd)
	case ran-skipped < 20:
		return note, errors.New("hardly any test was made")
	}
	return note, nil
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// A ringQuota bounds the rings of all contexts. Each ring is a mapping of this process, and the
// kernel limits their number (vm.max_map_count). If none is left, the Go runtime cannot allocate,
// and the process ends.
type ringQuota struct {
	most int64
	held atomic.Int64
}

func (q *ringQuota) take() bool {
	if q.held.Add(1) > q.most {
		q.held.Add(-1)
		return false
	}
	return true
}

func (q *ringQuota) give(n int) { q.held.Add(-int64(n)) }

// ringsMost returns the limit of rings: half of the mappings the kernel allows. The rest is for the
// runtime.
func ringsMost() int64 {
	const byDefault = 65530
	b, _ := os.ReadFile("/proc/sys/vm/max_map_count")
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		n = byDefault
	}
	return n / 2
}

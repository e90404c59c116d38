//go:build linux && (amd64 || arm64)

package rdma

import "testing"

// For any limit, a program has some numbers for devices, in disjoint ranges. A higher limit gives
// at least as many numbers.
func TestNumbers(t *testing.T) {
	before := 0
	for _, limit := range []uint64{16, 64, 256, 512, 960, 1024, 1100, 4096, 12 << 10, 1 << 20, 1 << 40, ^uint64(0)} {
		ns := newNumbers(limit)
		n := ns.count(limit)
		if n < before || n == 0 {
			t.Errorf("limit %d: %d numbers, %d with less", limit, n, before)
		}
		before = n
		seen := map[int]bool{}
		for _, r := range ns {
			for fd := r.low; fd <= r.high; fd++ {
				if seen[fd] || fd < 3 || uint64(fd) >= limit || !ns.has(fd) {
					t.Fatalf("limit %d: number %d", limit, fd)
				}
				seen[fd] = true
			}
		}
		if len(seen) != n || ns.has(2) || ns.has(1<<20) {
			t.Errorf("limit %d: %d numbers, counted %d", limit, len(seen), n)
		}
	}
	// A program with a lowered limit can use the remaining numbers.
	if n := newNumbers(1 << 20).count(512); n != belowMost {
		t.Errorf("%d numbers below 512, want %d", n, belowMost)
	}
}

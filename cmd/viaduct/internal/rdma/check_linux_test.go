//go:build linux && (amd64 || arm64)

package rdma

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Check reports missing features with a remedy.
func TestCheck(t *testing.T) {
	limit := func(n uint64) func(int, *unix.Rlimit) error {
		return func(_ int, l *unix.Rlimit) error { l.Max = n; return nil }
	}
	if f := checkLimit(limit(512)); !f.Good || f.Warn || f.Do != "" {
		t.Errorf("512 descriptors: %+v", f)
	}
	if f := checkLimit(limit(64)); !f.Good || !f.Warn || !strings.Contains(f.Do, "ulimit -Hn 1024") {
		t.Errorf("few descriptors: %+v", f)
	}
	if f := checkLimit(limit(4)); f.Good {
		t.Errorf("no descriptors: %+v", f)
	}
	root := t.TempDir()
	if f := checkLibraries(root); !f.Good || !f.Warn ||
		f.Says != "not installed: libibverbs, librdmacm, the provider of siw, the provider of rxe (--device rxe0)" ||
		f.Do == "" {
		t.Errorf("no libraries: %+v", f)
	}
	if f := checkDevices(root); f.Warn || f.Says != "none" {
		t.Errorf("no devices: %+v", f)
	}
	for _, file := range []string{"usr/lib/aarch64-linux-gnu/libibverbs.so.1", "usr/lib64/librdmacm.so.1", "usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav34.so", "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "sys/class/infiniband/mlx5_0"} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if f := checkLibraries(root); !f.Good || f.Warn {
		t.Errorf("all libraries: %+v", f)
	}
	if f := checkDevices(root); !f.Good || !f.Warn || !strings.Contains(f.Says, "mlx5_0") {
		t.Errorf("a device: %+v", f)
	}
	for _, f := range []Finding{checkNetlink(), checkPayload(), checkLease()} {
		if !f.Good || f.Warn { // the tests of programs need these features, too
			t.Errorf("%+v", f)
		}
	}
}

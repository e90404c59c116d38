package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVIPLCheck: the report lists the devices available to programs with libvipl, and for other
// devices the reason why not.
func TestVIPLCheck(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "vipl.conf")
	if err := os.WriteFile(conf, []byte("a -> vitcp listen 127.0.0.1:0 transfer 40K\nb -> fcvi listen 127.0.0.1:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := good(t, "vipl", "check", "--config", conf)
	for _, want := range []string{"vitcp", "fcvi", "127.0.0.1:", "40960", "65536"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %s in %q", want, r.stdout)
		}
	}
	good(t, "vipl", "check", "--config", conf, "/dev/via_lo")
	fails(t, 1, "no NIC is called", "vipl", "check", "--config", conf, "nothing")
	if err := os.WriteFile(conf, []byte("a -> what\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, 1, "line 1", "vipl", "check", "--config", conf)
	fails(t, 2, "check is wanted", "vipl")
}

package main

import (
	"crypto/sha256"
	"encoding/json"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// TestDescribe: the document lists every module once with its version, and a replaced module by its
// replacement. All belong to a single program, and identifiers are unique.
func TestDescribe(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: "viaduct", Version: "v1.2.3"}, Deps: []*debug.Module{
		{Path: "example.org/a", Version: "v1.0.0"},
		{Path: "example.org/b", Version: "v2.0.0", Replace: &debug.Module{Path: "example.org/c", Version: "v3.0.0"}},
	}}
	d := describe("viaduct", "", sha256.Sum256([]byte("program")), info, time.Unix(0, 0))
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"versionInfo":"v1.2.3"`, "pkg:golang/stdlib@1.26.0", "pkg:golang/example.org/a@v1.0.0", "pkg:golang/example.org/c@v3.0.0", `"created":"1970-01-01T00:00:00Z"`,
		`"algorithm":"SHA256"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	if strings.Contains(string(b), "example.org/b") {
		t.Error("a module that was replaced is listed")
	}
	seen := map[string]bool{d.SPDXID: true}
	for _, p := range d.Packages {
		if seen[p.SPDXID] {
			t.Errorf("%s twice", p.SPDXID)
		}
		seen[p.SPDXID] = true
	}
	for _, r := range d.Relationships {
		if !seen[r.Element] || !seen[r.Related] {
			t.Errorf("%v relates what is not there", r)
		}
	}
	if len(d.Packages) != 4 || len(d.Relationships) != 4 {
		t.Errorf("%d packages, %d relationships", len(d.Packages), len(d.Relationships))
	}
}

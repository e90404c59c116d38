package viaduct_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackaging: the two descriptions of the package list the same files, and every file they take
// from the tree exists.
func TestPackaging(t *testing.T) {
	entries := func(file string) (list []string) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(b), "contents:\n")
		if !ok {
			t.Fatalf("%s has no contents", file)
		}
		for l := range strings.SplitSeq(rest, "\n") {
			l = strings.TrimSpace(l)
			if !strings.HasPrefix(l, "- {src:") {
				break
			}
			list = append(list, l)
		}
		return list
	}
	nfpm, releaser := entries("packaging/nfpm.yaml"), entries(".goreleaser.yaml")
	// goreleaser adds the binary and its own SBOMs without being asked.
	nfpm2 := slices.DeleteFunc(slices.Clone(nfpm), func(l string) bool {
		return strings.Contains(l, "stage/viaduct,") || strings.Contains(l, ".spdx.json")
	})
	if len(nfpm) < 10 || !slices.Equal(nfpm2, releaser) {
		t.Errorf("packaging/nfpm.yaml has\n%s\nand .goreleaser.yaml\n%s", strings.Join(nfpm2, "\n"),
			strings.Join(releaser, "\n"))
	}
	for _, l := range nfpm {
		src, _, _ := strings.Cut(strings.TrimPrefix(l, "- {src: "), ",")
		if strings.HasPrefix(src, "packaging/stage/") {
			continue // packaging/build.sh makes these files
		}
		if found, err := filepath.Glob(src); err != nil || len(found) == 0 {
			t.Errorf("%s: there is no such file", src)
		}
	}
}

// TestPackageSays: both descriptions of the package name run --rdma and recommend the libraries of
// its programs. The builds of both set the version and the commit by variables that exist, because
// the linker ignores other names. Every service reloads by SIGHUP.
func TestPackageSays(t *testing.T) {
	read := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, file := range []string{"packaging/nfpm.yaml", ".goreleaser.yaml"} {
		text := strings.Join(strings.Fields(read(file)), " ")
		for _, want := range []string{`"viaduct run --rdma" gives an RDMA device to programs of libibverbs`,
			"deb: {recommends: [ibverbs-providers, librdmacm1]}", "rpm: {recommends: [libibverbs, librdmacm]}"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %s", file, want)
			}
		}
	}
	vars := read("cmd/viaduct/internal/shell/env.go")
	for _, file := range []string{"packaging/build.sh", ".goreleaser.yaml"} {
		for _, name := range []string{"version", "commit"} {
			if !strings.Contains(read(file), "-X viaduct/cmd/viaduct/internal/shell."+name+"=") ||
				!strings.Contains(vars, "\nvar "+name+" string\n") {
				t.Errorf("%s does not set %s, or package shell has no such variable", file, name)
			}
		}
	}
	units, _ := filepath.Glob("packaging/systemd/*.service")
	for _, unit := range units {
		if !strings.Contains(read(unit), "\nExecReload=/bin/kill -HUP $MAINPID\n") {
			t.Errorf("%s does not reload by SIGHUP", unit)
		}
	}
	if len(units) < 4 {
		t.Errorf("units: %q", units)
	}
}

// TestReleaseNotes: the notes of a version are only the version's section of CHANGELOG.md, or the
// section of unreleased changes if the version has no section.
func TestReleaseNotes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("SKIPPED: there is no bash")
	}
	dir := t.TempDir()
	script, err := os.ReadFile("packaging/notes.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "packaging"), 0o755); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "packaging", "notes.sh"), script, 0o755)
	os.WriteFile(filepath.Join(dir, "CHANGELOG.md"),
		[]byte("# Changelog\n\n## Unreleased\n\n- new: c.\n\n## 1.1.0 (a day)\n\n- new: b,\n  of two lines.\n\n## 1.0.0\n\n- new: a.\n"), 0o644)
	for version, want := range map[string]string{"v1.1.0": "\n- new: b,\n  of two lines.\n", "1.0.0": "\n- new: a.\n", "v2.0.0": "\n- new: c.\n"} {
		out, err := exec.Command(bash, filepath.Join(dir, "packaging", "notes.sh"), version).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s: %v, %q; want %q", version, err, out, want)
		}
	}
	if out, err := exec.Command(bash, "packaging/notes.sh", "v99.0.0").CombinedOutput(); err != nil || len(out) < 100 {
		t.Errorf("of this tree: %v, %d bytes", err, len(out))
	}
}

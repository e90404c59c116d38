package viaduct_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackaging: the two descriptions of the package list the same files, and
// every file that is taken from the tree is there.
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
	// goreleaser adds the binary by itself, and has SBOMs of its own.
	nfpm2 := slices.DeleteFunc(slices.Clone(nfpm), func(l string) bool {
		return strings.Contains(l, "stage/viaduct,") || strings.Contains(l, ".spdx.json")
	})
	if len(nfpm) < 10 || !slices.Equal(nfpm2, releaser) {
		t.Errorf("packaging/nfpm.yaml has\n%s\nand .goreleaser.yaml\n%s", strings.Join(nfpm2, "\n"), strings.Join(releaser, "\n"))
	}
	for _, l := range nfpm {
		src, _, _ := strings.Cut(strings.TrimPrefix(l, "- {src: "), ",")
		if strings.HasPrefix(src, "packaging/stage/") {
			continue // what packaging/build.sh makes
		}
		if found, err := filepath.Glob(src); err != nil || len(found) == 0 {
			t.Errorf("%s: there is no such file", src)
		}
	}
}

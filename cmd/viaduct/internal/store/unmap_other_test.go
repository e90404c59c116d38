//go:build !linux

package store

import (
	"os"
	"testing"
)

// spoilMapping makes unmap fail, by giving it a file that cannot be written to.
func spoilMapping(t *testing.T, m *mapping) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	m.file = f
}

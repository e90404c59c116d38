//go:build !linux

package store

import (
	"os"
	"testing"
)

// spoilMapping makes unmap fail, by giving unmap an unwritable file.
func spoilMapping(t *testing.T, m *mapping) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	m.file = f
}

package store

import (
	"os"
	"testing"
)

// spoilMapping makes unmap fail, by giving unmap pages without a mapping.
func spoilMapping(t *testing.T, m *mapping) {
	mapped := mapping{pages: m.pages}
	t.Cleanup(func() { mapped.unmap() })
	m.pages = make([]byte, os.Getpagesize())
}

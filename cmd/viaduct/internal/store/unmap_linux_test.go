package store

import (
	"os"
	"testing"
)

// spoilMapping makes unmap fail, by giving it pages that were not mapped.
func spoilMapping(t *testing.T, m *mapping) {
	mapped := mapping{pages: m.pages}
	t.Cleanup(func() { mapped.unmap() })
	m.pages = make([]byte, os.Getpagesize())
}

package shm

import (
	"testing"
	"unsafe"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) {
	process.grown.armed = true // no timer shrinks the rings of the tests
	testkit.Main(m)
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

package shm

import (
	"testing"
	"unsafe"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

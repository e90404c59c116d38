//go:build !linux

package transport

// slabsReused reports whether unused slabs cost no memory, so that the pool keeps unused slabs.
const slabsReused = false

// mapLazily returns ordinary memory. Most systems also allocate ordinary memory at the first
// access.
func mapLazily(n int) ([]byte, error) { return make([]byte, n), nil }

func giveBack([]byte) {}

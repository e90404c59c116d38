//go:build !linux

package transport

// slabsReused reports whether unused slabs cost no memory, so that the pool keeps them.
const slabsReused = false

// mapLazily returns ordinary memory, which most systems also allocate at the first access.
func mapLazily(n int) ([]byte, error) { return make([]byte, n), nil }

func giveBack([]byte) {}

//go:build !perturb

package perturb

import "sync"

// On reports whether this build pauses.
const On = false

// A Mutex is a [sync.Mutex].
type Mutex = sync.Mutex

// An RWMutex is a [sync.RWMutex].
type RWMutex = sync.RWMutex

// Point does nothing in this build.
func Point() {}

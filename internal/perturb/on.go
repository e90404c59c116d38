//go:build perturb

package perturb

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// On reports whether this build pauses.
const On = true

// longest is the longest pause.
const longest = 3 * time.Millisecond

var (
	oneIn = number("PERTURB_ONE_IN", 300)
	seed  = number("PERTURB_SEED", uint64(time.Now().UnixNano()))
	count atomic.Uint64
	said  sync.Once
)

func number(name string, otherwise uint64) uint64 {
	n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	if err != nil || n == 0 {
		return otherwise
	}
	return n
}

// Point pauses now and then. Half of the pauses only let other goroutines run; the other half stop
// the caller for a time. The pause is in real time even if a test has a separate clock, because the
// test does not measure the pause.
func Point() {
	x := mix(seed + count.Add(1))
	if x%oneIn != 0 {
		return
	}
	said.Do(func() { fmt.Fprintf(os.Stderr, "perturb: PERTURB_SEED=%d PERTURB_ONE_IN=%d\n", seed, oneIn) })
	x = mix(x)
	if x&1 == 0 {
		for range x >> 1 % 64 {
			runtime.Gosched()
		}
		return
	}
	pause(time.Duration(x >> 1 % uint64(longest)))
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A Mutex is a [sync.Mutex] with pauses.
type Mutex struct{ mu sync.Mutex }

// Lock locks m.
func (m *Mutex) Lock() {
	Point()
	m.mu.Lock()
	Point()
}

// TryLock locks m if it is free.
func (m *Mutex) TryLock() bool {
	Point()
	ok := m.mu.TryLock()
	Point()
	return ok
}

// Unlock unlocks m.
func (m *Mutex) Unlock() {
	Point()
	m.mu.Unlock()
	Point()
}

// An RWMutex is a [sync.RWMutex] with pauses.
type RWMutex struct{ mu sync.RWMutex }

// Lock locks m for writing.
func (m *RWMutex) Lock() {
	Point()
	m.mu.Lock()
	Point()
}

// Unlock unlocks m.
func (m *RWMutex) Unlock() {
	m.mu.Unlock()
	Point()
}

// RLock locks m for reading.
func (m *RWMutex) RLock() {
	Point()
	m.mu.RLock()
	Point()
}

// RUnlock ends RLock.
func (m *RWMutex) RUnlock() {
	m.mu.RUnlock()
	Point()
}

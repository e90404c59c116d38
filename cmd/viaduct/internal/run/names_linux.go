//go:build linux && (amd64 || arm64)

package run

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// Names are the addresses that a carried socket shows.
type names struct {
	local, remote netip.AddrPort
	family        int // of the addresses; 0 stands for the socket's own
}

// keptNames is how many sockets keep their names after the end of their relay:
// the program may ask later, and nothing tells when it closes.
const keptNames = 1024

// A nameTable holds names by socket cookie. A cookie is never used twice.
type nameTable struct {
	used atomic.Bool // something was ever put in: until then calls need not look

	mu    sync.Mutex
	m     map[uint64]names // guarded by mu
	ended []endedNames     // guarded by mu; oldest first
}

// An endedNames is what a socket showed when its relay ended. The program may have connected it
// again since.
type endedNames struct {
	cookie uint64
	names  names
}

func (t *nameTable) set(cookie uint64, n names) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[uint64]names{}
	}
	t.m[cookie] = n
	t.used.Store(true)
}

func (t *nameTable) get(cookie uint64) (names, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.m[cookie]
	return n, ok
}

func (t *nameTable) remove(cookie uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, cookie)
}

// end lets go of a socket's names some time.
func (t *nameTable) end(cookie uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended = append(t.ended, endedNames{cookie, t.m[cookie]}); len(t.ended) > keptNames {
		if old := t.ended[0]; t.m[old.cookie] == old.names {
			delete(t.m, old.cookie)
		}
		t.ended = t.ended[1:]
	}
}

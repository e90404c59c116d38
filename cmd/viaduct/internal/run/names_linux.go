//go:build linux && (amd64 || arm64)

package run

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// names are the addresses a carried socket shows.
type names struct {
	local, remote netip.AddrPort
	family        int // family of the addresses; 0 means that of the socket
}

// keptNames is how many sockets keep their names after the end of their relay. The program may
// still ask for the names, and no event reports that the program has closed the socket.
const keptNames = 1024

// A nameTable holds names by socket cookie. A cookie is never used twice.
type nameTable struct {
	used atomic.Bool // set with the first entry; without entries, calls need no look-up

	mu    sync.Mutex
	m     map[uint64]names // guarded by mu
	ended []endedNames     // guarded by mu; oldest first
}

// An endedNames holds the names of a socket whose relay has ended. The program may have connected
// the socket again since.
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

// end marks a socket's names as removable. They are removed when keptNames other sockets were
// marked.
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

package shm

import "sync"

// process is what the rings of the process share. The zero value is ready for use.
var process struct {
	rings account // the memory of all rings
	grown large
	arena area // the memory of Alloc
	lents lents
}

// lents has the mapped areas of other processes, by inode. Each area is mapped once, whatever the
// number of connections.
type lents struct {
	mu   sync.Mutex
	list map[uint64]*Lent // guarded by mu
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
	"viaduct/internal/regmem"
	"viaduct/iwarp"
)

// A memory is the address space of a process of the program. Its descriptor refers to the address
// space for good: after the process has ended or has executed another program, nothing can be read
// or written, and a later process with the same number is not touched.
type memory struct {
	fd   int
	maps *mappings
	uses int      // guarded by memories.mu
	by   *process // nil if the memory cannot be accessed by the process number
}

var (
	errFault = errors.New("rdma: the program has no such memory")
	errGone  = errors.New("rdma: the process has ended, or executes another program")
)

// long is the least number of bytes for which access by the process number is faster, because such
// access makes no intermediate copy.
const long = 8 << 10

func (m *memory) ReadAt(p []byte, addr uint64) error {
	if len(p) >= long && m.by != nil {
		at := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)}}
		if m.by.read(p, at[:]) == len(p) {
			return nil
		}
	}
	return m.move(unix.Pread, p, addr)
}

func (m *memory) WriteAt(p []byte, addr uint64) error {
	if len(p) >= long && m.by != nil && m.by.write(p, addr) {
		return nil
	}
	if !m.maps.mayWrite(addr, uint64(len(p))) {
		return m.absent()
	}
	return m.move(unix.Pwrite, p, addr)
}

// absent returns the error for missing memory: errGone if the address space is gone, errFault if
// only the range is missing.
func (m *memory) absent() error {
	var b [1]byte
	if n, err := unix.Pread(m.fd, b[:], 0); n == 0 && err == nil {
		return errGone
	}
	return errFault
}

// move reads or writes all of p. The error is errFault or errGone.
func (m *memory) move(call func(fd int, p []byte, at int64) (int, error), p []byte, addr uint64) error {
	for len(p) > 0 {
		n, err := call(m.fd, p, int64(addr))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return errFault
		case n == 0: // the kernel's result for an address space that is gone
			return errGone
		}
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

// maxMemories bounds the memories kept for further regions, because each has a descriptor.
const maxMemories = 16

// memories caches the memory of each thread with registered regions in a context. The memories of
// threads of a process refer to the same address space.
type memories struct {
	processes *processes // the processes that are accessed by number; nil: none is

	mu    sync.Mutex
	byTID map[int]*memory // guarded by mu
}

// of returns the memory of the calling process. If the memory is not cached, of opens the memory.
// addr must be mapped in the process.
func (ms *memories) of(c *notify.Call, addr uint64) (*memory, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m := ms.byTID[c.TID]; m != nil {
		var b [1]byte
		// A thread with the number of an ended thread may belong to another process. The read fails
		// if the process of the memory has ended.
		if _, err := unix.Pread(m.fd, b[:], int64(addr)); err == nil {
			return m, nil
		}
		delete(ms.byTID, c.TID)
		ms.dropLocked(m)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", c.TID), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	maps, err := openMappings(c.TID)
	if err == nil && !c.Valid() {
		maps.close()
		err = notify.ErrGone
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if len(ms.byTID) >= maxMemories { // most are those of threads that have ended
		ms.forgetLocked()
	}
	if ms.byTID == nil {
		ms.byTID = map[int]*memory{}
	}
	m := &memory{fd: fd, maps: maps, uses: 1}
	if ms.processes != nil {
		m.by = ms.processes.open(c)
	}
	ms.byTID[c.TID] = m
	return m, nil
}

func (ms *memories) use(m *memory) {
	ms.mu.Lock()
	m.uses++
	ms.mu.Unlock()
}

func (ms *memories) drop(m *memory) {
	ms.mu.Lock()
	ms.dropLocked(m)
	ms.mu.Unlock()
}

func (ms *memories) dropLocked(m *memory) {
	if m.uses--; m.uses == 0 {
		unix.Close(m.fd)
		m.maps.close()
		if m.by != nil {
			ms.processes.drop(m.by)
		}
	}
}

func (ms *memories) close() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.forgetLocked()
}

// forgetLocked empties the cache. Memories in use by regions stay open.
func (ms *memories) forgetLocked() {
	for tid, m := range ms.byTID {
		delete(ms.byTID, tid)
		ms.dropLocked(m)
	}
}

// A region is registered memory of the program.
type region struct {
	x      *context
	iw     *iwarp.MemoryRegion
	mem    *memory
	space  *space
	pd     *domain
	base   uint64 // address that the program and its peers use for the first byte
	length uint64
	access uint32
	once   sync.Once

	windows atomic.Int32 // number of memory windows bound to it

	mu     sync.Mutex
	closed bool          // guarded by mu
	holds  int           // guarded by mu; copies in progress over links
	free   chan struct{} // guarded by mu; closed by the last copy after the region was closed
}

// hold keeps the region's memory registered until letGo. It returns false if the region is closed.
func (r *region) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.holds++
	}
	return !r.closed
}

func (r *region) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds--; r.holds == 0 && r.closed {
		close(r.free)
	}
}

// endHolds closes the region for further copies, and waits for the copies in progress.
func (r *region) endHolds() {
	r.mu.Lock()
	r.closed = true
	r.free = make(chan struct{})
	busy := r.holds > 0
	r.mu.Unlock()
	if busy {
		<-r.free
	}
}

func (k *command) regMR() {
	// The right to atomic operations is accepted, as by the kernel's driver, although the device
	// has none.
	const known = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic | abi.AccessMWBind | 0x3ff00000 // 0x3ff00000: optional hints
	x := k.x
	q := abi.ParseRegMR(&k.Request)
	switch {
	case q.Start%pageSize != q.HCAVA%pageSize, q.Access&^known != 0,
		q.Access&(abi.AccessRemoteWrite|abi.AccessRemoteAtomic) != 0 && q.Access&abi.AccessLocalWrite == 0,
		q.Length == 0, q.Start+q.Length < q.Start, q.HCAVA+q.Length < q.HCAVA, q.Start+q.Length > 1<<56:
		k.fail(unix.EINVAL)
		return
	case q.Length > maxMRSize:
		k.fail(unix.ENOMEM)
		return
	}
	x.mu.Lock()
	pd := x.pds.m[q.PD]
	if pd != nil {
		pd.users++
	}
	x.mu.Unlock()
	if pd == nil {
		k.fail(unix.EINVAL)
		return
	}
	if x.roce != nil {
		q.Key = 0 // the lowest byte is for memory windows, see rxe.Space
	}
	r, err := x.register(k, pd, q)
	for err == nil && x.roce != nil && x.roce.space.HasKey(r.iw.STag()) {
		taken := r
		r, err = x.register(k, pd, q)
		taken.iw.Close()
		x.mems.drop(taken.mem)
	}
	if err != nil {
		x.mu.Lock()
		pd.users--
		x.mu.Unlock()
		k.fail(errnoOf(err))
		return
	}
	k.lackOfRights(q.Access)
	stag := r.iw.STag()
	x.regions.Store(stag, r)
	x.mu.Lock()
	h, ok := x.mrs.add(r)
	x.mu.Unlock()
	if !ok {
		r.close()
		k.fail(unix.ENOMEM)
		return
	}
	if !k.answer(abi.Words(h, stag, stag), abi.Words(stag, 0)) {
		x.mu.Lock()
		x.mrs.remove(h)
		x.mu.Unlock()
		r.close()
	}
}

func (x *context) register(k *command, pd *domain, q abi.MRRequest) (*region, error) {
	mem, err := x.mems.of(k.Call, k.at)
	if err != nil {
		return nil, unix.EFAULT
	}
	if err := mapped(mem, q); err != nil {
		return nil, err
	}
	var a iwarp.Access
	if q.Access&abi.AccessRemoteRead != 0 {
		a |= iwarp.RemoteRead
	}
	if q.Access&abi.AccessRemoteWrite != 0 {
		a |= iwarp.RemoteWrite
	}
	x.mems.use(mem)
	s := &space{mem, q.Start - q.HCAVA, pd}
	mr, err := pd.iw.RegisterSpace(s, q.HCAVA, q.Length, a, iwarp.RegionOptions{Key: q.Key, KeySet: true})
	if err != nil {
		x.mems.drop(mem)
		return nil, unix.ENOMEM
	}
	return &region{x: x, iw: mr, mem: mem, space: s, pd: pd, base: q.HCAVA, length: q.Length, access: q.Access}, nil
}

// mapped returns an error unless all memory of a registration is mapped with the needed rights,
// because the kernel's pinning would fail as well.
func mapped(mem *memory, q abi.MRRequest) error {
	const writes = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteAtomic | abi.AccessMWBind
	if !mem.maps.hold(q.Start, q.Length, q.Access&writes != 0) {
		return unix.EFAULT
	}
	// A file may be shorter than the mapping, and the mapping of a device may not be memory.
	var b [1]byte
	for _, at := range []uint64{q.Start, q.Start + q.Length - 1} {
		if mem.ReadAt(b[:], at) != nil {
			return unix.EFAULT
		}
	}
	return nil
}

// A space is the memory of a region as seen by the streams.
type space struct {
	mem *memory
	by  uint64 // added to an address on the wire, gives the program's address
	pd  *domain
}

var _ regmem.Space = (*space)(nil)

func (s *space) ReadAt(p []byte, addr uint64) error  { return s.judge(s.mem.ReadAt(p, addr+s.by)) }
func (s *space) WriteAt(p []byte, addr uint64) error { return s.judge(s.mem.WriteAt(p, addr+s.by)) }

// judge resets the streams of the domain if the memory is gone, before the streams see the error. A
// killed process loses the memory before the descriptors are closed. The peer of a killed program
// must see the end of the connection, not a Terminate that blames a request of the peer.
func (s *space) judge(err error) error {
	if err == errGone {
		s.pd.abort()
	}
	return err
}

// close ends the registration. It waits until no transfer uses the region any more. Further calls
// do nothing.
func (r *region) close() {
	r.once.Do(func() {
		r.x.regions.Delete(r.iw.STag())
		r.endHolds()
		r.iw.Close()
		r.x.mems.drop(r.mem)
		r.x.mu.Lock()
		r.pd.users--
		r.x.mu.Unlock()
	})
}

func (k *command) deregMR() {
	x := k.x
	x.mu.Lock()
	h := k.Body.U32(0)
	r := x.mrs.m[h]
	bound := r != nil && r.windows.Load() > 0
	if !bound {
		x.mrs.remove(h)
	}
	x.mu.Unlock()
	switch {
	case r == nil:
		k.fail(unix.ENOENT)
		return
	case bound:
		k.fail(unix.EINVAL)
		return
	}
	x.repeats.begin(k.Call, k.raw)
	x.later.Go(func() { // close may wait for transfers
		r.close()
		k.answer()
	})
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
	"viaduct/iwarp"
)

// A memory is the address space of one of the program's processes. Its
// descriptor names that space for good: when the process ends or executes
// another program there is nothing left to read or write, and a process that
// gets its number later is not touched.
type memory struct {
	fd   int
	uses int // guarded by memories.mu
}

var errFault = errors.New("rdma: the program has no such memory")

// ReadAt and WriteAt make a memory an [iwarp.Space].
func (m *memory) ReadAt(p []byte, addr uint64) error {
	for len(p) > 0 {
		n, err := unix.Pread(m.fd, p, int64(addr))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return errFault
		}
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

func (m *memory) WriteAt(p []byte, addr uint64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(m.fd, p, int64(addr))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return errFault
		}
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

// maxMemories is how many are kept for further regions: each is a descriptor.
const maxMemories = 16

// memories are those of the processes that use a context: one, unless they fork.
type memories struct {
	mu    sync.Mutex
	byTID map[int]*memory // guarded by mu
}

// of opens the memory of a call's process, in which there is something at addr.
func (ms *memories) of(c *notify.Call, addr uint64) (*memory, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m := ms.byTID[c.TID]; m != nil {
		var b [1]byte
		// A thread that took the number of one that ended may be of another process;
		// the memory of a process that has ended can't be read.
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
	if !c.Valid() {
		unix.Close(fd)
		return nil, notify.ErrGone
	}
	if len(ms.byTID) >= maxMemories { // of threads that have ended, for the greater part
		ms.forgetLocked()
	}
	if ms.byTID == nil {
		ms.byTID = map[int]*memory{}
	}
	m := &memory{fd: fd, uses: 1}
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
	}
}

func (ms *memories) close() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.forgetLocked()
}

// forgetLocked drops what is kept for further regions; the regions keep theirs.
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
	pd     *domain
	base   uint64 // address by which the program and its peers name the first byte
	length uint64
	access uint32
	once   sync.Once
}

func (k *command) regMR() {
	// As the kernel's driver, with the right to atomic operations, which the device has not.
	const known = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic | abi.AccessMWBind | 0x3ff00000 // and hints
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
	r, err := x.register(k, pd, q)
	if err != nil {
		x.mu.Lock()
		pd.users--
		x.mu.Unlock()
		k.fail(errnoOf(err))
		return
	}
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
	mr, err := pd.iw.RegisterSpace(&shifted{mem, q.Start - q.HCAVA}, q.HCAVA, q.Length, a, iwarp.RegionOptions{Key: q.Key, KeySet: true})
	if err != nil {
		x.mems.drop(mem)
		return nil, unix.ENOMEM
	}
	return &region{x: x, iw: mr, mem: mem, pd: pd, base: q.HCAVA, length: q.Length, access: q.Access}, nil
}

// mapped looks at the first and the last byte of what is to be registered: a
// program that registers what is not there is told at once.
func mapped(mem *memory, q abi.MRRequest) error {
	var b [1]byte
	for _, at := range []uint64{q.Start, q.Start + q.Length - 1} {
		if mem.ReadAt(b[:], at) != nil {
			return unix.EFAULT
		}
	}
	return nil
}

// shifted is memory whose addresses on the wire differ from the program's.
type shifted struct {
	*memory
	by uint64 // what is added to an address
}

func (s *shifted) ReadAt(p []byte, addr uint64) error  { return s.memory.ReadAt(p, addr+s.by) }
func (s *shifted) WriteAt(p []byte, addr uint64) error { return s.memory.WriteAt(p, addr+s.by) }

// close waits until no transfer uses the region any more.
func (r *region) close() {
	r.once.Do(func() {
		r.x.regions.Delete(r.iw.STag())
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
	x.mrs.remove(h)
	x.mu.Unlock()
	if r == nil {
		k.fail(unix.ENOENT)
		return
	}
	x.repeats.begin(k.Call, k.raw)
	x.later.Go(func() { // it may wait for transfers
		r.close()
		k.answer()
	})
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// An rxeContext holds the objects of a RoCE device's context. The tables are guarded by context.mu.
type rxeContext struct {
	space *rxe.Space
	cqs   table[*rxeCQ]
	qps   table[*rxeQP]
	srqs  table[*rxeSRQ]
	ahs   table[*rxeAH]
	mws   table[*rxeMW]
}

func newRXEContext(d *device) *rxeContext {
	r := &rxeContext{space: rxe.NewSpace(d.port)}
	r.cqs.most, r.cqs.held = maxCQ, &d.held.cqs
	r.qps.most, r.qps.held = maxQP, &d.held.qps
	r.srqs.most, r.srqs.held = maxSRQ, &d.held.srqs
	r.ahs.most, r.ahs.held = maxAH, &d.held.ahs
	r.mws.most, r.mws.held = maxMW, &d.held.mws
	return r
}

// close closes all objects. No command may be using the context.
func (r *rxeContext) close(x *context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, q := range r.qps.m {
		q.Close()
		q.async.retire()
	}
	for _, q := range r.srqs.m {
		q.Close()
	}
	for _, q := range r.cqs.m {
		q.Close()
	}
	for _, w := range r.mws.m {
		r.space.CloseWindow(w.Window)
	}
	r.qps.removeAll()
	r.srqs.removeAll()
	r.cqs.removeAll()
	r.ahs.removeAll()
	r.mws.removeAll()
}

// rxeHandlers serve the commands of the rxe provider.
var rxeHandlers = map[abi.Command]func(*command){
	abi.GetContext:  (*command).rxeGetContext,
	abi.OpenContext: (*command).rxeOpenContext,
	abi.CreateCQ:    (*command).rxeCreateCQ,
	abi.CreateCQEx:  (*command).rxeCreateCQEx,
	abi.ResizeCQ:    (*command).rxeResizeCQ,
	abi.ReqNotifyCQ: (*command).rxeReqNotifyCQ,
	abi.DestroyCQ:   (*command).rxeDestroyCQ,
	abi.CreateQP:    (*command).rxeCreateQP,
	abi.CreateQPEx:  (*command).rxeCreateQPEx,
	abi.QueryQP:     (*command).rxeQueryQP,
	abi.ModifyQP:    (*command).rxeModifyQP,
	abi.DestroyQP:   (*command).rxeDestroyQP,
	abi.PostSend:    (*command).rxePostSend,
	abi.AttachMcast: (*command).rxeAttachMcast,
	abi.DetachMcast: (*command).rxeDetachMcast,
	abi.CreateSRQ:   (*command).rxeCreateSRQ,
	abi.CreateXSRQ:  (*command).rxeCreateXSRQ,
	abi.ModifySRQ:   (*command).rxeModifySRQ,
	abi.QuerySRQ:    (*command).rxeQuerySRQ,
	abi.DestroySRQ:  (*command).rxeDestroySRQ,
	abi.CreateAH:    (*command).rxeCreateAH,
	abi.DestroyAH:   (*command).rxeDestroyAH,
	abi.AllocMW:     (*command).rxeAllocMW,
	abi.DeallocMW:   (*command).rxeDeallocMW,
}

// rxeGetContext is getContext without the values for siw's provider.
func (k *command) rxeGetContext() {
	if k.x.opened.Load() {
		k.fail(unix.EINVAL)
		return
	}
	k.x.opened.Store(k.giveAsync(func(n uint32) bool { return k.answer(abi.Words(n, compVectors)) }))
}

func (k *command) rxeOpenContext() {
	if k.x.opened.Load() {
		k.fail(unix.EINVAL)
		return
	}
	k.x.opened.Store(k.answer(abi.Words(compVectors, abi.OptionalAccess, 0)))
}

// rxeErrno converts an error of package rxe to the number the kernel's driver returns.
func rxeErrno(err error) unix.Errno {
	if err == rxe.ErrMemory {
		return unix.ENOMEM
	}
	return unix.EINVAL
}

// rxeObject returns the object with handle h; ok is false if there is none.
func rxeObject[T any](x *context, t *table[T], h uint32) (v T, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	v, ok = t.m[h]
	return v, ok
}

// rxeTake removes the object with handle h from the table t. If there is none, or if busy returns
// true for an object in use, rxeTake answers the command with an error and returns false. busy is
// called with context.mu locked.
func rxeTake[T any](k *command, t *table[T], h uint32, busy func(T) bool) (v T, ok bool) {
	x := k.x
	x.mu.Lock()
	v, ok = t.m[h]
	used := ok && busy(v)
	if ok && !used {
		t.remove(h)
	}
	x.mu.Unlock()
	switch {
	case !ok:
		k.fail(unix.ENOENT)
	case used:
		k.fail(unix.EBUSY)
	default:
		return v, true
	}
	return v, false
}

// A domainMemory is the memory that requests of a protection domain may access. It implements
// [rxe.Memory].
type domainMemory struct {
	x  *context
	pd *domain
}

var _ rxe.Memory = domainMemory{}

// Find implements [rxe.Memory].
func (m domainMemory) Find(key uint32, addr, n uint64, need uint32) rxe.Region {
	v, ok := m.x.regions.Load(key)
	if !ok {
		return nil
	}
	r := v.(*region)
	if r.pd != m.pd || addr < r.base || addr-r.base > r.length || n > r.length-(addr-r.base) ||
		r.access&need != need || !r.hold() {
		return nil
	}
	return rxeRegion{r}
}

// An rxeRegion adapts a region to [rxe.Region].
type rxeRegion struct{ *region }

var _ rxe.Region = rxeRegion{}

func (r rxeRegion) ReadAt(p []byte, addr uint64) error {
	return rxeMemoryError(r.space.ReadAt(p, addr))
}
func (r rxeRegion) WriteAt(p []byte, addr uint64) error {
	return rxeMemoryError(r.space.WriteAt(p, addr))
}
func (r rxeRegion) Place(addr uint64) (rxe.Process, uint64) { return r.mem, addr + r.space.by }
func (r rxeRegion) Hold() bool                              { return r.hold() }
func (r rxeRegion) Release()                                { r.letGo() }
func (r rxeRegion) Bound(n int)                             { r.windows.Add(int32(n)) }

func rxeMemoryError(err error) error {
	if err == errGone {
		return rxe.ErrGone
	}
	return err
}

// rxeRings adapts an arena to [rxe.Arena].
type rxeRings struct{ *arena }

func (a rxeRings) Ring(n int) ([]byte, int64, error) { return a.ring(n) }
func (a rxeRings) Drop(mem []byte, key int64)        { a.drop(mem, key) }

//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
	"viaduct/iwarp"
)

// A context is an open uverbs file. It holds the file's objects, each kind with its own handles.
type context struct {
	s     *Service
	dev   *device
	pid   uint32 // number of the process that opened the file
	id    inode  // inode of the stand-in
	arena *arena // the stand-in, a memfd with the rings
	// unwatch ends the watch of closes of the stand-in; nil without one.
	unwatch func()
	mems    memories
	roce    *rxeContext // nil unless the device is a RoCE device
	async   *channel    // nil before get_context or alloc_async; guarded by mu

	opened atomic.Bool // the program has used get_context
	writes atomic.Bool // the program was told to write its commands
	// protected is set when calls of the process restart after signals.
	protected atomic.Bool

	repeats repeats

	mu      sync.Mutex
	pds     table[*domain]
	mrs     table[*region]
	cqs     table[*completionQueue]
	qps     table[*queuePair]
	srqs    table[*sharedQueue]
	regions sync.Map           // *region by key
	chs     map[inode]*channel // guarded by mu; completion channels
	chsMost int                // guarded by mu; the size of chs at which closed channels are removed

	// Commands that Serve or a later goroutine is answering. release waits for both.
	calls, later sync.WaitGroup
	// ends counts streams that end after their queue pairs.
	ends sync.WaitGroup
}

// A table assigns handles to the objects of one kind. context.mu guards it.
type table[T any] struct {
	m    map[uint32]T
	next uint32
	most int32         // most objects of this kind that the device may have
	held *atomic.Int32 // objects of this kind in all contexts
}

// add adds an object and returns its handle. ok is false if the device has as many objects of this
// kind as allowed.
func (t *table[T]) add(v T) (h uint32, ok bool) {
	if t.held.Add(1) > t.most {
		t.held.Add(-1)
		return 0, false
	}
	if t.m == nil {
		t.m = map[uint32]T{}
	}
	for {
		h := t.next
		t.next = (t.next + 1) & 0x7fffffff
		if _, used := t.m[h]; !used {
			t.m[h] = v
			return h, true
		}
	}
}

// remove frees a handle, if it is in use.
func (t *table[T]) remove(h uint32) {
	if _, ok := t.m[h]; ok {
		delete(t.m, h)
		t.held.Add(-1)
	}
}

// removeAll frees all handles.
func (t *table[T]) removeAll() {
	t.held.Add(-int32(len(t.m)))
	t.m = nil
}

// A domain is a protection domain.
type domain struct {
	iw    *iwarp.ProtectionDomain
	users int // guarded by context.mu

	mu      sync.Mutex
	streams map[*iwarp.QueuePair]bool // guarded by mu; streams of its queue pairs until they are closed
}

func newDomain(d *device) *domain {
	return &domain{iw: d.iw.NewPD(), streams: map[*iwarp.QueuePair]bool{}}
}

func (d *domain) add(iw *iwarp.QueuePair) {
	d.mu.Lock()
	d.streams[iw] = true
	d.mu.Unlock()
}

func (d *domain) remove(iw *iwarp.QueuePair) {
	d.mu.Lock()
	delete(d.streams, iw)
	d.mu.Unlock()
}

// abort resets the streams. It does not wait until the streams have ended.
func (d *domain) abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for iw := range d.streams {
		iw.Abort()
	}
}

// openUverbs installs a stand-in for a uverbs file in the program.
func (s *Service) openUverbs(c *notify.Call, d *device, flags int) error {
	a, theirs, err := newArena(&s.rings)
	if err != nil {
		return err
	}
	defer unix.Close(theirs)
	id, err := inodeOf(theirs)
	if err != nil {
		a.close()
		return err
	}
	x := newContext(s, d, a)
	x.id, x.pid, x.unwatch = id, pidOf(c), s.watchFile(theirs)
	s.explainVendor(c.TID)
	x.protect(c.TID)
	s.add(id, x)
	s.place(c, theirs, flags)
	return nil
}

// openIn reports whether the process of a call has a descriptor of the context. It looks at number
// first.
func (x *context) openIn(c *notify.Call, number int) bool {
	at := func(name string) bool {
		var st unix.Stat_t
		return unix.Stat(name, &st) == nil && inode{uint64(st.Dev), st.Ino} == x.id
	}
	has := at(procFD(c.TID, number))
	if !has { // the process got the descriptor from another one, or has moved it
		dir := fmt.Sprintf("/proc/%d/fd/", c.TID)
		fds, _ := os.ReadDir(dir)
		has = slices.ContainsFunc(fds, func(e os.DirEntry) bool { return at(dir + e.Name()) })
	}
	return has && c.Valid()
}

func newContext(s *Service, d *device, a *arena) *context {
	x := &context{s: s, dev: d, arena: a, chs: map[inode]*channel{}}
	x.mems.processes = &s.processes
	x.pds.most, x.pds.held = maxPD, &d.held.pds
	x.mrs.most, x.mrs.held = maxMR, &d.held.mrs
	x.cqs.most, x.cqs.held = maxCQ, &d.held.cqs
	x.qps.most, x.qps.held = maxQP, &d.held.qps
	x.srqs.most, x.srqs.held = maxSRQ, &d.held.srqs
	if d.is == roce {
		x.roce = newRXEContext(d)
	}
	return x
}

func (x *context) stat() unix.Stat_t { return charStat(x.dev.found.UverbsDev) }

func (x *context) orphaned() bool { return x.arena.orphaned() }

// serve implements file.
func (x *context) serve(c *notify.Call, fd int) {
	x.calls.Add(1)
	defer x.calls.Done()
	x.s.known.keep(int(int32(c.Args[0])), fd, x) // the program, and with it the context, may end from here on
	x.call(c)
}

// call serves a call, which the caller has counted in calls.
func (x *context) call(c *notify.Call) {
	if c.Nr == unix.SYS_IOCTL {
		x.ioctl(c)
	} else {
		x.write(c)
	}
}

// ioctl serves a command of a library that does not use write. A library with both forms asks for
// the form to use for a context. The answer is write, because each command of write is a single
// piece. On a duplicate outside of the reserved range, only ioctl works, so that ioctl is always
// accepted there.
func (x *context) ioctl(c *notify.Call) {
	mayWrite := x.s.numbers.has(int(int32(c.Args[0])))
	if uint32(c.Args[1]) != abi.IoctlVerbs || mayWrite && x.writes.Load() {
		c.Return(0, unix.ENOTTY)
		return
	}
	v, err := abi.ParseIoctl(x.dev.is.driver.ID, c.Args[2], func(addr uint64, b []byte) error {
		_, err := c.ReadMem(addr, b)
		return err
	})
	switch {
	case err != nil:
		c.Return(0, parseErrno(err))
	case v.Asks && mayWrite:
		x.writes.Store(true)
		c.Return(0, unix.ENOTTY)
	case v.Asks:
		c.Return(0, unix.ENOSPC) // the error means yes: the ioctl accepts write commands
	default:
		x.do(&command{Call: c, Request: v.Request, x: x, raw: v.Key(), at: c.Args[2], ioctl: v})
	}
}

// write serves a command.
func (x *context) write(c *notify.Call) {
	n := c.Args[2]
	if n > abi.MaxRequest {
		c.Return(0, unix.EINVAL)
		return
	}
	b := make([]byte, n)
	if _, err := c.ReadMem(c.Args[1], b); err != nil {
		c.Return(0, unix.EFAULT)
		return
	}
	r, err := abi.ParseRequest(b)
	if err != nil {
		c.Return(0, parseErrno(err))
		return
	}
	x.do(&command{Call: c, Request: r, x: x, raw: b, at: c.Args[1], count: int64(n)})
}

func (x *context) do(k *command) {
	// Two doorbell calls look the same, so that a repetition cannot be recognized. It does no harm.
	if k.Command != abi.PostSend && x.repeats.give(k.Call, k.raw) {
		return
	}
	switch k.Command {
	case abi.CreateCQ, abi.CreateCQEx, abi.CreateQP, abi.CreateQPEx:
		x.protect(k.TID) // the handler may have been set since
	}
	h := x.dev.is.handlers[k.Command]
	if h == nil {
		h = handlers[k.Command]
	}
	if h == nil {
		k.lacks(commandLacks[k.Command])
		k.fail(unix.EOPNOTSUPP)
		return
	}
	h(k)
}

func parseErrno(err error) unix.Errno {
	switch err {
	case abi.ErrShort:
		return unix.ENOSPC
	case abi.ErrCommand:
		return unix.EOPNOTSUPP
	case abi.ErrProtocol:
		return unix.EPROTONOSUPPORT
	case abi.ErrFault:
		return unix.EFAULT
	}
	return unix.EINVAL
}

// A command waits for its answer.
type command struct {
	*notify.Call
	abi.Request
	x     *context
	raw   []byte     // the command as it was written
	at    uint64     // address of the command in the program's memory
	count int64      // the result of the call if the command succeeds
	ioctl *abi.Ioctl // nil if the command was written
}

func (k *command) fail(e unix.Errno) {
	k.x.repeats.answer(k.Call, repeat{command: k.raw, errno: e})
}

// answer writes the response, of core and provider, and ends the command. If the response cannot be
// written, answer returns false, and the caller must undo the command.
func (k *command) answer(parts ...abi.Body) bool {
	a := repeat{command: k.raw, value: k.count}
	if k.ioctl != nil {
		parts = append(parts, nil, nil)
		a.response = k.ioctl.Answer(parts[0], parts[1])
		return k.x.repeats.answer(k.Call, a)
	}
	out := slices.Concat(parts...)
	if out = out[:min(len(out), k.Room)]; len(out) > 0 {
		a.response = []abi.Put{{At: k.Response, Bytes: out}}
	}
	return k.x.repeats.answer(k.Call, a)
}

var handlers = map[abi.Command]func(*command){
	abi.GetContext:        (*command).getContext,
	abi.OpenContext:       (*command).openContext,
	abi.AllocAsync:        (*command).allocAsync,
	abi.QueryGID:          (*command).queryGID,
	abi.QueryGIDTable:     (*command).queryGIDTable,
	abi.QueryDevice:       func(k *command) { k.answer(k.x.dev.is.queryDevice(k.x.dev)) },
	abi.QueryDeviceEx:     (*command).queryDeviceEx,
	abi.QueryPort:         (*command).queryPort,
	abi.AllocPD:           (*command).allocPD,
	abi.DeallocPD:         (*command).deallocPD,
	abi.RegMR:             (*command).regMR,
	abi.DeregMR:           (*command).deregMR,
	abi.CreateCompChannel: (*command).createCompChannel,
	abi.CreateCQ:          (*command).createCQ,
	abi.DestroyCQ:         (*command).destroyCQ,
	abi.CreateQP:          (*command).createQP,
	abi.QueryQP:           (*command).queryQP,
	abi.ModifyQP:          (*command).modifyQP,
	abi.DestroyQP:         (*command).destroyQP,
	abi.PostSend:          (*command).postSend,
	abi.CreateSRQ:         (*command).createSRQ,
	abi.ModifySRQ:         (*command).modifySRQ,
	abi.QuerySRQ:          (*command).querySRQ,
	abi.DestroySRQ:        (*command).destroySRQ,
}

// compVectors is the number of completion vectors. One is enough.
const compVectors = 1

// getContext is openContext and allocAsync in a single command.
func (k *command) getContext() {
	if k.x.opened.Load() {
		k.fail(unix.EINVAL)
		return
	}
	k.x.opened.Store(k.giveAsync(func(n uint32) bool {
		return k.answer(abi.Words(n, compVectors), abi.Words(k.x.dev.found.Index, 0))
	}))
}

func (k *command) openContext() {
	if k.x.opened.Load() {
		k.fail(unix.EINVAL)
		return
	}
	k.x.opened.Store(k.answer(abi.Words(compVectors, abi.OptionalAccess, 0), abi.Words(k.x.dev.found.Index, 0)))
}

func (k *command) allocAsync() {
	k.giveAsync(func(n uint32) bool { return k.answer(abi.Words(n)) })
}

// giveAsync makes the channel of asynchronous events. answer sends the channel's number to the
// program. If there is a channel already, or answer fails, the command has failed and giveAsync
// returns false.
func (k *command) giveAsync(answer func(n uint32) bool) bool {
	x := k.x
	x.mu.Lock()
	had := x.async != nil
	x.mu.Unlock()
	if had {
		k.fail(unix.EINVAL)
		return false
	}
	ch, n := k.giveChannel()
	if ch == nil {
		return false
	}
	x.mu.Lock()
	x.async = ch
	x.mu.Unlock()
	if !answer(uint32(n)) {
		x.mu.Lock()
		x.async = nil
		x.mu.Unlock()
		ch.close()
		return false
	}
	return true
}

func (k *command) queryDeviceEx() {
	b := make(abi.Body, abi.QueryDeviceExLen)
	copy(b, k.x.dev.is.queryDevice(k.x.dev))
	if k.Body.U32(0) != 0 || k.Body.U32(4) != 0 {
		k.fail(unix.EINVAL)
		return
	}
	if k.Room < abi.QueryDeviceLen+8 {
		k.fail(unix.ENOSPC)
		return
	}
	b.Put32(180, uint32(min(len(b), k.Room)))
	k.answer(b)
}

func (k *command) queryPort() {
	if k.Body.U8(8) != 1 {
		k.fail(unix.EINVAL)
		return
	}
	k.answer(k.x.dev.is.queryPort(k.x.dev))
}

// queryGID answers with an entry of the GID table.
func (k *command) queryGID() {
	d := k.x.dev
	index, all := k.Body.U32(4), d.gids.entries()
	if k.Body.U32(0) != 1 || uint64(index) >= uint64(len(all)) || k.Body.U32(8) != 0 {
		k.fail(unix.EINVAL)
		return
	}
	b := make(abi.Body, abi.GIDEntryLen)
	d.putGID(b, index, all[index])
	k.answer(b)
}

// putGID encodes an entry of the device's GID table.
func (d *device) putGID(b abi.Body, index uint32, g gidEntry) {
	copy(b, g.gid[:])
	b.Put32(16, index)
	b.Put32(20, 1)
	b.Put32(24, uint32(g.kind))
	b.Put32(28, d.found.NetIndex)
}

// queryGIDTable answers with the number of GIDs, and with an entry for each. The library determines
// the length of an entry, so that an entry may end early or with zeros.
func (k *command) queryGIDTable() {
	d := k.x.dev
	size, room, all := int(k.Body.U32(0)), int(k.Body.U32(8)), d.gids.entries()
	if size <= 0 || room%size != 0 || len(all) > room/size || k.Body.U32(4) != 0 {
		k.fail(unix.EINVAL)
		return
	}
	b := make(abi.Body, 8+len(all)*size)
	b.Put64(0, uint64(len(all)))
	for i, g := range all {
		var e [abi.GIDEntryLen]byte
		d.putGID(e[:], uint32(i), g)
		copy(b[8+i*size:][:size], e[:])
	}
	k.answer(b)
}

func (k *command) allocPD() {
	x := k.x
	x.mu.Lock()
	h, ok := x.pds.add(newDomain(x.dev))
	x.mu.Unlock()
	if !ok {
		k.fail(unix.ENOMEM)
		return
	}
	if !k.answer(abi.Words(h)) {
		x.mu.Lock()
		x.pds.remove(h)
		x.mu.Unlock()
	}
}

func (k *command) deallocPD() {
	x := k.x
	x.mu.Lock()
	defer x.mu.Unlock()
	switch pd := x.pds.m[k.Body.U32(0)]; {
	case pd == nil:
		k.fail(unix.ENOENT)
	case pd.users > 0:
		k.fail(unix.EBUSY)
	default:
		x.pds.remove(k.Body.U32(0))
		k.answer()
	}
}

// release frees all objects of the context, like the last close of the file.
func (x *context) release() {
	x.calls.Wait()
	if x.roce != nil {
		x.later.Wait() // queue pairs that are being modified
		x.roce.close(x)
	}
	x.mu.Lock()
	var qps []*queuePair
	for _, q := range x.qps.m {
		qps = append(qps, q)
	}
	var mrs []*region
	for _, m := range x.mrs.m {
		mrs = append(mrs, m)
	}
	x.mu.Unlock()
	var wg sync.WaitGroup
	for _, q := range qps {
		wg.Go(q.destroy)
	}
	wg.Wait()
	// A Read of the peer, shortly before the peer sees the end, must find the region, with the
	// memory gone: see space.judge. A missing region would be the peer's fault.
	x.s.wg.Go(func() {
		x.ends.Wait()
		for _, m := range mrs {
			m.close()
		}
	})
	x.later.Wait() // queue pairs that the program was destroying still use the rings
	x.mu.Lock()
	for _, ch := range x.chs {
		ch.close()
	}
	if x.async != nil {
		x.async.close()
	}
	x.pds.removeAll()
	x.mrs.removeAll()
	x.cqs.removeAll()
	x.qps.removeAll()
	x.srqs.removeAll()
	x.mu.Unlock()
	x.mems.close()
	if x.unwatch != nil {
		x.unwatch()
	}
	x.arena.close()
}

func newPipe() (r, w int, err error) {
	var p [2]int
	err = unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK)
	return p[0], p[1], err
}

// reopen opens the file of a descriptor a second time, with other flags.
func reopen(fd, flags int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), flags|unix.O_CLOEXEC, 0)
}

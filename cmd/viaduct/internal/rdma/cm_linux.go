//go:build linux && (amd64 || arm64)

package rdma

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

// A cmFile is an open rdma_cm file, an event channel of librdmacm. The stand-in is the reading end
// of a pipe. The pipe holds a byte as long as there are events.
type cmFile struct {
	s       *Service
	pid     uint32 // number of the process that opened the file
	repeats repeats

	mu      sync.Mutex
	w       int          // guarded by mu
	filled  bool         // guarded by mu; the pipe holds a byte
	events  []*cmEvent   // guarded by mu
	waiting []*cmCommand // guarded by mu; waiting get_event calls
}

// A cmEvent is an event for the program.
type cmEvent struct {
	abi.CMEvent
	of *cmID // the identifier that counts the event; for a connection request, the listener
	// subject is the new identifier of a connection request, otherwise nil.
	subject *cmID
	join    *roceJoin // set if the event reports a joined multicast group, otherwise nil
}

// openCM installs a stand-in for rdma_cm in the program.
func (s *Service) openCM(c *notify.Call, flags int) error {
	r, w, err := newPipe()
	if err != nil {
		return err
	}
	defer unix.Close(r)
	id, err := inodeOf(r)
	if err == nil {
		err = unix.SetNonblock(r, flags&unix.O_NONBLOCK != 0)
	}
	if err != nil {
		unix.Close(w)
		return err
	}
	f := &cmFile{s: s, w: w, pid: pidOf(c)}
	s.watchPipe(w)
	s.add(id, f)
	s.place(c, r, flags)
	return nil
}

func (f *cmFile) stat() unix.Stat_t { return charStat(abi.CMDev) }

// orphaned reports whether no process has the reading end any more.
func (f *cmFile) orphaned() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return withoutReader(f.w)
}

func (f *cmFile) release() {
	for _, id := range f.s.cm.of(f) {
		id.destroy()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	unix.Close(f.w)
	f.w = -1
}

// A cmCommand is an unanswered command of rdma_cm.
type cmCommand struct {
	*notify.Call
	abi.CMRequest
	f     *cmFile
	raw   []byte // the command as it was written
	fd    int    // a copy of the program's descriptor, for the duration of the call
	count int64
}

// maxCMRequest bounds the bytes read of a command. All commands are shorter.
const maxCMRequest = 1024

func (f *cmFile) serve(c *notify.Call, fd int) {
	defer unix.Close(fd)
	if c.Nr == unix.SYS_IOCTL {
		c.Return(0, unix.ENOTTY)
		return
	}
	b := make([]byte, min(c.Args[2], maxCMRequest))
	if _, err := c.ReadMem(c.Args[1], b); err != nil {
		c.Return(0, unix.EFAULT)
		return
	}
	if f.repeats.give(c, b) {
		return
	}
	r, err := abi.ParseCM(b)
	if err != nil {
		c.Return(0, unix.EINVAL)
		return
	}
	k := &cmCommand{Call: c, CMRequest: r, f: f, raw: b, fd: fd, count: int64(c.Args[2])}
	h := cmHandlers[r.Command]
	if o := roceCMHandlers[r.Command]; o.serve != nil && k.isRoCE(o.at) {
		h = o.serve
	}
	switch _, out := r.Command.Lengths(); {
	case h == nil:
		k.Return(0, unix.ENOSYS)
	case r.Out < out: // the kernel checks this first
		k.Return(0, unix.ENOSPC)
	default:
		h(k)
	}
}

var cmHandlers = map[abi.CMCommand]func(*cmCommand){
	abi.CMCreateID:     (*cmCommand).createID,
	abi.CMDestroyID:    (*cmCommand).destroyID,
	abi.CMBindIP:       (*cmCommand).bindIP,
	abi.CMResolveIP:    (*cmCommand).resolveIP,
	abi.CMResolveRoute: (*cmCommand).resolveRoute,
	abi.CMQueryRoute:   (*cmCommand).queryRoute,
	abi.CMConnect:      (*cmCommand).connect,
	abi.CMListen:       (*cmCommand).listen,
	abi.CMAccept:       (*cmCommand).accept,
	abi.CMReject:       (*cmCommand).reject,
	abi.CMDisconnect:   (*cmCommand).disconnect,
	abi.CMInitQPAttr:   (*cmCommand).initQPAttr,
	abi.CMGetEvent:     (*cmCommand).getEvent,
	abi.CMSetOption:    (*cmCommand).setOption,
	abi.CMNotify:       func(k *cmCommand) { k.done(k.idAt(0) != nil) },
	abi.CMMigrateID:    (*cmCommand).migrateID,
	abi.CMWriteEvent:   (*cmCommand).writeEvent,
	// The newer forms are for addresses of InfiniBand. After EINVAL, the library uses the commands
	// above.
	abi.CMQuery:       func(k *cmCommand) { k.Return(0, unix.EINVAL) },
	abi.CMBind:        func(k *cmCommand) { k.Return(0, unix.EINVAL) },
	abi.CMResolveAddr: func(k *cmCommand) { k.Return(0, unix.EINVAL) },
}

// Return answers the command. If a signal has interrupted the call, the thread gets the answer when
// repeating the call.
func (k *cmCommand) Return(value int64, errno unix.Errno) {
	k.f.repeats.answer(k.Call, repeat{command: k.raw, value: value, errno: errno})
}

// done answers a command without a response if ok is true. Otherwise idAt has already answered the
// command.
func (k *cmCommand) done(ok bool) {
	if ok {
		k.Return(k.count, 0)
	}
}

func (k *cmCommand) finish(err unix.Errno) {
	if err != 0 {
		k.Return(0, err)
		return
	}
	k.Return(k.count, 0)
}

// answer writes the response b to the address at, and ends the command. If the response does not
// fit or cannot be written, the command fails and answer returns false.
func (k *cmCommand) answer(at uint64, b abi.Body) bool {
	if k.Out < len(b) {
		k.Return(0, unix.ENOSPC)
		return false
	}
	return k.f.repeats.answer(k.Call, repeat{command: k.raw, value: k.count, response: []abi.Put{{At: at, Bytes: b}}})
}

// idAt returns the identifier whose number is in the body at an offset. If there is no identifier
// with the number, or the identifier belongs to another event channel, idAt answers the command
// with an error and returns nil.
func (k *cmCommand) idAt(at int) *cmID {
	id := k.f.s.cm.get(k.Body.U32(at))
	switch {
	case id == nil:
		k.Return(0, unix.ENOENT)
	case id.channel() != k.f:
		k.Return(0, unix.EINVAL)
	default:
		return id
	}
	return nil
}

// post adds an event, and delivers it to a waiting call. If the event's identifier is destroyed,
// post drops the event and returns false, because the event would name freed memory of the program.
func (f *cmFile) post(e *cmEvent) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.of.isDestroyed() { // destroy sets the flag before it calls drop
		return false
	}
	f.events = append(f.events, e)
	for len(f.waiting) > 0 && len(f.events) > 0 {
		k := f.waiting[0]
		f.waiting = f.waiting[1:]
		f.deliverLocked(k, -1)
	}
	f.signalLocked(-1)
	return true
}

// deliverLocked answers a get_event call with the first event. If a signal has interrupted the
// call, the event stays in the list. fd has the same meaning as for signalLocked.
func (f *cmFile) deliverLocked(k *cmCommand, fd int) {
	e := f.events[0]
	b, ok := e.Put(k.Out)
	if !ok {
		k.Call.Return(0, unix.ENOSPC)
		return
	}
	if _, err := k.WriteMem(k.Body.U64(0), b); err != nil {
		k.Call.Return(0, unix.EFAULT)
		return
	}
	// The state is updated before the program gets the event. Otherwise the program could find the
	// descriptor still readable, and then wait forever for an event.
	f.events = f.events[1:]
	e.of.delivered(e, true)
	f.signalLocked(fd)
	if k.Call.Return(k.count, 0) != nil {
		f.events = slices.Insert(f.events, 0, e)
		e.of.delivered(e, false)
		f.signalLocked(fd)
	}
}

// settle repeats signalLocked after a failure, for example when no descriptor was free. It returns
// false if signalLocked has failed again, so that the next sweep must call settle again.
func (f *cmFile) settle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signalLocked(-1)
	return f.w < 0 || f.filled == (len(f.events) > 0)
}

// signalLocked keeps a byte in the pipe exactly while there are events. fd is the program's
// descriptor of the reading end. If fd is -1, signalLocked opens the reading end itself to remove
// the byte. If the byte cannot be written or removed, settle tries again.
func (f *cmFile) signalLocked(fd int) {
	switch want := len(f.events) > 0; {
	case f.w < 0 || want == f.filled:
	case want:
		if _, err := unix.Write(f.w, []byte{1}); err == nil {
			f.filled = true
		}
	default:
		f.filled = !takeByte(f.w, fd)
	}
}

// takeByte removes the byte from a pipe without waiting, because the program may already have read
// the byte. w is the writing end. fd is the reading end, possibly in blocking mode, or -1. takeByte
// returns false if the reading end cannot be opened.
func takeByte(w, fd int) bool {
	var b [1]byte
	if fd >= 0 {
		// Not every kernel supports RWF_NOWAIT for pipes, and none supports the flag for a pipe
		// opened by name.
		if _, err := unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT); err == nil || err == unix.EAGAIN {
			return true
		}
	}
	r, err := reopen(w, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	defer unix.Close(r)
	_, err = unix.Read(r, b[:])
	return err == nil || err == unix.EAGAIN
}

func (k *cmCommand) getEvent() {
	f := k.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) > 0 {
		f.deliverLocked(k, k.fd)
		return
	}
	if flags, err := unix.FcntlInt(uintptr(k.fd), unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK != 0 {
		k.Call.Return(0, unix.EAGAIN)
		return
	}
	// Remove the calls interrupted by a signal.
	still := f.waiting[:0]
	for _, w := range f.waiting {
		if w.Valid() {
			still = append(still, w)
		}
	}
	f.waiting = append(still, k)
}

// maxOwnEvents bounds the unread events of a channel to which a program writes events itself.
const maxOwnEvents = 4096

// writeEvent adds an event that the program makes up. rdma_write_cm_event and rdma_resolve_addrinfo
// of librdmacm write such events.
func (k *cmCommand) writeEvent() {
	e := abi.CMEvent{Type: abi.CMEventType(k.Body.U32(8)), Status: int32(k.Body.U32(12)), Arg: k.Body.U64(16)}
	if e.Type != abi.EvUser && e.Type != abi.EvInternal {
		k.Return(0, unix.EINVAL)
		return
	}
	id := k.idAt(0)
	if id == nil {
		return
	}
	k.f.mu.Lock()
	unread := len(k.f.events)
	k.f.mu.Unlock()
	if unread >= maxOwnEvents {
		k.Return(0, unix.ENOMEM)
		return
	}
	id.post(e)
	k.finish(0)
}

// drop removes and returns the unread events of an identifier. They include the event that
// announced the identifier as a connection request.
func (f *cmFile) drop(id *cmID) (dropped []*cmEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := f.events[:0:0]
	for _, e := range f.events {
		if e.of == id || e.subject == id {
			dropped = append(dropped, e)
		} else {
			keep = append(keep, e)
		}
	}
	f.events = keep
	f.signalLocked(-1)
	return dropped
}

func (k *cmCommand) migrateID() {
	id := k.f.s.cm.get(k.Body.U32(8))
	fd, old := k.f.s.lookup(k.Call, int(int32(k.Body.U32(12))))
	if fd >= 0 {
		unix.Close(fd)
	}
	from, ok := old.(*cmFile)
	switch {
	case !ok:
		k.Return(0, unix.EINVAL)
		return
	case id == nil:
		k.Return(0, unix.ENOENT)
		return
	case id.channel() != from:
		k.Return(0, unix.EINVAL)
		return
	}
	id.mu.Lock()
	id.file = k.f
	n := id.reported
	id.mu.Unlock()
	if from != k.f {
		for _, e := range from.drop(id) {
			k.f.post(e)
		}
	}
	k.answer(k.Body.U64(0), abi.Words(n))
}

// A cmTable holds the identifiers of all rdma_cm files by number.
type cmTable struct {
	mu   sync.Mutex
	m    map[uint32]*cmID // guarded by mu
	next uint32           // guarded by mu; the first number to try
}

func (t *cmTable) add(id *cmID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[uint32]*cmID{}
	}
	for t.m[t.next] != nil {
		t.next = (t.next + 1) & 0x7fffffff
	}
	id.num = t.next
	t.m[id.num] = id
	t.next = (t.next + 1) & 0x7fffffff
}

func (t *cmTable) get(num uint32) *cmID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[num]
}

// take removes an identifier. It returns false if the identifier had already been removed.
func (t *cmTable) take(id *cmID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[id.num] != id {
		return false
	}
	delete(t.m, id.num)
	return true
}

func (t *cmTable) of(f *cmFile) (ids []*cmID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.m {
		if id.channel() == f {
			ids = append(ids, id)
		}
	}
	return ids
}

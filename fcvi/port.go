package fcvi

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// These are defaults, and limits the standard leaves to the implementation.
const ( // [FCVI-5.7-5] [FCVI-8.3-2]
	defaultMaxTransfer = 1 << 20
	LimitMaxTransfer   = 64 << 20
	defaultULPTimeout  = 30 * time.Second
	DefaultMaxReads    = 16
	defaultMaxUnacked  = 256
	limitMaxUnacked    = 512

	window      = 64        // messages that a receive stream stores if frames can overtake each other [FCVI-8.4-6]
	streamLimit = 256       // messages of a stream Exchange [FCVI-5.2.1-6]
	askEvery    = 32        // number of streamed messages per requested response [FCVI-E-2]
	askBytes    = 256 << 10 // bytes of streamed messages per requested response
	maxAttempts = 4         // [FCVI-8.5-3]
	discTries   = 3         // [FCVI-8.6-1]
	maxSetups   = 4096      // set-ups of a port that have not ended
	maxEnded    = 4096      // ended set-ups that a port remembers
)

// A machineConfig configures the state machines of a port.
type machineConfig struct {
	codec       iu.Codec
	ulpTimeout  time.Duration
	linger      time.Duration // time for which a request without a waiter is held
	stream      bool          // send messages without a response in stream Exchanges (policy X2)
	class       fc.Class
	maxUnacked  int // this side's window of Reliable Reception requests
	static      map[netip.Addr]WWN
	farpOnly    bool
	seed        uint64
	logger      *slog.Logger
	onConnState func(c *conn, from, to state)
}

// Stats has the counters of an FC-VI port. Counters never decrease.
type Stats struct {
	SentMessages, SentBytes         uint64 // requests and read answers transmitted
	DeliveredMessages               uint64 // completely received messages of peers
	PlacedBytes                     uint64 // payload bytes written to memory
	SentIUs, RecvFrames             uint64
	RCtlMismatch                    uint64 // frames whose R_CTL is not that of their IU
	Synonyms                        uint64 // frames whose headers do not match the message or request of their MSG_ID
	LateFrames                      uint64 // frames of finished messages, or with bytes that were received before
	UnknownHandle                   uint64 // IUs that name no endpoint
	WrongSource                     uint64 // frames with a valid handle from the wrong S_ID
	WrongState                      uint64 // message IUs of connections that are not Connected
	BadOpcode                       uint64 // IUs with an opcode that is not in the standard
	Malformed                       uint64 // IUs whose header or payload breaks the rules
	Discarded                       uint64 // messages dropped at Unreliable Delivery
	NoReceive                       uint64 // messages that found no receive descriptor
	Gaps                            uint64 // losses detected
	WindowFull                      uint64 // messages for which the window, or the memory for waiting messages, had no room
	DupRqst                         uint64 // repeated connection requests without the retry flag
	Retries                         uint64 // set-up and disconnect IUs sent again
	Connected, Rejected, SetupsLost uint64 // set-ups by their result; lost means that this side gave up
	Broken                          uint64 // connections that ended in error
	Aborts                          uint64 // ABTS sent
	StaleResponses                  uint64 // answers that match no outstanding request
	SetupLimit                      uint64 // requests refused because of the limit of set-ups

	// RCtlMismatch [FCVI-5.1-6], Synonyms [FCVI-5.6-2], WrongSource [FCVI-4-1],
	// BadOpcode [FCVI-5.9.3-3], WindowFull [FCVI-8.4-9].
}

// A port is the FC-VI part of one N_Port: endpoints, set-ups and the address cache. It is a state
// machine, called by the N_Port below and by the provider above. It does no input or output and is
// not safe for concurrent use.
type port struct {
	cfg   machineConfig
	np    *fc.NPort
	room  func(dst fc.Addr) int // lower bound of the number of frames that the link can take
	rng   *rand.Rand
	stats Stats

	handles  handleTable
	oxids    oxidPool
	nextRX   uint16
	setups   map[setupKey]*setup
	ended    []endedSetup // set-ups that have ended, the oldest first; setups has them too
	forget   *fc.Timer    // set to the time of the oldest of ended, if there is one
	waits    []*wait
	cache    map[hostKey]mapping
	told     map[tellKey]fc.Time // when a peer was last told that a handle of its IU is unknown
	connSeq  uint32
	active   []*conn // connections with frames to send, in the order of their turns
	kept     []keptIU
	opt      [iu.LongLen]byte
	scratch  [fc.MaxData]byte
	tx       fc.Frame
	hdr      iu.Header // header of the frame that is being sent
	got      iu.Header // header of the frame that was received
	onlineFn []func(now fc.Time)
}

type setupKey struct {
	name fc.WWN
	id   uint32
}

// A setup is a responder's record of a connection request.
type setup struct {
	conn   *conn     // nil after the end of the set-up
	reason iu.Reason // reason in the answer, after the end
}

// An endedSetup names a setup that has ended.
type endedSetup struct {
	key   setupKey
	until fc.Time // time at which the port forgets the set-up
}

type tellKey struct {
	addr   fc.Addr
	handle uint32
}

func newPort(np *fc.NPort, cfg machineConfig, room func(dst fc.Addr) int) *port {
	if cfg.codec == nil {
		cfg.codec = iu.ProjectV1{}
	}
	if cfg.class == 0 {
		cfg.class = fc.Class3
	}
	if cfg.maxUnacked == 0 {
		cfg.maxUnacked = defaultMaxUnacked
	}
	p := &port{
		cfg: cfg, np: np, room: room, rng: rand.New(rand.NewPCG(cfg.seed, uint64(np.Name()))),
		setups: map[setupKey]*setup{}, cache: map[hostKey]mapping{}, told: map[tellKey]fc.Time{},
	}
	p.connSeq = p.rng.Uint32()
	p.forget = np.Timers().New(p.forgetOld)
	p.handles.init()
	p.oxids.init(p)
	np.Register(fc.TypeFCVI, p)
	return p
}

// ulpTimeout returns FCVI_ULP_TIMEOUT, at least 2 x R_A_TOV. [FCVI-8.3-2]
func (p *port) ulpTimeout() time.Duration {
	t := p.cfg.ulpTimeout
	if t == 0 {
		t = defaultULPTimeout
		if r := p.np.RATOV(); r < fc.DefaultRATOV {
			t = 3 * r // all timers are scaled by one factor [FCVI-8.3-5]
		}
	}
	return max(t, 2*p.np.RATOV())
}

func (p *port) log(msg string, args ...any) {
	if p.cfg.logger != nil {
		p.cfg.logger.Info(msg, args...)
	}
}

// The N_Port calls PortOnline after coming online. PortOnline continues the waiting searches.
func (p *port) PortOnline(now fc.Time) {
	w := p.onlineFn
	p.onlineFn = nil
	for _, fn := range w {
		fn(now)
	}
}

// Resumed is called by the N_Port when data may flow to r again.
func (p *port) Resumed(now fc.Time, r *fc.Remote) {
	p.sendKept(now, r)
	for _, c := range p.handles.all() {
		if c.remote == r {
			p.activate(c)
		}
	}
	p.pump(now)
}

// LoggedOut ends all connections and set-ups with r. [FCVI-7.7-2] [FCFS-2.10-7]
func (p *port) LoggedOut(now fc.Time, r *fc.Remote) {
	p.takeKept(func(k *keptIU) bool { return k.r == r })
	for k, m := range p.cache {
		if m.addr == r.Addr {
			delete(p.cache, k)
		}
	}
	for _, c := range p.handles.all() {
		if c.remote == r {
			c.loggedOut(now)
		}
	}
}

// Acked is called by the N_Port for a class 2 acknowledgement.
func (p *port) Acked(now fc.Time, r *fc.Remote, f *fc.Frame) {
	if !f.FromResponder() { // the peer's OX_IDs are not in our pool
		if c := p.oxids.owner(f.OXID); c != nil && c.remote == r {
			c.acked(now, f.OXID)
		}
	}
	if r.Room() { // the credit belongs to the port, so any connection with r may continue
		for _, c := range p.handles.conns {
			if c.remote == r {
				p.activate(c)
			}
		}
	}
	p.pump(now)
}

// Failed is called by the N_Port when a class 2 frame was rejected or not acknowledged.
// [FCVI-8.4-15]
func (p *port) Failed(now fc.Time, r *fc.Remote, f *fc.Frame, reason uint8) {
	if !f.FromResponder() {
		if c := p.oxids.owner(f.OXID); c != nil && c.remote == r {
			c.class2Failed(now, f.OXID)
		}
		return
	}
	var h iu.Header
	p.cfg.codec.ParseHeader(f.Opt, &h)
	if !h.Op.IsResponse() {
		return // set-up and disconnect recover by their own timers
	}
	for _, c := range p.handles.all() {
		if c.remote == r && c.rHandle == h.Handle {
			c.fail(now, &failure{reason: iu.Class2Fail})
			return
		}
	}
}

// Abort handles an ABTS for an Exchange the peer originated, or for an Exchange of this side
// abandoned by the peer. Abort returns false if no connection with r has the Exchange.
func (p *port) Abort(now fc.Time, r *fc.Remote, f *fc.Frame) bool {
	if f.FromResponder() {
		c := p.oxids.owner(f.OXID)
		return c != nil && c.remote == r
	}
	for _, c := range p.handles.all() {
		if c.remote == r && c.aborted(now, f.OXID) {
			return true
		}
	}
	return false
}

// Frame handles an FC-VI frame from a logged-in port.
func (p *port) Frame(now fc.Time, r *fc.Remote, f *fc.Frame) {
	p.stats.RecvFrames++
	h := &p.got
	n, err := p.cfg.codec.ParseHeader(f.Opt, h)
	if err != nil || n > len(f.Opt) {
		p.stats.Malformed++ // [FCVI-6.1-3]
		return
	}
	if !h.Op.Valid() {
		p.stats.BadOpcode++
		if c := p.handles.get(h.Handle); c != nil && c.remote == r && c.state == stConnected && c.reliable() {
			c.fail(now, &failure{reason: iu.Protocol, msg: h.MsgID, named: true}) // [FCVI-5.9.3-4]
		}
		return
	}
	if n != len(f.Opt) || f.DFCtl != p.cfg.codec.DFCtl(h.Op) {
		p.stats.Malformed++
		if c := p.handles.get(h.Handle); c != nil && c.remote == r && c.state == stConnected {
			c.fail(now, c.violation(h.MsgID))
		}
		return
	}
	if f.RCtl != fc.RCtl(p.cfg.codec.RCtl(h.Op)) { // [FCVI-5.1-5] [FCVI-5.1-6]
		p.stats.RCtlMismatch++
	}
	if h.Op == iu.ConnectRqst {
		p.connectRqst(now, r, f, h)
		return
	}
	c := p.handles.get(h.Handle) // [FCVI-4-3]
	if c == nil {
		p.unknown(now, r, f, h)
		return
	}
	if c.remote != r { // [FCVI-4-1]
		p.stats.WrongSource++
		return
	}
	if c.early.paused && c.state == stConnected {
		if !c.early.add(f) {
			c.early.end()
			c.fail(now, &failure{reason: iu.PortResources})
		}
		return
	}
	messageTypes[h.Op].arrive(c, now, f, h)
	p.pump(now)
}

// unknown answers an IU whose handle names no endpoint.
func (p *port) unknown(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header) {
	if h.Op == iu.DisconnectResp {
		p.stats.StaleResponses++
		return
	}
	p.stats.UnknownHandle++
	switch {
	case h.Op == iu.DisconnectRqst && h.Handle == 0:
		// The peer reports an unknown handle in an IU of ours. [FCVI-6.12-2]
		for _, c := range p.handles.all() {
			if c.remote == r && c.rHandle == h.RmtHandle && c.rHandle != 0 {
				c.disconnectRqst(now, f, h)
				p.pump(now)
				return
			}
		}
		p.answerDisconnect(now, r, f, h)
	case h.Op == iu.DisconnectRqst: // [FCVI-5.3.5-5]
		p.answerDisconnect(now, r, f, h)
	case h.Op == iu.ConnectResp1 && h.Flags&iu.FlagPos != 0:
		// The IU accepts an abandoned request. [FCVI-C-1]
		if a, _, err := p.cfg.codec.ParseConnectResp1(f.Payload); err == nil {
			p.cancel(now, r, a.Handle, h.Handle, h.Total)
		}
	case h.Op.IsRequest() && h.Handle != 0 && !p.handles.quarantined(h.Handle, now): // [FCVI-8.2-3] [FCVI-8.2-4]
		k := tellKey{r.Addr, h.Handle}
		if t, ok := p.told[k]; ok && now-t < p.np.RATOV() {
			return
		}
		if len(p.told) > 1024 {
			clear(p.told)
		}
		p.told[k] = now
		p.sendOnce(now, r, &iu.Header{Op: iu.DisconnectRqst, Flags: iu.FlagErr, RmtHandle: h.Handle,
			Param: iu.Status{Reason: iu.NotConnected}.Param()})
	}
}

// cancel sends a disconnect for an endpoint this side has abandoned, because the peer may be
// connected to the endpoint. theirs and ours are the handles, id the FCVI_CONNECTION_ID.
func (p *port) cancel(now fc.Time, r *fc.Remote, theirs, ours, id uint32) {
	p.sendOnce(now, r, &iu.Header{Op: iu.DisconnectRqst, Handle: theirs, RmtHandle: ours, Total: id,
		Flags: iu.FlagErr, Param: iu.Status{Reason: iu.Cancelled}.Param()})
}

// sendOnce sends a request IU on a new Exchange, without waiting for an answer. It sends nothing if
// no Exchange is free.
func (p *port) sendOnce(now fc.Time, r *fc.Remote, h *iu.Header) {
	ox, ok := p.oxids.alloc(nil)
	if !ok {
		return
	}
	p.sendIU(now, r, p.classFor(r), h, iu.Use{Last: true}, ox, fc.Unassigned, 0, nil)
	p.oxids.lock(now, ox)
}

// answerDisconnect answers a DISCONNECT_RQST. [FCVI-6.13-1]
func (p *port) answerDisconnect(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header) {
	a := iu.Header{Op: iu.DisconnectResp, Handle: h.RmtHandle, RmtHandle: h.Handle, MsgID: h.MsgID, Total: h.Total,
		Flags: h.Flags & iu.FlagRetry, Param: iu.Status{Reason: iu.ULPDisconnect}.Param()}
	p.sendIU(now, r, f.Class(), &a, iu.Use{Last: true}, f.OXID, p.rxid(f), 0, nil)
}

// rxid returns the RX_ID for an answer to f: the RX_ID in f, or a new RX_ID if f has none.
// [FCVI-5.4-5] [FCVI-5.2.1-9]
func (p *port) rxid(f *fc.Frame) uint16 {
	if f.RXID != fc.Unassigned {
		return f.RXID
	}
	p.nextRX = (p.nextRX + 1) & iu.LastOXID
	return p.nextRX
}

// classFor returns the class of service for frames to r. [FCVI-5.2.1-11]
func (p *port) classFor(r *fc.Remote) fc.Class {
	if p.cfg.class == fc.Class2 && r.Class2 {
		return fc.Class2
	}
	return fc.Class3
}

// sendIU sends a single-frame IU. While the mapping of r is verified the IU is stored instead.
// sendIU returns false if the IU was neither sent nor stored. [FCVI-5.1-7]
func (p *port) sendIU(now fc.Time, r *fc.Remote, class fc.Class, h *iu.Header, u iu.Use, oxid, rxid uint16, cnt uint16, payload []byte) bool {
	f := p.frame(fc.RCtl(p.cfg.codec.RCtl(h.Op)), p.cfg.codec.DFCtl(h.Op), fc.FCtl(p.cfg.codec.FCtl(h.Op, u)))
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = r.NextSeqID(), cnt, oxid, rxid
	f.Opt, f.Payload = p.cfg.codec.AppendHeader(p.opt[:0], h), payload
	ok := p.np.Send(now, r, class, true, f) || p.keep(r, class, f)
	if ok {
		p.stats.SentIUs++
	}
	return ok
}

// frame returns the port's frame for sending, with the common fields of all FC-VI frames. The
// N_Port sets addresses and delimiters. The fields are set one by one, because copying a struct
// built elsewhere would stall the processor for each frame. [FCVI-5.8-1] [FCVI-5.8-2] [FCVI-5.8-3]
func (p *port) frame(rctl fc.RCtl, dfctl uint8, fctl fc.FCtl) *fc.Frame {
	f := &p.tx
	f.RCtl, f.CSCtl, f.Type, f.FCtl, f.DFCtl, f.Param = rctl, 0, fc.TypeFCVI, fctl, dfctl, 0
	return f
}

// A turn is the place of an endpoint in the sending order of its port.
type turn uint8

const (
	noTurn  turn = iota // nothing to send, as far as is known
	queued              // in port.active
	stalled             // waits for room on its link
)

// activate adds c to the connections with frames to send.
func (p *port) activate(c *conn) {
	if c.turn != queued {
		c.turn = queued
		p.active = append(p.active, c)
	}
}

// quantum is the number of frames a connection may send before the next connection's turn.
const quantum = 32

// pump sends queued messages while the links accept frames.
func (p *port) pump(now fc.Time) {
	for len(p.active) > 0 {
		c := p.active[0]
		copy(p.active, p.active[1:])
		p.active = p.active[:len(p.active)-1]
		c.turn = noTurn
		if c.gone || c.remote == nil {
			continue
		}
		room := p.room(c.remote.Addr)
		if room == 0 {
			c.turn = stalled // linkRoom resumes the connection [FCFS-2.9-1]
			continue
		}
		room = min(room, quantum)
		for room > 0 {
			n := c.step(now, room)
			if n == 0 {
				break
			}
			room -= n
		}
		if room == 0 {
			p.activate(c)
		}
	}
}

// linkRoom resumes the stalled connections when a full link has room again.
func (p *port) linkRoom(now fc.Time) {
	for _, c := range p.handles.conns {
		if c.turn == stalled {
			p.activate(c)
		}
	}
	p.pump(now)
}

// A handleTable maps FCVI_HANDLEs to connections. Bits 31..12 of a handle are the index, bits 11..0
// a generation. Handle 0 is never used. [FCVI-4-4] [FCVI-4-5]
type handleTable struct {
	slots []handleSlot
	free  []uint32 // released indexes, the oldest first
	conns []*conn  // in order of creation
}

type handleSlot struct {
	c     *conn
	gen   uint32
	until fc.Time // the index is not reused before this time [FCVI-4-6]
}

const (
	genBits  = 12
	genMask  = 1<<genBits - 1
	maxIndex = 1<<20 - 1
)

func (t *handleTable) init() { t.slots = make([]handleSlot, 1) } // index 0 stays unused

func (t *handleTable) alloc(now fc.Time, c *conn) (uint32, bool) {
	var i uint32
	if len(t.free) > 0 && t.slots[t.free[0]].until <= now {
		i = t.free[0]
		t.free = t.free[1:]
		t.slots[i].gen = (t.slots[i].gen + 1) & genMask
	} else {
		if len(t.slots) > maxIndex {
			return 0, false
		}
		i = uint32(len(t.slots))
		t.slots = append(t.slots, handleSlot{gen: 1})
	}
	t.slots[i].c = c
	t.conns = append(t.conns, c)
	return i<<genBits | t.slots[i].gen, true
}

func (t *handleTable) get(h uint32) *conn {
	if i := h >> genBits; int(i) < len(t.slots) && t.slots[i].gen == h&genMask {
		return t.slots[i].c
	}
	return nil
}

// quarantined reports whether h named a connection recently, so that the index is not yet reused.
func (t *handleTable) quarantined(h uint32, now fc.Time) bool {
	i := h >> genBits
	return int(i) < len(t.slots) && t.slots[i].gen == h&genMask && t.slots[i].c == nil && now < t.slots[i].until
}

func (t *handleTable) release(h uint32, until fc.Time) {
	i := h >> genBits
	c := t.slots[i].c
	t.slots[i].c, t.slots[i].until = nil, until
	t.free = append(t.free, i)
	for k, o := range t.conns {
		if o == c {
			t.conns = append(t.conns[:k], t.conns[k+1:]...)
			break
		}
	}
}

// all returns a copy of the list of connections, so that the caller may release some while
// iterating.
func (t *handleTable) all() []*conn { return append([]*conn(nil), t.conns...) }

// An oxidPool assigns the OX_IDs of FC-VI, in a cycle. [FCVI-5.4-1] [FCVI-5.4-2]
type oxidPool struct {
	p     *port
	next  uint32
	used  int
	pages [(iu.LastOXID + 1) / oxidPage]*[oxidPage]oxid
}

// An oxid is the state of an OX_ID. A used id without an owner is locked: no Exchange is open, and
// the id may not be assigned.
type oxid struct {
	owner *conn
	used  bool
}

// oxidPage is the number of ids for which memory is allocated at once.
const oxidPage = 256

func (o *oxidPool) init(p *port) {
	o.p = p
	o.next = p.rng.Uint32() & iu.LastOXID
}

// at returns the state of an id, or nil if the id was never used.
func (o *oxidPool) at(ox uint16) *oxid {
	if ox > iu.LastOXID || o.pages[ox/oxidPage] == nil {
		return nil
	}
	return &o.pages[ox/oxidPage][ox%oxidPage]
}

// alloc returns the next free OX_ID, for c. It returns false if none is free. Ids are used in a
// cycle, and ids of open and of aborted Exchanges are skipped. Reuse is safe because every frame
// carries MSG_ID and a handle with a generation. [FCVI-5.4-3]
func (o *oxidPool) alloc(c *conn) (uint16, bool) {
	for range iu.LastOXID - iu.FirstOXID + 1 {
		ox := uint16(o.next)
		o.next = (o.next + 1) & iu.LastOXID
		if o.pages[ox/oxidPage] == nil {
			o.pages[ox/oxidPage] = new([oxidPage]oxid)
		}
		if x := o.at(ox); !x.used {
			*x = oxid{c, true}
			o.used++
			return ox, true
		}
	}
	return 0, false
}

func (o *oxidPool) owner(ox uint16) *conn {
	if x := o.at(ox); x != nil {
		return x.owner
	}
	return nil
}

// release frees the id of a normally ended Exchange.
func (o *oxidPool) release(ox uint16) {
	if x := o.at(ox); x != nil && x.used {
		*x = oxid{}
		o.used--
	}
}

// hold marks an id as used without an owner, until release.
func (o *oxidPool) hold(ox uint16) {
	x := o.at(ox)
	if x == nil {
		return
	}
	if !x.used {
		o.used++
	}
	*x = oxid{used: true}
}

// lock prevents the use of an id for R_A_TOV.
func (o *oxidPool) lock(now fc.Time, ox uint16) {
	o.hold(ox)
	o.p.np.Timers().After(now+o.p.np.RATOV(), func(fc.Time) { o.release(ox) })
}

// disown locks all ids of c for R_A_TOV.
func (o *oxidPool) disown(now fc.Time, c *conn) {
	for i, page := range o.pages {
		if page == nil {
			continue
		}
		for k := range page {
			if page[k].owner == c {
				o.lock(now, uint16(i*oxidPage+k))
			}
		}
	}
}

// abort sends ABTS for an Exchange of this side. The OX_ID stays locked until R_A_TOV after the
// answer. Then RRQ releases the Recovery Qualifier. [FCVI-5.4-4]
func (o *oxidPool) abort(now fc.Time, r *fc.Remote, class fc.Class, ox, rx uint16) {
	p := o.p
	o.hold(ox)
	p.takeKept(func(k *keptIU) bool { return k.f.OXID == ox && !k.f.FromResponder() })
	p.stats.Aborts++
	p.np.Abort(now, r, class, ox, rx, r.NextSeqID(), false, func(now fc.Time, accepted bool) {
		p.np.Timers().After(now+p.np.RATOV(), func(now fc.Time) {
			o.release(ox)
			if accepted {
				p.np.ReleaseRecovery(now, r, ox, rx)
			}
		})
	})
}

func (p *port) String() string { return fmt.Sprintf("fcvi port %v at %v", p.np.Name(), p.np.ID()) }

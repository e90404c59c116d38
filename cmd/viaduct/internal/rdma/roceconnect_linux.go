//go:build linux && (amd64 || arm64)

package rdma

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// Reasons of a rejection, with the numbers of InfiniBand's connection manager.
const (
	rejectTimeout    = 4
	rejectNoService  = 8
	rejectByConsumer = 28
)

func (k *cmCommand) roceListen() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	e := id.listenRoCE(int(int32(k.Body.U32(4))))
	if e == 0 {
		id.mu.Lock()
		ps, at := id.ps, id.src.Addr()
		id.mu.Unlock()
		id.s.cmWire.openFor(ps, at)
	}
	k.finish(e)
}

func (id *cmID) listenRoCE(backlog int) unix.Errno {
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	m := &id.s.roceCM
	m.mu.Lock()
	defer m.mu.Unlock()
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == cmIdle {
		if e := id.bindRoCELocked(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); e != 0 {
			return e
		}
	}
	if id.state != cmBound || id.destroyed {
		return unix.EINVAL
	}
	if e := id.s.ports.exclude(id.bound); e != 0 {
		return e
	}
	if m.listeners == nil {
		m.listeners = map[*cmID]bool{}
	}
	m.listeners[id] = true
	id.state, id.backlog = cmListening, backlog
	return 0
}

// listener returns the listener at an address, or nil. mu is locked.
func (m *roceManager) listener(ps uint16, a netip.AddrPort) *cmID {
	for l := range m.listeners {
		l.mu.Lock()
		at, own := l.src, l.v6only || l.src.Addr().Is4()
		ok := l.ps == ps && at.Port() == a.Port() && l.backlog > 0 && !l.destroyed
		l.mu.Unlock()
		if ok && (at.Addr() == a.Addr() || at.Addr().IsUnspecified() && (!own || at.Addr().Is4() == a.Addr().Is4())) {
			return l
		}
	}
	return nil
}

// tellReason posts an event whose status is the reason of a rejection instead of an error number.
func (id *cmID) tellReason(t abi.CMEventType, reason int32, p abi.ConnParam) {
	id.post(abi.CMEvent{Type: t, Status: reason, Param: p})
}

// filled returns private data in the form of a message, padded with zeros to n bytes.
func filled(p []byte, n int) []byte {
	b := make([]byte, n)
	copy(b, p)
	return b
}

func (k *cmCommand) roceConnect() {
	p := abi.ParseConnParam(k.Body)
	id := k.idAt(272)
	if id == nil {
		return
	}
	room := abi.PrivateRequest
	if id.typ == rxe.UD {
		room = abi.PrivateUDRequest
	}
	m := &id.s.roceCM
	m.mu.Lock()
	id.mu.Lock()
	ok := id.state == cmRouteResolved && p.Valid && len(p.Private) <= room
	if ok {
		id.state = cmConnecting
		r := id.roce
		r.qpn, r.ird, r.ord, r.retry, r.rnr = p.QP, p.IRD, p.ORD, p.Retry, p.RNRRetry
		r.psn = rand.Uint32N(1 << 24)
	}
	elsewhere := ok && id.elsewhereLocked()
	ps, dst := id.ps, id.dst
	id.mu.Unlock()
	here := ok && !elsewhere && m.listener(ps, dst) != nil
	m.mu.Unlock()
	if !ok {
		k.Return(0, unix.EINVAL)
		return
	}
	p.Private = filled(p.Private, room)
	k.Return(k.count, 0)
	if elsewhere {
		id.s.cmWire.connect(id, p)
		return
	}
	if !here && id.sharesAddress() {
		m.mu.Lock()
		id.roce.again, id.roce.until = &p, time.Now().Add(refusedFor)
		m.mu.Unlock()
		id.s.cmWire.connect(id, p)
		return
	}
	if id.requestRoCE(p) {
		return
	}
	id.s.wg.Go(func() { // the listener may be opened again soon, see refusedFor
		for until := time.Now().Add(refusedFor); time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
			if id.isDestroyed() || id.requestRoCE(p) {
				return
			}
		}
		id.mu.Lock()
		if id.destroyed || id.state != cmConnecting { // the program has destroyed or disconnected it
			id.mu.Unlock()
			return
		}
		id.state = cmOver
		dst := id.dst
		id.mu.Unlock()
		id.s.explain("rdma_cm %v: no program here listens", dst)
		if id.typ == rxe.UD {
			id.tell(abi.EvUnreachable, unix.ETIMEDOUT, abi.ConnParam{})
			return
		}
		id.tellReason(abi.EvRejected, rejectNoService, abi.ConnParam{})
	})
}

// elsewhereLocked reports whether another service or host serves the other end.
func (id *cmID) elsewhereLocked() bool {
	to := rxe.GID(id.dgidLocked())
	return rxe.OnWire(to) && !id.s.roce.Local(to)
}

// sharesAddress reports whether other services have the address of the other end, which this service
// has as well. The caller holds no locks.
func (id *cmID) sharesAddress() bool {
	id.mu.Lock()
	to := rxe.GID(id.dgidLocked())
	id.mu.Unlock()
	return rxe.OnWire(to) && id.s.roce.Shared(netip.AddrFrom16(to).Unmap())
}

// requestRoCE creates the identifier of the other end, and reports the request to the listening
// program. It returns false if no program listens. It also returns true if the connection was ended
// in the meantime.
func (id *cmID) requestRoCE(p abi.ConnParam) bool {
	s := id.s
	m := &s.roceCM
	m.mu.Lock()
	id.mu.Lock()
	src, dst := id.src, id.dst
	ended := id.destroyed || id.state != cmConnecting
	id.mu.Unlock()
	if ended {
		m.mu.Unlock()
		return true
	}
	l := m.listener(id.ps, dst)
	at := s.roceFor(id.ps, dst.Addr())
	if l == nil || at == nil {
		m.mu.Unlock()
		return false
	}
	if _, _, ok := at.gidOf(dst.Addr()); !ok {
		m.mu.Unlock()
		return false
	}
	n := &cmID{s: s, ps: id.ps, typ: id.typ, sock: -1, state: cmRequested, dev: at, src: dst, dst: src}
	n.roce = &roceID{peer: id, psn: rand.Uint32N(1 << 24), remoteQPN: p.QP, remotePSN: id.roce.psn,
		retry: p.Retry, rnr: p.RNRRetry}
	id.roce.peer = n
	l.mu.Lock()
	n.file = l.file
	f, uid := l.file, l.uid
	l.backlog--
	l.mu.Unlock()
	s.cm.add(n)
	m.mu.Unlock()
	e := abi.CMEvent{UID: uid, ID: n.num, Type: abi.EvConnectRequest,
		Param: abi.ConnParam{QP: p.QP, Private: p.Private, SRQ: p.SRQ,
			IRD: p.ORD, ORD: p.IRD, Retry: p.Retry, RNRRetry: p.RNRRetry}}
	if id.typ == rxe.UD {
		e.UD = &abi.UDParam{Private: p.Private}
	}
	if !f.post(&cmEvent{CMEvent: e, of: l, subject: n}) {
		n.destroy()
	}
	return true
}

func (k *cmCommand) roceAccept() {
	p := abi.ParseConnParam(k.Body[min(8, len(k.Body)):])
	id := k.idAt(280)
	if id == nil {
		return
	}
	id.mu.Lock()
	state := id.state
	id.mu.Unlock()
	switch {
	case state == cmConnecting && !p.Valid:
		k.roceConfirm(id)
	case state == cmRequested && p.Valid:
		k.roceReply(id, p)
	default:
		k.Return(0, unix.EINVAL)
	}
}

// roceConfirm is accept on the active side, whose queue pair is now ready. Without an answer of the
// peer, the error is EINVAL.
func (k *cmCommand) roceConfirm(id *cmID) {
	m := &id.s.roceCM
	m.mu.Lock()
	peer, over, conn := id.roce.peer, id.roce.over, id.roce.wire
	replied := id.roce.remoteQPN != 0
	if replied {
		id.setState(cmConnected)
		if peer != nil {
			peer.setState(cmConnected)
		}
	}
	m.mu.Unlock()
	if !replied {
		k.Return(0, unix.EINVAL)
		return
	}
	if conn != nil && !over {
		id.s.cmWire.confirm(conn)
	}
	k.Return(k.count, 0)
	if over || peer == nil {
		return // the program has already got an event about the end
	}
	id.s.explain("rdma_cm %v -> %v: connected over RoCE, both ends are served here", id.src, id.dst)
	peer.tell(abi.EvEstablished, 0, abi.ConnParam{})
}

func (id *cmID) setState(s cmState) {
	id.mu.Lock()
	id.state = s
	id.mu.Unlock()
}

// roceReply is accept on the passive side. If the peer has given up, the error is ECONNRESET.
func (k *cmCommand) roceReply(id *cmID, p abi.ConnParam) {
	room, ud := abi.PrivateReply, id.typ == rxe.UD
	if ud {
		room = abi.PrivateUDReply
	}
	if len(p.Private) > room {
		k.Return(0, unix.EINVAL)
		return
	}
	p.Private = filled(p.Private, room)
	m := &id.s.roceCM
	m.mu.Lock()
	r := id.roce
	peer := r.peer
	if peer == nil && r.wire == nil || r.over {
		m.mu.Unlock()
		k.Return(0, unix.ECONNRESET)
		return
	}
	r.qpn, r.ird, r.ord = p.QP, p.IRD, p.ORD
	if peer == nil {
		m.mu.Unlock()
		k.roceReplyWire(id, p)
		return
	}
	pr := peer.roce
	pr.remoteQPN, pr.remotePSN, pr.ird, pr.ord, pr.rnr = p.QP, r.psn, p.ORD, p.IRD, p.RNRRetry
	id.mu.Lock()
	id.uid = k.Body.U64(0)
	id.state = cmConnecting
	if ud {
		id.state = cmConnected
	}
	id.mu.Unlock()
	var ah abi.Body
	if ud {
		peer.mu.Lock()
		peer.state = cmConnected
		ah = peer.ahLocked(peer.dgidLocked())
		peer.mu.Unlock()
	}
	m.mu.Unlock()
	k.Return(k.count, 0)
	if !ud {
		peer.tell(abi.EvConnectReply, 0, abi.ConnParam{QP: p.QP, Private: p.Private, SRQ: p.SRQ,
			IRD: p.ORD, ORD: p.IRD, RNRRetry: p.RNRRetry})
		return
	}
	peer.post(abi.CMEvent{Type: abi.EvEstablished,
		UD: &abi.UDParam{QP: p.QP, QKey: abi.DatagramKey, AH: ah, Private: p.Private}})
}

// roceReplyWire is accept on the passive side, for a peer that this service does not serve.
func (k *cmCommand) roceReplyWire(id *cmID, p abi.ConnParam) {
	id.mu.Lock()
	id.uid = k.Body.U64(0)
	id.state = cmConnecting
	if id.typ == rxe.UD {
		id.state = cmConnected
	}
	id.mu.Unlock()
	if !id.s.cmWire.reply(id, p) {
		k.Return(0, unix.ECONNRESET)
		return
	}
	k.Return(k.count, 0)
}

func (k *cmCommand) roceReject() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	private := append([]byte(nil), k.Body.Bytes(8, int(k.Body.U8(4)))...)
	m := &id.s.roceCM
	m.mu.Lock()
	id.mu.Lock()
	ok := id.state == cmRequested || id.state == cmConnecting
	if ok {
		id.state = cmOver
	}
	id.mu.Unlock()
	var peer *cmID
	conn := id.roce.wire
	if ok {
		if peer = m.part(id); peer != nil {
			peer.setState(cmOver)
		}
	}
	m.mu.Unlock()
	if !ok {
		k.Return(0, unix.EINVAL)
		return
	}
	if conn != nil {
		id.s.cmWire.reject(conn, private)
	}
	k.Return(k.count, 0)
	if peer != nil {
		peer.tellReason(abi.EvRejected, rejectByConsumer, abi.ConnParam{Private: filled(private, abi.PrivateReject)})
	}
}

// part ends the connection of an identifier. It returns the other end if the other end has not
// ended yet, and otherwise nil. mu is locked.
func (m *roceManager) part(id *cmID) *cmID {
	peer := id.roce.peer
	id.roce.peer, id.roce.over = nil, true
	if peer == nil || peer.roce.peer != id {
		return nil
	}
	peer.roce.peer, peer.roce.over = nil, true
	return peer
}

func (k *cmCommand) roceDisconnect() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	m := &id.s.roceCM
	m.mu.Lock()
	id.mu.Lock()
	state := id.state
	if state == cmConnected || state == cmConnecting {
		id.state = cmOver
	}
	id.mu.Unlock()
	var peer *cmID
	conn := id.roce.wire
	first := false
	if state == cmConnected || state == cmConnecting {
		first = !id.roce.over
		if peer = m.part(id); peer != nil {
			peer.setState(cmOver)
		}
	}
	m.mu.Unlock()
	if state != cmConnected && state != cmConnecting && state != cmOver {
		k.Return(0, unix.EINVAL)
		return
	}
	if conn != nil {
		id.s.cmWire.disconnect(conn)
	}
	k.Return(k.count, 0)
	if peer != nil {
		peer.tell(abi.EvDisconnected, 0, abi.ConnParam{})
	}
	if first {
		id.tell(abi.EvDisconnected, 0, abi.ConnParam{})
	}
}

// leaveRoCE ends the listener, memberships and connection of a destroyed identifier. The caller
// must hold no locks.
func (id *cmID) leaveRoCE() {
	id.mu.Lock()
	r := id.roce
	id.mu.Unlock()
	if r == nil {
		return
	}
	m := &id.s.roceCM
	m.mu.Lock()
	delete(m.listeners, id)
	for num, j := range m.joins {
		if j.id == id {
			delete(m.joins, num)
		}
	}
	peer, conn := m.part(id), r.wire
	was := cmIdle
	if peer != nil {
		peer.mu.Lock()
		was = peer.state
		if was == cmConnecting || was == cmConnected {
			peer.state = cmOver
		}
		peer.mu.Unlock()
	}
	m.mu.Unlock()
	if conn != nil {
		id.s.cmWire.disconnect(conn)
	}
	switch was {
	case cmConnecting:
		peer.tellReason(abi.EvRejected, rejectTimeout, abi.ConnParam{})
	case cmConnected:
		peer.tell(abi.EvDisconnected, 0, abi.ConnParam{})
	}
}

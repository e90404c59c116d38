//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/sock"
)

func (k *cmCommand) listen() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	k.finish(id.listen(int(int32(k.Body.U32(4)))))
}

// maxBacklog is how many requests may wait at a listener, as in the kernel's rdma_cm. It is also
// the default.
const maxBacklog = 1024

func (id *cmID) listen(backlog int) unix.Errno {
	id.mu.Lock()
	idle := id.state == cmIdle
	id.mu.Unlock()
	if idle {
		if e := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); e != 0 {
			return e
		}
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmBound || id.ps != psTCP || id.destroyed {
		return unix.EINVAL
	}
	if e := id.s.ports.exclude(id.bound); e != 0 {
		return e
	}
	if err := unix.Listen(id.sock, backlog); err != nil {
		return errnoOf(err)
	}
	f := os.NewFile(uintptr(id.sock), "listener")
	id.sock = -1
	l, err := net.FileListener(f)
	f.Close()
	if err == nil && id.s.opt.WrapConn == nil {
		if own, oerr := sock.OwnListener(l, sock.Tuning{SameHost: id.s.opt.SameHost}); oerr == nil {
			l = own
		} else {
			l.Close()
			err = oerr
		}
	}
	if err != nil {
		id.s.ports.remove(id.bound)
		id.bound, id.state = nil, cmIdle
		return errnoOf(err)
	}
	id.listener, id.state, id.backlog = l, cmListening, backlog
	id.s.wg.Go(func() { id.serve(l) })
	return 0
}

// serve accepts the connections of a listener until the listener is closed. It bounds the number of
// connections without a request yet, and the number of requests not read by the program yet.
func (id *cmID) serve(l net.Listener) {
	var arrivals turns
	coming := make(chan struct{}, maxBacklog)
	for {
		nc, err := l.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // for example, no descriptor is free
			continue
		}
		select {
		case coming <- struct{}{}:
		default:
			nc.Close()
			continue
		}
		t := arrivals.next(netip.AddrPortFrom(addrOf(nc.RemoteAddr()).Addr(), 0)) // of one host
		id.s.wg.Go(func() {
			defer t.end()
			id.arrival(nc, t)
			<-coming
		})
	}
}

// arrival reads the request of a connection and reports the request to the program. If too many
// requests already wait for the program, arrival rejects the request. If no device serves the
// address, or the request is invalid, arrival closes the connection.
func (id *cmID) arrival(nc net.Conn, t turn) {
	local, remote := addrOf(nc.LocalAddr()), addrOf(nc.RemoteAddr())
	dev := id.s.deviceFor(local.Addr())
	if dev == nil {
		nc.Close()
		return
	}
	if w := id.s.opt.WrapConn; w != nil {
		nc = w(nc, false)
	}
	r, err := readMPA(nc, id.s.done)
	if err != nil {
		nc.Close()
		return
	}
	t.wait()
	n := &cmID{s: id.s, ps: psTCP, sock: -1, state: cmRequested, dev: dev, request: r, src: local, dst: remote}
	id.mu.Lock()
	if id.destroyed || id.backlog == 0 {
		id.mu.Unlock()
		r.refuse()
		return
	}
	id.backlog-- // one less until the program has read the event
	n.file = id.file
	f, uid := id.file, id.uid
	id.mu.Unlock()
	id.s.cm.add(n)
	if !f.post(&cmEvent{CMEvent: abi.CMEvent{UID: uid, ID: n.num, Type: abi.EvConnectRequest, Param: r.param()}, of: id, subject: n}) {
		n.destroy()
	}
}

func (k *cmCommand) accept() {
	p := abi.ParseConnParam(k.Body[min(8, len(k.Body)):])
	id := k.idAt(280)
	if id == nil {
		return
	}
	p.Private = append([]byte(nil), p.Private...)
	id.mu.Lock()
	defer id.mu.Unlock()
	r := id.request
	if id.state != cmRequested || r == nil || !p.Valid {
		k.Return(0, unix.EINVAL)
		return
	}
	q, cfg := k.queuePair(id, p.QP)
	if q == nil {
		return
	}
	cfg.IRD, cfg.ORD = depths(p)
	cfg.MaxIRD = max(cfg.IRD, 1)
	id.uid, id.qp, id.state, id.request = k.Body.U64(0), q, cmConnecting, nil
	k.f.repeats.begin(k.Call, k.raw)
	id.s.wg.Go(func() {
		l := id.s.links.accept(route{id.dst, id.src}, q)
		iw, err := r.accept(cfg, p.Private)
		if err == nil {
			// The command is answered first, because the calling thread may be the reader of the
			// event.
			k.Return(k.count, 0)
			if !id.connected(q, iw, l, "accept") {
				l.cut()
				id.ended()
			}
			return
		}
		l.cut()
		id.mu.Lock()
		id.state = cmOver
		id.mu.Unlock()
		k.Return(0, unix.ECONNRESET)
	})
}

func (k *cmCommand) reject() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	private := append([]byte(nil), k.Body.Bytes(8, int(k.Body.U8(4)))...)
	id.mu.Lock()
	r := id.request
	id.request = nil
	ok := id.state == cmRequested && r != nil
	if ok {
		id.state = cmOver
	}
	id.mu.Unlock()
	if !ok {
		k.Return(0, unix.EINVAL)
		return
	}
	id.s.wg.Go(func() { r.reject(private) })
	k.Return(k.count, 0)
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	stdcontext "context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/sock"
	"viaduct/iwarp"
)

func (k *cmCommand) connect() {
	p := abi.ParseConnParam(k.Body)
	id := k.idAt(272)
	if id == nil {
		return
	}
	p.Private = append([]byte(nil), p.Private...)
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmRouteResolved || !p.Valid {
		k.Return(0, unix.EINVAL)
		return
	}
	q, cfg := k.queuePair(id, p.QP)
	if q == nil {
		return
	}
	cfg.Private = p.Private
	cfg.IRD, cfg.ORD = depths(p)
	cfg.Initiator.ReplyTimeout = connectTimeout
	k.Return(k.count, 0)
	id.state, id.qp = cmConnecting, q
	ctx, cancel := stdcontext.WithCancel(stdcontext.Background())
	id.cancel = cancel
	bound := id.sock
	id.sock = -1
	t := id.s.dials.next(id.dst)
	id.s.wg.Go(func() {
		defer cancel()
		id.dial(ctx, q, cfg, bound, t)
	})
}

// connectTimeout bounds the time to open the TCP connection, and then the time until the peer
// answers.
const connectTimeout = 60 * time.Second

// depths returns the program's limits of incoming and outgoing Reads in the form of iwarp.Config:
// at most maxReads, and -1 instead of 0, because 0 would mean the default.
func depths(p abi.ConnParam) (ird, ord int) {
	ird, ord = int(p.IRD), int(p.ORD)
	if ird == 0 {
		ird = -1
	}
	if ord == 0 {
		ord = -1
	}
	return min(ird, maxReads), min(ord, maxReads)
}

// dial opens the connection of an identifier when the turn t has come, and reports the result to
// the program. bound is as for dialTCP.
func (id *cmID) dial(ctx stdcontext.Context, q *queuePair, cfg *iwarp.Config, bound int, t turn) {
	id.mu.Lock()
	src, dst := id.src, id.dst
	id.mu.Unlock()
	refused := time.Now().Add(refusedFor)
	t.wait()
	nc, err := id.s.dialTCP(ctx, bound, src, dst, refused)
	t.end()
	if err == nil {
		at := route{addrOf(nc.LocalAddr()), addrOf(nc.RemoteAddr())}
		id.mu.Lock()
		id.src = at.from
		id.mu.Unlock()
		if w := id.s.opt.WrapConn; w != nil {
			nc = w(nc, true)
		}
		if id.s.linked() {
			id.s.links.dial(at, q)
		}
		var iw *iwarp.QueuePair
		iw, err = iwarp.Client(ctx, nc, cfg)
		l := id.s.links.answered(at)
		if err == nil {
			if id.connected(q, iw, l, "dial") {
				return
			}
			err = unix.EINVAL
		}
		l.cut()
	}
	id.fail(err)
}

// dialTCP connects from src to dst. A bound of at least 0 is a socket that reserves the port of
// src, and dialTCP closes the socket. A connection that is refused before the time refused is tried
// again. Connections within this host use shared memory if offered by the peer, unless the bytes are
// captured.
func (s *Service) dialTCP(ctx stdcontext.Context, bound int, src, dst netip.AddrPort, refused time.Time) (net.Conn, error) {
	if bound >= 0 { // bound reserves the port while the dialer binds its own sockets to it
		defer unix.Close(bound)
	}
	var d net.Dialer
	d.LocalAddr = net.TCPAddrFromAddrPort(src)
	d.Timeout = connectTimeout
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}
	for {
		nc, err := d.DialContext(ctx, "tcp", dst.String())
		switch {
		case errors.Is(err, unix.ECONNREFUSED) && time.Now().Before(refused):
			time.Sleep(10 * time.Millisecond)
			continue
		case err != nil || s.opt.WrapConn != nil:
			return nc, err
		}
		nc = sock.Own(nc)
		return nc, sock.ShareMemory(ctx, nc, s.opt.SameHost, "") // fails only with samehost.Require
	}
}

// refusedFor is how long a refused connection is retried, from the program's connect on, so that the
// times of connections refused one after the other do not add up. Programs such as perftest's close a
// listener and open the listener again between two connections, and rely on a peer to connect after
// the second opening.
const refusedFor = 300 * time.Millisecond

// fail reports to the program why the connection could not be made.
func (id *cmID) fail(err error) {
	id.mu.Lock()
	id.state = cmOver
	id.mu.Unlock()
	t, status, p := abi.EvConnectError, unix.ECONNABORTED, abi.ConnParam{}
	var rej *iwarp.RejectedError
	switch {
	case errors.As(err, &rej):
		t, status = abi.EvRejected, unix.ECONNREFUSED
		p.Private = rej.Private[:min(len(rej.Private), abi.MaxPrivate)]
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET):
		t, status = abi.EvRejected, unix.ECONNREFUSED
	case errors.Is(err, unix.EINVAL): // the queue pair was destroyed, or is in the error state
		status = unix.EINVAL
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, iwarp.ErrTimeout):
		t, status = abi.EvUnreachable, unix.ETIMEDOUT
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		t, status = abi.EvUnreachable, unix.EHOSTUNREACH
	}
	id.s.explain("connect %v: %v", id.dst, err)
	id.tell(t, status, p)
}

// connected attaches the stream to the queue pair, and reports the connection to the program. If
// the queue pair is destroyed, in the error state or already connected, connected closes the stream
// and returns false. l may be nil. role is "dial" or "accept".
func (id *cmID) connected(q *queuePair, iw *iwarp.QueuePair, l *link, role string) bool {
	ready := make(chan struct{})
	gone := func() {
		<-ready
		id.ended()
	}
	if err := q.start(iw, l, gone); err != nil {
		iw.Abort()
		iw.Close()
		return false
	}
	defer close(ready)
	id.s.show(q, iw, l, role)
	id.mu.Lock()
	id.state = cmConnected
	over := id.destroyed
	src, dst := id.src, id.dst
	id.mu.Unlock()
	if over {
		q.mu.Lock()
		if q.engine != nil {
			q.engine.close()
		}
		q.mu.Unlock()
		return true
	}
	private := iw.PeerPrivate()
	past := ""
	if l != nil {
		past = "; both ends are served here, payload is copied at once"
	}
	id.s.explain("%v -> %v: connected over iWARP, %d and %d reads, by %v%s", src, dst, iw.IRD(),
		iw.ORD(), iw.Path(), past)
	id.tell(abi.EvEstablished, 0, abi.ConnParam{Private: private[:min(len(private), abi.MaxPrivate)],
		IRD: uint8(min(iw.IRD(), 255)), ORD: uint8(min(iw.ORD(), 255))})
	return true
}

// ended reports the end of the connection to the program.
func (id *cmID) ended() {
	id.mu.Lock()
	id.state = cmOver
	id.mu.Unlock()
	id.tell(abi.EvDisconnected, 0, abi.ConnParam{})
}

func (k *cmCommand) disconnect() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	id.mu.Lock()
	state, q := id.state, id.qp
	id.mu.Unlock()
	if state != cmConnected && state != cmOver && state != cmRequested {
		k.Return(0, unix.EINVAL)
		return
	}
	k.Return(k.count, 0)
	if q != nil {
		q.mu.Lock()
		if q.engine != nil {
			q.engine.close()
		}
		q.mu.Unlock()
	}
}

// queuePair returns the queue pair with the number n for a stream of id, and the settings of the
// stream. If the result is nil, queuePair has answered the command with an error. A program could
// name a queue pair of another program, because numbers are unique in the whole device. Such a
// queue pair is refused: the peer of the stream could reach the memory of the other program.
func (k *cmCommand) queuePair(id *cmID, n uint32) (*queuePair, *iwarp.Config) {
	q := id.dev.qp(n)
	if q == nil || !q.x.openIn(k.Call, q.at) {
		k.Return(0, unix.EINVAL)
		return nil, nil
	}
	cfg, err := q.config()
	if err != nil {
		k.Return(0, unix.ENOMEM)
		return nil, nil
	}
	return q, cfg
}

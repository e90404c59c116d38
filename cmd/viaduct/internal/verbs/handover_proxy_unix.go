//go:build unix

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
	"viaduct/sdp"
)

// The messages of a handover, in order. The new process sends a hello. The old process sends the
// listeners. For each pair of connections, the old process sends which ends are SDP, the new
// process answers as soon as it expects these ends, and the old process sends the states. The last
// message ends the handover.

type handoverHello struct {
	Version int `json:"version"`
}

// handoverVersion is the version of the handover protocol.
const handoverVersion = 1

type handoverListeners struct {
	URLs []string `json:"urls"` // the file of each follows
}

type handoverEnd struct {
	Scheme string         `json:"scheme"`
	SDP    bool           `json:"sdp"` // the socket of an end that is not SDP is sent as a file
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	State  []byte         `json:"state,omitempty"`
	Left   []byte         `json:"left,omitempty"` // read from the other end and not written to this one yet
	EOF    bool           `json:"eof"`            // this end has ended its stream
	Told   bool           `json:"told"`           // the end of the stream was forwarded to the other end
}

type handoverPair struct {
	More bool           `json:"more"` // false ends the handover
	Ends [2]handoverEnd `json:"ends"`
}

// Each SDP end is expected at a separate port, because a returning connection is identified by the
// address alone.
type handoverReady struct {
	OK    bool      `json:"ok"`
	Ports [2]uint16 `json:"ports"`
}

// handoverTime bounds the handover of a pair, and the wait for a successor's greeting.
const handoverTime = 20 * time.Second

func describe(scheme string, c net.Conn) handoverEnd {
	e := handoverEnd{Scheme: scheme}
	_, e.SDP = c.(*sdp.Conn)
	e.Local, _ = netip.ParseAddrPort(c.LocalAddr().String())
	e.Remote, _ = netip.ParseAddrPort(c.RemoteAddr().String())
	return e
}

// greet reads the greeting of the other process. It returns an error if the other process is no
// successor, or has another version of the protocol.
func (h *handoverConn) greet() error {
	h.c.SetReadDeadline(time.Now().Add(handoverTime))
	var hello handoverHello
	files, err := h.receive(&hello)
	for _, f := range files {
		f.Close()
	}
	switch {
	case err != nil:
		return fmt.Errorf("the caller is no successor: %w", err)
	case hello.Version != handoverVersion:
		return fmt.Errorf("the successor speaks version %d, not %d", hello.Version, handoverVersion)
	}
	return h.c.SetReadDeadline(time.Time{})
}

// giveAway passes listeners and connections to the process at the other end, after that process's
// greeting. It returns the number of passed pairs.
func (p *proxy) giveAway(ctx context.Context, h *handoverConn) (moved int, err error) {
	p.settle()
	var urls handoverListeners
	var files []*os.File
	for i, b := range p.bases {
		f, err := b.File()
		if err != nil {
			return 0, err
		}
		defer f.Close()
		files, urls.URLs = append(files, f), append(urls.URLs, p.urls[i].String())
	}
	if err := h.send(urls, files...); err != nil {
		return 0, err
	}
	p.stopAccepting()
	for _, d := range p.takeAll() {
		if !d.pause() {
			d.near.Close()
			d.far.Close()
			continue
		}
		ok, err := giveAwayPair(ctx, h, d)
		if err != nil {
			return moved, err
		}
		if ok {
			moved++
		}
	}
	return moved, h.send(handoverPair{})
}

func giveAwayPair(ctx context.Context, h *handoverConn, d *duplex) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, handoverTime)
	defer cancel()
	q := handoverPair{More: true, Ends: [2]handoverEnd{describe(d.nearName, d.near), describe(d.farName, d.far)}}
	if err := h.send(q); err != nil {
		return false, err
	}
	var ready handoverReady
	if _, err := h.receive(&ready); err != nil {
		return false, err
	}
	var files []*os.File
	var failed error
	for i, c := range []net.Conn{d.near, d.far} {
		e := &q.Ends[i]
		in, out := &d.out, &d.back // direction that reads from this end, direction that writes to it
		if i == 1 {
			in, out = out, in
		}
		e.Left, e.EOF, e.Told = out.left, in.eof, in.ended
		switch s := c.(type) {
		case *sdp.Conn:
			if failed != nil || !ready.OK {
				break
			}
			st, err := s.Suspend(ctx, ready.Ports[i])
			if err == nil {
				e.State, err = st.MarshalBinary()
			}
			failed = err
		case interface{ File() (*os.File, error) }:
			f, err := s.File()
			if err != nil {
				failed = err
				break
			}
			defer f.Close()
			files = append(files, f)
		default:
			failed = fmt.Errorf("%T cannot be handed over", c)
		}
	}
	if failed != nil || !ready.OK {
		abort(d.near)
		abort(d.far)
		return false, h.send(handoverPair{More: true}) // no ends: the successor drops the pair
	}
	err := h.send(q, files...)
	for _, c := range []net.Conn{d.near, d.far} {
		if _, isSDP := c.(*sdp.Conn); !isSDP {
			c.Close() // our copy; the other process holds the connection
		}
	}
	return err == nil, err
}

// takeOver takes the listeners and connections of the process with the handover socket. ok is false
// if there is none.
func (p *proxy) takeOver(ctx context.Context, path string) (ok bool, err error) {
	h, err := dialHandover(path)
	if err != nil || h == nil {
		return false, err
	}
	defer h.c.Close()
	stop := context.AfterFunc(ctx, func() { h.c.Close() })
	defer stop()
	if err := h.send(handoverHello{handoverVersion}); err != nil {
		return false, fmt.Errorf("handover: %w", err)
	}
	var ls handoverListeners
	files, err := h.receive(&ls)
	if err != nil {
		return false, fmt.Errorf("handover: %w", err)
	}
	bases := map[string]net.Listener{}
	for i, f := range files {
		b, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return false, fmt.Errorf("handover: %w", err)
		}
		if i < len(ls.URLs) {
			bases[ls.URLs[i]] = b
		}
	}
	p.inherit(bases)
	for n := 0; ; n++ {
		var q handoverPair
		if _, err := h.receive(&q); err != nil {
			return true, fmt.Errorf("handover: %w", err)
		}
		if !q.More {
			p.e.Log.Info("taken over", "connections", n)
			return true, nil
		}
		if err := p.takePair(ctx, h, q); err != nil {
			return true, fmt.Errorf("handover: %w", err)
		}
	}
}

// A returning is an SDP end about to return to this process.
type returning struct {
	l *sdp.Listener
	x *sdp.Expectation
}

func (p *proxy) expect(e handoverEnd) (*returning, error) {
	l, err := transport.SDPResumer(p.o)
	if err != nil {
		return nil, err
	}
	x, err := l.Expect(e.Local, e.Remote, false, nil)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &returning{l, x}, nil
}

func (r *returning) port() uint16 { return r.l.Addr().(*net.TCPAddr).AddrPort().Port() }

// resume waits until the end has returned, and returns the connection. state is the state from the
// old process. resume gives up after handoverTime.
func (r *returning) resume(ctx context.Context, state []byte) (net.Conn, error) {
	var s sdp.State
	if err := s.UnmarshalBinary(state); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handoverTime)
	defer cancel()
	c, err := r.x.Resume(ctx, &s)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (r *returning) close() {
	r.x.Cancel()
	r.l.Close()
}

// takePair expects the SDP ends of a pair, receives their states, and continues the copy.
func (p *proxy) takePair(ctx context.Context, h *handoverConn, q handoverPair) error {
	var ends [2]*returning
	closeEnds := func() {
		for _, r := range ends {
			if r != nil {
				r.close()
			}
		}
	}
	ready := handoverReady{OK: true}
	for i, e := range q.Ends {
		if !e.SDP {
			continue
		}
		r, err := p.expect(e)
		if err != nil {
			p.e.Log.Warn("connection lost in handover", "remote", e.Remote.String(), "err", err)
			ready.OK = false
			break
		}
		ends[i], ready.Ports[i] = r, r.port()
	}
	if err := h.send(ready); err != nil {
		closeEnds()
		return err
	}
	var st handoverPair
	files, err := h.receive(&st)
	if err != nil {
		closeEnds()
		return err
	}
	if st.Ends[0].Scheme == "" { // the old process could not hand over the pair
		closeEnds()
		return nil
	}
	var conns [2]net.Conn
	for i, e := range st.Ends {
		if e.SDP {
			continue
		}
		if len(files) == 0 {
			closeEnds()
			return errors.New("a file is missing")
		}
		conns[i], err = net.FileConn(files[0])
		files[0].Close()
		if files = files[1:]; err != nil {
			closeEnds()
			return err
		}
	}
	p.began(1)
	p.wg.Go(func() {
		var once sync.Once
		settled := func() { once.Do(func() { p.began(-1) }) }
		defer settled()
		var err error
		for i, r := range ends {
			if r != nil && err == nil {
				conns[i], err = r.resume(ctx, st.Ends[i].State)
			}
		}
		closeEnds()
		if err != nil {
			p.e.Log.Warn("connection lost in handover", "remote", st.Ends[0].Remote.String(), "err", err)
			for _, c := range conns {
				if c != nil {
					abort(c)
				}
			}
			return
		}
		d := newDuplex(st.Ends[0].Scheme, conns[0], st.Ends[1].Scheme, conns[1])
		d.back.left, d.out.eof, d.out.ended = st.Ends[0].Left, st.Ends[0].EOF, st.Ends[0].Told
		d.out.left, d.back.eof, d.back.ended = st.Ends[1].Left, st.Ends[1].EOF, st.Ends[1].Told
		ok := p.enter(d)
		settled()
		if !ok {
			return
		}
		if err := p.carry(ctx, d); err != nil && ctx.Err() == nil {
			p.e.Log.Warn("connection failed", "remote", st.Ends[0].Remote.String(), "err", err)
		}
	})
	return nil
}

// serveHandover opens the handover socket and starts a goroutine that waits for a successor and
// passes everything on. Then given receives the result, and this process has no more work. A caller
// other than a successor changes nothing.
func (p *proxy) serveHandover(ctx context.Context, path string, given chan<- error) error {
	l, err := listenHandover(path)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	p.wg.Go(func() {
		defer l.Close()
		for {
			c, err := sock.AcceptNext(l.AcceptUnix, ctx.Done())
			if err != nil {
				return
			}
			h := &handoverConn{c}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			if err := h.greet(); err != nil {
				stop()
				c.Close()
				p.e.Log.Warn("nothing handed over", "err", err)
				continue
			}
			l.Close()
			n, err := p.giveAway(ctx, h)
			stop()
			c.Close()
			p.e.Log.Info("handed over to another process", "connections", n)
			given <- err
			return
		}
	})
	return nil
}

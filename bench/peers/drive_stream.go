package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"viaduct/internal/sock"
	"viaduct/sdp"
)

// streamEndpoint measures byte streams: plain Go TCP, and other types of net.Conn.
type streamEndpoint struct {
	dialer func(m measure, address string) (net.Conn, error)
	listen func(m measure) (net.Listener, error)
}

type streamHello struct {
	Address string `json:"address"`
}

func dialTCP(m measure, address string) (net.Conn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return c, tuneTCP(c, m)
}

func listenTCP(m measure) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	return tcpListener{l, m}, err
}

func tuneTCP(c net.Conn, m measure) error {
	return sock.Tune(c, sock.Tuning{Congestion: m.Congestion})
}

// A tcpListener accepts sockets with the same tuning as all compared programs.
type tcpListener struct {
	net.Listener
	m measure
}

func (l tcpListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c, tuneTCP(c, l.m)
}

func dialUnix(_ measure, address string) (net.Conn, error) { return net.Dial("unix", address) }

func listenUnix(measure) (net.Listener, error) {
	return net.Listen("unix", fmt.Sprintf("@viaduct-peers-%d", os.Getpid())) // an abstract name, which leaves no file
}

func sdpOptions(m measure) sdp.Options {
	return sdp.Options{NoCRC: !m.CRC, Congestion: m.Congestion, SameHost: m.sameHost()}
}

func dialSDP(m measure, address string) (net.Conn, error) {
	o := sdpOptions(m)
	return sdp.Dial(address, &o)
}

func listenSDP(m measure) (net.Listener, error) {
	o := sdpOptions(m)
	return sdp.Listen("127.0.0.1:0", &o)
}

func (e streamEndpoint) serve(m measure, announce func(any) error, mark func()) error {
	l, err := e.listen(m)
	if err != nil {
		return err
	}
	return serveStreams(m, l, announce, mark)
}

func (e streamEndpoint) dial(m measure, hello json.RawMessage) (result, error) {
	return dialStreams(m, hello, func(addr string) (net.Conn, error) { return e.dialer(m, addr) })
}

func serveStreams(m measure, l net.Listener, announce func(any) error, mark func()) error {
	defer l.Close()
	if m.Op == opIdle {
		mark() // before the first connection begins
	}
	if err := announce(streamHello{l.Addr().String()}); err != nil {
		return err
	}
	if m.Op == opSetup {
		defer context.AfterFunc(m.over, func() { l.Close() })()
		for {
			c, err := l.Accept()
			if err != nil {
				return nil
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}
	switch m.Op {
	case opHTTP:
		return serveHTTP(m, l)
	case opGRPC:
		return serveGRPC(m, l)
	}
	var wg sync.WaitGroup
	for i := range m.Conns {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if m.Op == opIdle {
			wg.Go(func() { c.Read(make([]byte, 1)); c.Close() })
			continue
		}
		if i == m.Conns-1 {
			mark()
		}
		wg.Go(func() { serveStream(c, m) })
	}
	m.outlast(&wg, mark)
	return nil
}

func serveStream(c net.Conn, m measure) {
	defer c.Close()
	if m.Op == opPing || m.Op == opEcho {
		b := buffer(m.Size)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	b := buffer(max(m.Footprint, 256<<10))
	for {
		if _, err := c.Read(b); err != nil {
			break
		}
	}
	c.Write(b[:1])
}

func dialStreams(m measure, hello json.RawMessage, dial func(addr string) (net.Conn, error)) (result, error) {
	var h streamHello
	if err := json.Unmarshal(hello, &h); err != nil {
		return result{}, err
	}
	if m.Op == opSetup {
		b := make([]byte, 1)
		return setups(m.Time, func() error {
			// One byte goes there and back, because a connection counts only when both sides are
			// connected, as with VI/TCP.
			c, err := dial(h.Address)
			if err != nil {
				return err
			}
			if _, err := c.Write(b); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, b); err != nil {
				return err
			}
			c.Close()
			return nil
		})
	}
	switch m.Op {
	case opHTTP:
		return requests(m, func() (net.Conn, error) { return dial(h.Address) })
	case opGRPC:
		return calls(m, func() (net.Conn, error) { return dial(h.Address) })
	}
	before := now()
	cs := make([]net.Conn, m.Conns)
	for i := range cs {
		c, err := dial(h.Address)
		if err != nil {
			return result{}, err
		}
		defer c.Close()
		cs[i] = c
		if m.Op == opIdle {
			go c.Read(make([]byte, 1))
		}
	}
	b := buffer(m.Footprint)
	switch m.Op {
	case opIdle:
		return m.idle(before), nil
	case opPing:
		return roundTrips(m.Time, func() error {
			if _, err := cs[0].Write(b[:m.Size]); err != nil {
				return err
			}
			_, err := io.ReadFull(cs[0], b[:m.Size])
			return err
		})
	case opEcho:
		bs := make([][]byte, m.Conns)
		for i := range bs {
			bs[i] = buffer(m.Size)
		}
		return concurrently(m, func(i int) error {
			if _, err := cs[i].Write(bs[i]); err != nil {
				return err
			}
			_, err := io.ReadFull(cs[i], bs[i])
			return err
		})
	case opStream:
		return streamOut(m, cs, b)
	}
	return result{}, errUnsupported
}

// streamOut writes to all connections for the time of m, each in a separate goroutine. streamOut
// returns when the peer has read every connection to the end.
func streamOut(m measure, cs []net.Conn, b []byte) (result, error) {
	w := watch(m.Time, 1)
	end := w.start.Add(m.Time)
	counts := make([]int, len(cs))
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			for k, first := 0, true; first || time.Now().Before(end); first = false { // at least one turn, even if the machine stands still
				for range max(1, every(m.Size)) {
					if _, err := c.Write(b[k*m.Size : (k+1)*m.Size]); err != nil {
						errs[i] = err
						return
					}
					counts[i]++
					k = (k + 1) % m.slots()
				}
			}
			if cw, ok := c.(interface{ CloseWrite() error }); ok {
				cw.CloseWrite()
			}
			_, errs[i] = io.ReadFull(c, make([]byte, 1))
		})
	}
	wg.Wait()
	n := 0
	for i := range cs {
		if errs[i] != nil && !os.IsTimeout(errs[i]) {
			return result{}, errs[i]
		}
		n += counts[i]
	}
	return w.result(n, m.Size), nil
}

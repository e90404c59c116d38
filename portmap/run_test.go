package portmap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/wire/portmapwire"
)

// A scripted is a connection that calls a function for each written datagram. The function returns
// the answers. A single goroutine uses the connection; only the deadline is set by another.
type scripted struct {
	net.Conn // nil, so that a method not defined below panics
	begin    time.Time
	log      []string // the written datagrams and their times
	answer   func(n int, b []byte) (read []any, write error)
	in       chan any // values of type []byte or error
	deadline chan time.Time
}

func (c *scripted) Write(b []byte) (int, error) {
	m, err := portmapwire.Parse(b)
	if err != nil || len(b) != portmapwire.MessageLen {
		panic(fmt.Sprint(b, err))
	}
	c.log = append(c.log, fmt.Sprint(m.Type, " ", time.Since(c.begin)))
	read, err := c.answer(len(c.log), b)
	for _, v := range read {
		c.in <- v
	}
	return len(b), err
}

func (c *scripted) SetReadDeadline(at time.Time) error {
	c.deadline <- at
	return nil
}

func (c *scripted) Read(b []byte) (int, error) {
	var at time.Time
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case at = <-c.deadline:
			timer.Reset(time.Until(at))
			continue
		default:
		}
		select {
		case at = <-c.deadline:
			timer.Reset(time.Until(at))
		case <-timer.C:
			return 0, os.ErrDeadlineExceeded
		case v := <-c.in:
			if err, ok := v.(error); ok {
				return 0, err
			}
			return copy(b, v.([]byte)), nil
		}
	}
}

func (c *scripted) RemoteAddr() net.Addr { return &net.UDPAddr{} }

// TestRun performs a transaction over a connection with a separate clock. The test checks which
// datagrams are sent and when, and when and how the transaction ends.
func TestRun(t *testing.T) {
	accept := func(n int, b []byte) ([]any, error) {
		m, _ := portmapwire.Parse(b)
		m.Type, m.PmTime, m.Ap = portmapwire.Accept, 4, ap("10.0.0.1:8080")
		return []any{m.Append(nil)}, nil
	}
	other := errors.New("cable cut")
	for _, c := range []struct {
		name   string
		answer func(n int, b []byte) ([]any, error)
		cancel time.Duration
		log    []string
		took   time.Duration
		err    error
	}{
		// The PMAck has the destination of the PMReq, and the caller gets the answer without delay.
		// [SDP-7.4-3] [SDP-7.4-26] [SDP-7.3.1.4-5]
		{name: "accepted", answer: func(n int, b []byte) ([]any, error) {
			if n == 1 {
				return accept(n, b)
			}
			return nil, nil
		}, log: []string{"PMReq 0s", "PMAck 0s"}},
		// [SDP-7.5.1-2] [SDP-7.5.1-3] [SDP-7.5-2]
		{name: "silence", answer: func(int, []byte) ([]any, error) { return nil, nil },
			log: []string{"PMReq 0s", "PMReq 250ms", "PMReq 750ms"}, took: 1750 * time.Millisecond, err: ErrNoAnswer},
		{name: "noise", answer: func(n int, _ []byte) ([]any, error) { return []any{make([]byte, 20*n)}, nil },
			log: []string{"PMReq 0s", "PMReq 250ms", "PMReq 750ms"}, took: 1750 * time.Millisecond, err: ErrNoAnswer},
		{name: "denied", answer: func(_ int, b []byte) ([]any, error) {
			m, _ := portmapwire.Parse(b)
			m.Type = portmapwire.Deny
			return []any{m.Append(nil)}, nil
		}, log: []string{"PMReq 0s"}, err: ErrDenied},
		// The error ECONNREFUSED is returned by a read, or by the next write. [D-63]
		{name: "unreachable, by read", answer: func(int, []byte) ([]any, error) { return []any{syscall.ECONNREFUSED}, nil },
			log: []string{"PMReq 0s", "PMReq 50ms"}, took: 50 * time.Millisecond, err: ErrNoAnswer},
		{name: "unreachable, by write", answer: func(int, []byte) ([]any, error) { return nil, syscall.ECONNREFUSED },
			log: []string{"PMReq 0s", "PMReq 50ms"}, took: 50 * time.Millisecond, err: ErrNoAnswer},
		{name: "unreachable once", answer: func(n int, b []byte) ([]any, error) {
			switch n {
			case 1:
				return []any{syscall.ECONNREFUSED}, nil
			case 2:
				return accept(n, b)
			}
			return nil, nil
		}, log: []string{"PMReq 0s", "PMReq 50ms", "PMAck 50ms"}, took: 50 * time.Millisecond},
		{name: "broken, by write", answer: func(int, []byte) ([]any, error) { return nil, other },
			log: []string{"PMReq 0s"}, err: other},
		{name: "broken, by read", answer: func(int, []byte) ([]any, error) { return []any{other}, nil },
			log: []string{"PMReq 0s"}, err: other},
		{name: "cancelled", answer: func(int, []byte) ([]any, error) { return nil, nil }, cancel: 300 * time.Millisecond,
			log: []string{"PMReq 0s", "PMReq 250ms"}, took: 300 * time.Millisecond, err: context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel != 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				conn := &scripted{begin: time.Now(), answer: c.answer, in: make(chan any, 10),
					deadline: make(chan time.Time, 10)}
				m, err := run(ctx, conn, newTx(t))
				if took := time.Since(conn.begin); !errors.Is(err, c.err) || took != c.took {
					t.Errorf("ended after %v with %v, want %v with %v", took, err, c.took, c.err)
				}
				if !reflect.DeepEqual(conn.log, c.log) {
					t.Errorf("sent %v, want %v", conn.log, c.log)
				}
				want := netip.AddrPort{}
				if c.err == nil {
					want = ap("10.0.0.1:8080")
				}
				if m.Address != want {
					t.Errorf("outcome %v, want %v", m.Address, want)
				}
			})
		})
	}
}

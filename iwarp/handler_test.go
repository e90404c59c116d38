package iwarp

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/rdmap"
)

// A handled is a consumer getting completions only through the handler of the queues.
type handled struct {
	mu   sync.Mutex
	got  []Completion // guarded by mu
	came chan struct{}
}

func handle(q *QueuePair) *handled {
	h := &handled{came: make(chan struct{}, 1)}
	for _, cq := range []*CompletionQueue{q.SendCQ(), q.RecvCQ()} {
		cq.handle(func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			var buf [4]Completion
			for n := cq.PollN(buf[:]); n > 0; n = cq.PollN(buf[:]) {
				h.got = append(h.got, buf[:n]...)
			}
			select {
			case h.came <- struct{}{}:
			default:
			}
		})
	}
	return h
}

// want waits for a completion, and fails the test unless the completion has the given values.
func (h *handled) want(t testing.TB, op Op, id uint64, st Status) {
	t.Helper()
	for late := time.After(testkit.Patience); ; {
		h.mu.Lock()
		if len(h.got) > 0 {
			e := h.got[0]
			h.got = h.got[1:]
			h.mu.Unlock()
			if e.Op != op || e.ID != id || e.Status != st {
				t.Fatalf("%v %d: %v, expected %v %d: %v", e.Op, e.ID, e.Status, op, id, st)
			}
			return
		}
		h.mu.Unlock()
		select {
		case <-h.came:
		case <-late:
			t.Fatalf("the handler did not hear of %v %d: %v", op, id, st)
		}
	}
}

// TestHandlerHears checks that the handler is called for each completed request, whatever the
// cause, although nothing polls the queue.
func TestHandlerHears(t *testing.T) {
	byte1 := []SGE{Buf([]byte{1})}
	for _, portable := range []bool{false, true} {
		ours := func() *Config { return &Config{portable: portable, Interop: Interop{NoNudge: true}} }
		t.Run(fmt.Sprintf("portable %t", portable), func(t *testing.T) {
			t.Run("transfer", func(t *testing.T) {
				a, b := connect(t, ours(), ours())
				h := handle(b)
				for _, q := range []*QueuePair{a, b} {
					q.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(make([]byte, 8))}})
				}
				a.Post(SendWR{SG: byte1})
				h.want(t, OpRecv, 1, StatusOK)
				b.Post(SendWR{ID: 2, SG: byte1, More: true})
				b.Flush()
				h.want(t, OpSend, 2, StatusOK)
				wantOK(t, a.SendCQ())
				b.CloseWrite()
			})
			t.Run("request without bytes", func(t *testing.T) {
				_, q := asResponder(t, ours())
				h := handle(q)
				q.Post(SendWR{ID: 1, Op: OpLocalInvalidate, Invalidate: 5}) // the window does not exist
				h.want(t, OpLocalInvalidate, 1, StatusOK)
			})
			t.Run("end of the peer's direction", func(t *testing.T) {
				p, q := asResponder(t, ours())
				h := handle(q)
				q.PostRecv(RecvWR{ID: 1})
				q.PostRecv(RecvWR{ID: 2})
				p.c.(*net.TCPConn).CloseWrite()
				h.want(t, OpRecv, 1, StatusFlushed)
				h.want(t, OpRecv, 2, StatusFlushed)
			})
			t.Run("message and end", func(t *testing.T) {
				p, q := asResponder(t, ours())
				h := handle(q)
				q.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(make([]byte, 4))}})
				q.PostRecv(RecvWR{ID: 2})
				p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte{1}))
				p.c.(*net.TCPConn).CloseWrite()
				h.want(t, OpRecv, 1, StatusOK)
				h.want(t, OpRecv, 2, StatusFlushed)
			})
			t.Run("reset", func(t *testing.T) {
				p, q := asResponder(t, ours())
				h := handle(q)
				q.PostRecv(RecvWR{ID: 1})
				p.c.(*net.TCPConn).SetLinger(0)
				p.c.Close()
				h.want(t, OpRecv, 1, StatusFlushed)
			})
			t.Run("Terminate", func(t *testing.T) {
				p, q := asResponder(t, ours())
				h := handle(q)
				q.PostRecv(RecvWR{ID: 1})
				p.ulpdu(seg(rdmap.Send, 5, 1, 0, true, nil)) // queue 5 does not exist
				h.want(t, OpRecv, 1, StatusFlushed)
			})
			t.Run("Abort", func(t *testing.T) {
				_, q := asResponder(t, ours())
				h := handle(q)
				q.PostRecv(RecvWR{ID: 1})
				sink := make([]byte, 8)
				q.Post(readInto(2, sink)) // the peer does not answer
				q.Abort()
				h.want(t, OpRead, 2, StatusFlushed)
				h.want(t, OpRecv, 1, StatusFlushed)
			})
		})
	}
}

// A watchedConn records in ended that the stream has begun to close the connection.
type watchedConn struct {
	net.Conn
	ended *atomic.Bool
}

func (c watchedConn) Close() error { c.ended.Store(true); return c.Conn.Close() }

func (c watchedConn) CloseWrite() error {
	c.ended.Store(true)
	return c.Conn.(*net.TCPConn).CloseWrite()
}

// TestHandlerHearsAtOnce checks that the handler is called for flushed requests before the
// connection is closed, because the peer may take seconds to close.
func TestHandlerHearsAtOnce(t *testing.T) {
	for what, end := range map[string]func(p *peer, q *QueuePair){
		// Queue 5 does not exist.
		"Terminate": func(p *peer, _ *QueuePair) { p.ulpdu(seg(rdmap.Send, 5, 1, 0, true, nil)) },
		"Abort":     func(_ *peer, q *QueuePair) { q.Abort() },
	} {
		t.Run(what, func(t *testing.T) {
			var ended atomic.Bool
			p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true},
				WrapConn: func(nc net.Conn) net.Conn { return watchedConn{nc, &ended} }})
			q.PostRecv(RecvWR{ID: 1})
			late := make(chan bool, 8)
			q.RecvCQ().handle(func() { late <- ended.Load() })
			end(p, q)
			if testkit.Await(t, "the handler", late) {
				t.Error("the connection was ended first")
			}
		})
	}
}

// TestHandlerHearsOfLast posts a request while another goroutine closes the direction or the
// stream. The handler must be called for the request, whichever of the two calls completes it, and
// no completion may stay in the queue.
func TestHandlerHearsOfLast(t *testing.T) {
	for name, end := range map[string]func(q *QueuePair){
		"CloseWrite": func(q *QueuePair) { q.CloseWrite() },
		"Abort":      func(q *QueuePair) { q.Abort() },
	} {
		for _, more := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, more %t", name, more), func(t *testing.T) {
				for range 50 {
					a, _ := connect(t, &Config{Interop: Interop{NoNudge: true}}, &Config{Interop: Interop{NoNudge: true}})
					handle(a)
					var wg sync.WaitGroup
					wg.Go(func() { a.Post(SendWR{ID: 1, Op: OpWrite, More: more}) })
					wg.Go(func() { end(a) })
					wg.Wait()
					for late := time.Now().Add(testkit.Patience); a.SendCQ().q.Len() > 0; runtime.Gosched() {
						if time.Now().After(late) {
							t.Fatal("the handler did not hear of a completion")
						}
					}
					a.Abort()
				}
			})
		}
	}
}

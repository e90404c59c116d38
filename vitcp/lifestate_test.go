package vitcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/machine"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestLife runs all events in all states of a connection. Compare the golden file with the figure
// of lifeState. [V-17] [V-18] [V-41]
func TestLife(t *testing.T) {
	var out strings.Builder
	for s := range lifeState(lifeStates) {
		for e := range lifeEvent(lifeEvents) {
			to := lifeTable[s][e]
			if to != s {
				fmt.Fprintf(&out, "%-10s %-13s %s\n", s, e, to)
			} else {
				fmt.Fprintf(&out, "%-10s %-13s -\n", s, e)
			}
			// An ended connection does not restart.
			if s.stopped() && !to.stopped() || s.faulted() && !to.faulted() || !s.running() && to.running() {
				t.Errorf("%v, %v: back to %v", s, e, to)
			}
			if (e == lifeLeave || e == lifeStop) && !to.stopped() {
				t.Errorf("%v, %v: %v is not stopped", s, e, to)
			}
		}
	}
	for s := range lifeState(lifeStates) {
		fmt.Fprintf(&out, "%-10s running %-5t  faulted %-5t  stopped %t\n", s, s.running(), s.faulted(), s.stopped())
	}
	testkit.Golden(t, "life.golden", []byte(out.String()))
}

// TestLifeOnce: if several goroutines end a connection at the same time, exactly one gets the
// result that it was the first.
func TestLifeOnce(t *testing.T) {
	for range 100 {
		var l machine.Life[lifeState]
		lifeTable.Move(&l, lifeStart)
		var first atomic.Int32
		var wg sync.WaitGroup
		for _, e := range []lifeEvent{lifeFault, lifeViolation, lifeFault, lifeViolation} {
			wg.Go(func() {
				if from, to := lifeTable.Move(&l, e); from != to {
					first.Add(1)
				}
			})
		}
		wg.Wait()
		if n := first.Load(); n != 1 {
			t.Fatalf("%d were first; state %v", n, l.Load())
		}
	}
}

// A consumer disconnects although the receive role has not recorded the consumer's last message yet.
// The last segment acknowledges the message. [VIT-3.1-ACK-2] [V-17]
func TestDisconnectAcknowledges(t *testing.T) {
	for _, agreed := range []bool{false, true} {
		o := sessionOpts{attrs: reliableAll}
		if agreed {
			o.cfg.Disconnect = true
			o.security = appendExtensions(nil, extensionDisconnect)
		}
		s := serveProbe(t, o)
		l := s.v.Link().(*link)
		left := make(chan error, 1)
		l.c.WithReceiver(func() { // a message is published, and not recorded yet
			go func() { left <- s.v.Disconnect() }()
			testkit.Eventually(t, "the consumer leaves", func() bool { return l.life.Load() == lifeLeaving })
			l.c.Kick()
			l.c.WithSender(func() {}) // the send role has looked
			l.acks.received(1, 0)
		})
		must(t, <-left)
		segs := s.wantEnd(io.EOF)
		if n := len(segs); n == 0 || segs[n-1].h.Ack != 1 || (segs[n-1].h.Type == vitcpwire.Disconnect) != agreed {
			t.Errorf("agreed %v: the end is %v", agreed, segs)
		}
	}
}

// How the stream ends decides the result for the consumer. If the stream ends between messages, the
// peer has disconnected and sends are flushed. Any other end is a transport error. The end is
// reported once. [VIT-2.2.2.2.2-3] [V-17] [V-18] [V-41]
func TestStreamEnds(t *testing.T) {
	fin := func(s *session) { s.nc.Close() }
	disconnect := func(s *session) {
		s.send(vitcpwire.Header{Type: vitcpwire.Disconnect, Flags: vitcpwire.EndOfMessage}, nil, nil)
	}
	after := func(do, end func(*session)) func(*session) {
		return func(s *session) {
			do(s)
			end(s)
		}
	}
	part := func(typ vitcpwire.Type, n int, r *vitcpwire.RDMA) func(*session) {
		return func(s *session) { s.send(vitcpwire.Header{Type: typ, Number: 1}, r, make([]byte, n)) }
	}
	reset := func(s *session) {
		s.nc.(*net.TCPConn).SetLinger(0)
		s.nc.Close()
	}
	remote := &RemoteError{}
	violation := &ProtocolError{}
	for name, v := range map[string]struct {
		agreed bool // both sides support the Disconnect message
		end    func(s *session)
		cause  error
		state  lifeState
	}{
		"FIN":                    {false, fin, errPeerDisconnected, lifeClosing},
		"FIN inside a header":    {false, after(func(s *session) { s.raw([]byte{1, 0}) }, fin), io.ErrUnexpectedEOF, lifeClosing},
		"a Write beyond its end": {false, after(part(vitcpwire.Write, 2, &vitcpwire.RDMA{}), fin), violation, lifeAborting},
		"FIN inside a Send":      {false, after(part(vitcpwire.Send, 2, nil), fin), io.ErrUnexpectedEOF, lifeClosing},
		"reset":                  {false, reset, syscall.ECONNRESET, lifeClosing},
		"garbage":                {false, func(s *session) { s.raw(make([]byte, 100)) }, violation, lifeAborting},
		"error, FIN":             {false, after(func(s *session) { s.nop(ack(1), fails(vitcpwire.DescriptorError)) }, fin), remote, lifeClosing},
		"agreed, FIN":            {true, fin, io.ErrUnexpectedEOF, lifeClosing},
		"agreed, Disconnect":     {true, after(disconnect, fin), errPeerDisconnected, lifeClosing},
		"agreed, said, then not": {true, after(disconnect, after(part(vitcpwire.Send, 2, nil), fin)), io.ErrUnexpectedEOF, lifeClosing},
		"agreed, said, reset": {true, after(disconnect, func(s *session) {
			for end := time.Now().Add(patience); s.v.Link().(*link).life.Load() != lifeLeft &&
				time.Now().Before(end); { // a reset discards bytes that were not read
				time.Sleep(time.Millisecond)
			}
			reset(s)
		}), syscall.ECONNRESET, lifeClosing},
	} {
		t.Run(name, func(t *testing.T) {
			cause := make(chan error, 10)
			o := sessionOpts{cfg: Config{Broken: func(_ *vi.VI, err error) { cause <- err }, Disconnect: true},
				attrs: reliableAll, posted: 2}
			if v.agreed {
				o.security = appendExtensions(nil, extensionDisconnect)
			}
			o.before = func(s *session) {
				r, _ := register(t, s.n, 10, vi.MemAttributes{})
				must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 10))))
			}
			s := serveProbe(t, o)
			l := s.v.Link().(*link)
			must(t, s.v.PostSend(vi.NewSend()))
			s.want(vitcpwire.Send)
			v.end(s)
			d, _ := waitSend(t, s.v)
			got := <-cause
			bits := vi.StatusTransportError
			switch v.cause {
			case errPeerDisconnected:
				bits = vi.StatusFlushed
			case error(remote):
				bits = vi.StatusRemoteDescriptor
			}
			if d.Status()&vi.StatusErrorMask != bits {
				t.Errorf("the send: %v, want %v", d.Status(), bits)
			}
			switch err := got.(type) {
			case *RemoteError:
				if v.cause != error(remote) {
					t.Errorf("cause %v", err)
				}
			case *ProtocolError:
				if v.cause != error(violation) {
					t.Errorf("cause %v", err)
				}
			default:
				if !errors.Is(err, v.cause) {
					t.Errorf("cause %v, want %v", err, v.cause)
				}
			}
			s.n.expectAsync(t, vi.ErrorConnLost)
			waitState(t, s.v, vi.Error)
			l.life.violated(framingf("another")) // a second violation has no effect
			must(t, s.v.Disconnect())
			l.Wait()
			if got := l.life.Load(); got != v.state {
				t.Errorf("the connection is %v, want %v", got, v.state)
			}
			if len(cause) > 0 {
				t.Errorf("told again: %v", <-cause)
			}
			s.n.noAsync(t)
			want := uint64(0)
			if v.cause == error(violation) {
				want = 1
			}
			if n := s.n.p.Stats().ProtocolErrors; n != want {
				t.Errorf("%d protocol errors", n)
			}
		})
	}
}

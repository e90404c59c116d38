package vitcp

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A segment only a faulty peer sends ends the connection by a reset, with the reason, and has no
// other effect. [V-01] [V-02] [V-07] [V-08] [V-09] [V-24] [V-37] [V-38] [V-41]
func TestViolations(t *testing.T) {
	type script func(s *session, r *vi.Region)
	rdma := func(r *vi.Region, n uint32) *vitcpwire.RDMA {
		return &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: n}
	}
	part := func(h *vitcpwire.Header) { h.Flags = 0 }
	offset := func(n uint32) func(*vitcpwire.Header) { return func(h *vitcpwire.Header) { h.Offset = n } }
	again := func(s *session) func(*vitcpwire.Header) {
		return func(h *vitcpwire.Header) { s.last--; h.Number = s.last }
	}
	for name, run := range map[string]script{
		"garbage":         func(s *session, _ *vi.Region) { s.raw([]byte("this is not a segment of anything at all")) },
		"another version": func(s *session, _ *vi.Region) { s.raw(append([]byte{2}, make([]byte, 23)...)) },
		"zeros":           func(s *session, _ *vi.Region) { s.raw(make([]byte, 100)) },
		"unknown type":    func(s *session, _ *vi.Region) { s.raw(append([]byte{1, 20 << 3, 0, 24}, make([]byte, 20)...)) },
		"too short":       func(s *session, _ *vi.Region) { s.raw(append([]byte{1, 0, 0, 23}, make([]byte, 20)...)) },
		"write too short": func(s *session, _ *vi.Region) { s.raw(append([]byte{1, 3 << 3, 0, 39}, make([]byte, 36)...)) },
		"connect request": func(s *session, _ *vi.Region) {
			s.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ceOf(reliableAll, "a", "b"), nil)
		},
		"connect accept": func(s *session, _ *vi.Region) {
			s.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "a", "b"), nil)
		},
		"disconnect that was not agreed on": func(s *session, _ *vi.Region) {
			s.send(vitcpwire.Header{Type: vitcpwire.Disconnect, Flags: vitcpwire.EndOfMessage}, nil, nil)
		},
		"gap in the numbers": func(s *session, _ *vi.Region) {
			s.message(vitcpwire.Send, nil, nil)
			s.last++
			s.message(vitcpwire.Send, nil, nil)
		},
		"number twice": func(s *session, _ *vi.Region) {
			s.message(vitcpwire.Send, nil, nil)
			s.last--
			s.message(vitcpwire.Send, nil, nil)
		},
		"offset in the first segment": func(s *session, _ *vi.Region) { s.message(vitcpwire.Send, nil, []byte("x"), offset(1)) },
		"gap in the offsets": func(s *session, _ *vi.Region) {
			s.message(vitcpwire.Send, nil, []byte("abc"), part)
			s.message(vitcpwire.Send, nil, []byte("x"), again(s), offset(4))
		},
		"overlapping offsets": func(s *session, _ *vi.Region) {
			s.message(vitcpwire.Send, nil, []byte("abc"), part)
			s.message(vitcpwire.Send, nil, []byte("x"), again(s), offset(2))
		},
		"two messages interleaved": func(s *session, _ *vi.Region) {
			s.message(vitcpwire.Send, nil, []byte("abc"), part)
			s.message(vitcpwire.Send, nil, []byte("x"))
		},
		"write inside a send": func(s *session, r *vi.Region) {
			s.message(vitcpwire.Send, nil, []byte("abc"), part)
			s.message(vitcpwire.Write, rdma(r, 3), []byte("abc"), again(s), offset(3))
		},
		"write longer than it says": func(s *session, r *vi.Region) { s.message(vitcpwire.Write, rdma(r, 3), []byte("abcd")) },
		"write shorter than it says": func(s *session, r *vi.Region) {
			s.message(vitcpwire.Write, rdma(r, 5), []byte("abcd"))
		},
		"write whose header changes": func(s *session, r *vi.Region) {
			s.message(vitcpwire.Write, rdma(r, 5), []byte("abc"), part)
			x := rdma(r, 5)
			x.Address++
			s.message(vitcpwire.Write, x, []byte("de"), again(s), offset(3))
		},
		"read request in two segments": func(s *session, r *vi.Region) { s.message(vitcpwire.ReadRequest, rdma(r, 3), nil, part) },
		"read request with payload":    func(s *session, r *vi.Region) { s.message(vitcpwire.ReadRequest, rdma(r, 3), []byte("x")) },
		"response without a request":   func(s *session, r *vi.Region) { s.message(vitcpwire.ReadResponse, rdma(r, 3), []byte("x")) },
		"response to another request": func(s *session, r *vi.Region) {
			must(s.t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 3))))
			q := s.want(vitcpwire.ReadRequest)
			s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: q.h.Number + 1, Flags: vitcpwire.EndOfMessage}, &q.rdma, []byte("abc"))
		},
		"response longer than the request": func(s *session, r *vi.Region) {
			must(s.t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 3))))
			q := s.want(vitcpwire.ReadRequest)
			s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: q.h.Number, Flags: vitcpwire.EndOfMessage},
				&q.rdma, []byte("abcd"))
		},
		"response shorter than the request": func(s *session, r *vi.Region) {
			must(s.t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 3))))
			q := s.want(vitcpwire.ReadRequest)
			s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: q.h.Number, Flags: vitcpwire.EndOfMessage},
				&q.rdma, []byte("ab"))
		},
	} {
		for _, portable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/portable=%v", name, portable), func(t *testing.T) {
				cause := make(chan error, 1)
				cfg := Config{Broken: func(_ *vi.VI, err error) { cause <- err }}
				if portable {
					cfg.WrapConn = hideDescriptor
				}
				guard := make([]byte, 3000)
				var r *vi.Region
				s := serveProbe(t, sessionOpts{cfg: cfg, attrs: reliableAll, posted: 9, before: func(s *session) {
					var err error
					r, err = s.n.RegisterMem(guard[1000:2000], allRights)
					must(t, err)
					for range 5 {
						must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 100))))
					}
				}})
				run(s, r)
				select {
				case err := <-cause:
					if _, ok := errors.AsType[*ProtocolError](err); !ok || err.Error() == "" {
						t.Errorf("cause %v", err)
					}
				case <-time.After(patience):
					t.Fatal("nothing happened")
				}
				if portable {
					s.wantEndAny() // only the TCP socket has SetLinger
				} else {
					s.wantEnd(errReset)
				}
				s.n.expectAsync(t, vi.ErrorConnLost)
				for i, b := range guard {
					if b != 0 && (i < 1000 || i >= 2000) {
						t.Fatalf("byte %d beside the region is %#x", i, b)
					}
				}
				if st := s.n.p.Stats(); st.ProtocolErrors != 1 {
					t.Errorf("stats %+v", st)
				}
			})
		}
	}
}

// The stream ends at one of several bytes of a message's second segment, by a FIN or by a reset.
// The current receive completes as partial. After a reset it may complete as flushed, because a
// reset discards unread bytes. [VIT-2.2.2.2.2-3] [VIA 4.6]
func TestTornStream(t *testing.T) {
	for _, reset := range []bool{false, true} {
		for _, cut := range []int{0, 1, 23, 24, 25, 28} {
			t.Run(fmt.Sprintf("reset=%v/cut=%d", reset, cut), func(t *testing.T) {
				cause := make(chan error, 1)
				s := serveProbe(t, sessionOpts{cfg: Config{Broken: func(_ *vi.VI, err error) { cause <- err }},
					attrs: reliableAll})
				r, _ := register(t, s.n, 100000, allRights)
				must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 100000))))
				s.recv()
				first := s.bytes(vitcpwire.Header{Type: vitcpwire.Send, Number: 1}, nil, nil, make([]byte, 60000))
				second := s.bytes(vitcpwire.Header{Type: vitcpwire.Send, Number: 1, Offset: 60000, Flags: vitcpwire.EndOfMessage}, nil, nil, []byte("12345"))
				s.raw(append(first, second[:cut]...))
				s.raw(nil)
				if reset {
					time.Sleep(2 * time.Millisecond) // a reset discards bytes that were not read
					s.nc.(*net.TCPConn).SetLinger(0)
				}
				s.nc.Close()
				d, _ := waitRecv(t, s.v)
				if st := d.Status() & vi.StatusErrorMask; st != vi.StatusPartialError &&
					!(reset && st == vi.StatusFlushed) {
					t.Errorf("status %v", d.Status())
				}
				s.n.expectAsync(t, vi.ErrorConnLost)
				err := <-cause
				if !reset && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
					t.Errorf("cause %v", err)
				}
			})
		}
	}
	t.Run("write", func(t *testing.T) {
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		r, _ := register(t, s.n, 100, allRights)
		s.last++
		s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last},
			&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 9}, []byte("1"))
		s.nc.Close()
		s.n.expectAsync(t, vi.ErrorRDMAWAbort, vi.ErrorConnLost)
	})
}

// The result does not depend on the pieces in which segments arrive: many in a read, or a byte at a
// time.
func TestAnySplitting(t *testing.T) {
	for _, max := range []int{1, 7, 100, 5000, 100000, 1 << 20} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 1, before: func(s *session) {
				for range 4 {
					must(t, s.v.PostRecv(vi.NewRecv()))
				}
			}})
			size := 150000
			if max < 100 {
				size = 3000
			}
			r, buf := register(t, s.n, size, allRights)
			want := make([]byte, size)
			fill(want, uint64(max))
			h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: uint32(size)}
			var stream []byte
			for i := range 4 {
				s.last++
				for off := 0; off < size; {
					n := min(size-off, 65495)
					x := vitcpwire.Header{Type: vitcpwire.Write, Number: s.last, Offset: uint32(off),
						Flags: vitcpwire.ImmediateValid, Immediate: uint32(i)}
					if off+n == size {
						x.Flags |= vitcpwire.EndOfMessage
					}
					stream = append(stream, s.bytes(x, nil, &h, want[off:off+n])...)
					off += n
				}
			}
			rnd := rand.New(rand.NewPCG(1, uint64(max)))
			go func() {
				for len(stream) > 0 {
					n := min(len(stream), 1+rnd.IntN(max))
					if _, err := s.nc.Write(stream[:n]); err != nil {
						t.Error(err)
						return
					}
					stream = stream[n:]
				}
			}()
			for i := range 4 {
				d, err := waitRecv(t, s.v)
				if err != nil || d.ImmediateData != uint32(i) {
					t.Fatalf("message %d: %v, %v", i, d.ImmediateData, err)
				}
			}
			s.wantAck(4)
			if string(buf) != string(want) {
				t.Error("bytes differ")
			}
		})
	}
}

// FuzzConnection feeds arbitrary bytes to an established connection. The process must survive,
// memory outside of the region must not change, and the connection ends or continues.
func FuzzConnection(f *testing.F) {
	p := &probe{t: f}
	seed := func(segs ...[]byte) {
		var all []byte
		for _, s := range segs {
			all = append(all, s...)
		}
		for level := range byte(3) {
			f.Add(level, level == 1, all)
		}
	}
	h := func(typ vitcpwire.Type, n vitcpwire.Number, fl vitcpwire.Flags) vitcpwire.Header {
		return vitcpwire.Header{Type: typ, Number: n, Flags: fl}
	}
	const end = vitcpwire.EndOfMessage
	r := &vitcpwire.RDMA{Address: 0, Handle: 0, Length: 8}
	seed(p.bytes(h(vitcpwire.Send, 1, end), nil, nil, []byte("hello")))
	seed(p.bytes(h(vitcpwire.Send, 1, 0), nil, nil, []byte("hello")),
		p.bytes(vitcpwire.Header{Type: vitcpwire.Send, Number: 1, Offset: 5, Flags: end}, nil, nil, []byte("x")))
	seed(p.bytes(h(vitcpwire.Write, 1, end), nil, r, []byte("12345678")),
		p.bytes(h(vitcpwire.Write, 2, end|vitcpwire.ImmediateValid), nil, r, []byte("12345678")))
	seed(p.bytes(h(vitcpwire.ReadRequest, 1, end), nil, r, nil))
	seed(p.bytes(h(vitcpwire.ReadResponse, 1, end), nil, r, []byte("12345678")))
	seed(p.bytes(h(vitcpwire.NOP, 0, end), nil, nil, nil), p.bytes(h(vitcpwire.Disconnect, 0, end), nil, nil, nil))
	seed(p.bytes(h(vitcpwire.Send, 1, end|vitcpwire.TransmitError), nil, nil, []byte("half")))
	seed([]byte("garbage that is longer than a header"))
	f.Fuzz(func(t *testing.T, level byte, flow bool, stream []byte) {
		attrs := withLevel(reliableAll, levels[level%3])
		attrs.FlowControl = flow
		s := serveProbe(t, sessionOpts{attrs: attrs, posted: 9})
		guard := make([]byte, 300)
		r, err := s.n.RegisterMem(guard[100:200], allRights)
		must(t, err)
		for range 3 {
			must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 50))))
		}
		must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 4))))
		if level%3 != 0 {
			must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 50, 8))))
		}
		// Addresses and handles in the input are changed so that they point into the region.
		// Otherwise the input would rarely pass the checks.
		for i := 0; i+40 <= len(stream); {
			n := int(stream[i+2])<<8 | int(stream[i+3])
			if typ := stream[i+1] >> 3; typ >= 1 && typ <= 3 {
				x, _, _ := vitcpwire.ParseRDMA(stream[i+24:])
				x.Address = r.Address() + x.Address%128
				x.Handle = uint32(r.Handle())
				x.Append(stream[i+24 : i+24])
			}
			i += max(n, 24)
		}
		s.nc.Write(stream) // fails if the connection is reset meanwhile
		s.nc.(*net.TCPConn).CloseWrite()
		s.wantEndAny()
		waitState(t, s.v, vi.Error)
		for i, b := range guard {
			if b != 0 && (i < 100 || i >= 200) {
				t.Fatalf("byte %d beside the region is %#x", i, b)
			}
		}
	})
}

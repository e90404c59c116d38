package iwarp

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"viaduct/internal/wire/rdmap"
)

// A testSpace is a Space whose memory belongs to this program. Accesses outside of it fail.
type testSpace struct {
	mu   sync.Mutex
	base uint64
	mem  []byte // guarded by mu
}

var errSpace = errors.New("no such memory")

func (s *testSpace) move(n int, addr uint64, f func(b []byte)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr < s.base || addr-s.base+uint64(n) > uint64(len(s.mem)) {
		return errSpace
	}
	f(s.mem[addr-s.base:][:n])
	return nil
}

func (s *testSpace) ReadAt(p []byte, addr uint64) error {
	return s.move(len(p), addr, func(b []byte) { copy(p, b) })
}

func (s *testSpace) WriteAt(p []byte, addr uint64) error {
	return s.move(len(p), addr, func(b []byte) { copy(b, p) })
}

func (s *testSpace) is(want []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Equal(s.mem, want)
}

// TestSpace tests all transfers between memory that neither side can address, with near elements
// among far ones, over every variant of the stream. Each message must take one receive. [I-61]
// [I-49] [RDMAP-5.3-2] [RDMAP-5.3-11]
func TestSpace(t *testing.T) {
	const size = 300000
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			ci, cr := v.ci, v.cr
			if v.noCRC {
				ci.Device, cr.Device = NewDevice(DeviceConfig{NoCRC: true}), NewDevice(DeviceConfig{NoCRC: true})
			}
			qi, qr := connect(t, &ci, &cr)
			far := func(q *QueuePair, seed byte) (*testSpace, *MemoryRegion) {
				s := &testSpace{base: 0x7f1200000000, mem: pattern(size, seed)}
				mr, err := q.PD().RegisterSpace(s, s.base, size, RemoteRead|RemoteWrite,
					RegionOptions{Key: 7, KeySet: true})
				if err != nil {
					t.Fatal(err)
				}
				if mr.STag()&0xff != 7 || mr.TO() != s.base || mr.Bytes() != nil {
					t.Errorf("STag %#x, TO %#x, %d bytes", mr.STag(), mr.TO(), len(mr.Bytes()))
				}
				return s, mr
			}
			si, mi := far(qi, 1)
			sr, mr := far(qr, 2)
			remote := RemoteAddr{STag: mr.STag(), TO: mr.TO()}
			for _, n := range []int{1, 64, 4096, 70000, size} {
				post := func(op Op, sg ...SGE) {
					if err := qi.Post(SendWR{Op: op, SG: sg, Remote: remote}); err != nil {
						t.Fatal(err)
					}
					wantOK(t, qi.SendCQ())
				}
				want := pattern(size, 2)
				copy(sr.mem, want)
				copy(want, si.mem[:n])

				post(OpWrite, mi.SGE(0, n))
				qr.PostRecv(RecvWR{})
				post(OpSend) // arrives after the Write is in place
				wantOK(t, qr.RecvCQ())
				if !sr.is(want) {
					t.Fatalf("Write of %d bytes is wrong", n)
				}

				copy(sr.mem, pattern(size, 3))
				post(OpRead, mi.SGE(0, n))
				if !bytes.Equal(si.mem[:n], sr.mem[:n]) {
					t.Fatalf("Read of %d bytes is wrong", n)
				}

				near := pattern(100, 4)
				copy(sr.mem, pattern(size, 5))
				copy(si.mem, pattern(size, 6))
				qr.PostRecv(RecvWR{ID: 1, SG: []SGE{mr.SGE(50, size-50), Buf(make([]byte, 150))}})
				qr.PostRecv(RecvWR{ID: 2})
				post(OpSend, Buf(near), mi.SGE(0, min(n, size-100)))
				if c := wantOK(t, qr.RecvCQ()); int(c.Len) != 100+min(n, size-100) || c.ID != 1 {
					t.Fatalf("Send of %d bytes: %+v", n, c)
				}
				post(OpSend)
				if c := wantOK(t, qr.RecvCQ()); c.ID != 2 {
					t.Fatalf("the next Send: %+v", c)
				}
				got := sr.mem[50:]
				if k := min(n, size-150); !bytes.Equal(got[:100], near) || !bytes.Equal(got[100:100+k], si.mem[:k]) {
					t.Fatalf("Send of %d bytes is wrong", n)
				}
			}
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSpaceGone checks that unmapped memory of a program ends the stream that needs the memory,
// like a closed region. [I-34] [I-43]
func TestSpaceGone(t *testing.T) {
	gone := func(q *QueuePair) *MemoryRegion {
		mr, err := q.PD().RegisterSpace(&testSpace{}, 0x10000, 1<<16, RemoteRead|RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		return mr
	}
	for _, c := range []struct {
		name           string
		u              func(stag uint32) []byte
		layer, typ, co uint8
	}{
		{"Read", func(stag uint32) []byte {
			return readReq(1, rdmap.ReadRequest{Size: 4000, SourceSTag: stag, SourceTO: 0x10000})
		}, 0, 1, 0},
		{"Write", func(stag uint32) []byte {
			return tag(rdmap.Write, stag, 0x10000, true, make([]byte, 4000))
		}, 1, 1, 0},
		{"Atomic", func(stag uint32) []byte {
			return seg(rdmap.AtomicRequestOp, 1, 1, 0, true, rdmap.NewFetchAdd(stag, 0x10000, 1, 0).Append(nil))
		}, 0, 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asInitiator(t, &Config{Atomic: true})
			mr := gone(q)
			p.ulpdu(c.u(mr.STag()))
			wantTerminate(t, ended(t, q), false, c.layer, c.typ, c.co)
			p.c.Close()
			<-q.life.gone.C()
			within(t, "Close of the region", func() { mr.Close() }) // no pin may be left
		})
	}
	for _, n := range []int{10, 5000} {
		_, q := asResponder(t, nil)
		q.Post(SendWR{SG: []SGE{gone(q).SGE(0, n)}})
		ended(t, q)
		if c, err := q.SendCQ().Wait(ctxt(t)); err != nil || c.Status != StatusLocalAccess {
			t.Errorf("%+v, %v", c, err)
		}
	}
	t.Run("receive", func(t *testing.T) {
		p, q := asInitiator(t, nil)
		q.PostRecv(RecvWR{SG: []SGE{gone(q).SGE(0, 100)}})
		p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte("bytes")))
		ended(t, q)
		if c, err := q.RecvCQ().Wait(ctxt(t)); err != nil || c.Status != StatusLocalAccess {
			t.Errorf("%+v, %v", c, err)
		}
		p.c.Close()
		<-q.life.gone.C()
	})
}

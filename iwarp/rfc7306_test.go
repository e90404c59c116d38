package iwarp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

func extended() *Config {
	return &Config{Atomic: true, Immediate: true, Interop: Interop{NoNudge: true}}
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }

// TestAtomics performs Atomic Operations with random operands, and compares the words with words
// the test computes. Each operation must return the original value. The byte order is that of this
// machine. [RDMAPX-5.1.1-7] [RDMAPX-5.1.1-8] [RDMAPX-5.1.2-1] [RDMAPX-5.1.2-2] [RDMAPX-5.2.2-5]
// [RDMAPX-5.4-1] [RDMAPX-5.4-7] [RDMAPX-1.1-4] [RDMAPX-5.2.1-9] [RDMAPX-5.2.1-14] [I-65]
func TestAtomics(t *testing.T) {
	a, b := connect(t, extended(), extended())
	mem := make([]byte, 64)
	mr, _ := b.Register(mem, RemoteAtomic|RemoteRead)
	want := uint64(0)
	for i := range 500 {
		at := RemoteAddr{STag: mr.STag(), TO: 8}
		ops := Atomic{Data: rand.Uint64(), Mask: rand.Uint64(), Compare: want, CompareMask: rand.Uint64()}
		wr := SendWR{Op: OpFetchAdd, Remote: at, Atomic: ops}
		next, _ := rdmap.NewFetchAdd(0, 0, ops.Data, ops.Mask).Apply(want)
		switch i % 3 {
		case 1:
			wr.Op = OpCmpSwap
			if i%2 == 0 {
				wr.Atomic.Compare ^= 1 << rand.IntN(64)
			}
			next, _ = rdmap.NewCmpSwap(0, 0, wr.Atomic.Compare, ops.CompareMask, ops.Data, ops.Mask).Apply(want)
		case 2: // a probe that changes nothing
			wr.Atomic.Data = 0
			next = want
		}
		if err := a.Post(wr); err != nil {
			t.Fatal(err)
		}
		if c := wantOK(t, a.SendCQ()); c.Value != want {
			t.Fatalf("%d: original value %x, want %x", i, c.Value, want)
		}
		if got := atomic.LoadUint64(word(mem[8:])); got != next { // native byte order
			t.Fatalf("%d: word %x, want %x", i, got, next)
		}
		want = next
	}
	if s := b.Stats(); s.ServedAtomics != 500 || s.ServedReads != 0 {
		t.Errorf("%+v", s)
	}
	if _, ok := b.RecvCQ().Poll(); ok {
		t.Error("the ULP saw an Atomic")
	}
}

// TestAtomicsTogether adds to one word from many streams and from a goroutine of the ULP. The sum
// must be exact. [RDMAPX-5-1] [RDMAPX-5.3-1] [RDMAPX-5.4-2] [RDMAPX-5-2]
func TestAtomicsTogether(t *testing.T) {
	dev := NewDevice(DeviceConfig{})
	pd := dev.NewPD()
	mem := make([]byte, 8)
	mr, _ := pd.Register(mem, RemoteRead|RemoteWrite) // the rights to read and write suffice together
	const streams, each = 3, 300
	var wg sync.WaitGroup
	for range streams {
		cfg := extended()
		cfg.PD = pd
		a, _ := connect(t, extended(), cfg)
		wg.Go(func() {
			for range each {
				if err := a.Post(SendWR{Op: OpFetchAdd, Remote: RemoteAddr{STag: mr.STag()}, Atomic: Atomic{Data: 1}}); err != nil {
					t.Error(err)
					return
				}
				wantOK(t, a.SendCQ())
			}
		})
	}
	for range each {
		atomic.AddUint64(word(mem), 1)
	}
	wg.Wait()
	if got := atomic.LoadUint64(word(mem)); got != (streams+1)*each {
		t.Errorf("sum %d, want %d", got, (streams+1)*each)
	}
}

// TestAtomicsOnTheWire checks the order of Atomic Responses, their slots and their identifiers. See
// TestErrorTable for refused operations. [RDMAPX-5-5] [RDMAPX-5-6] [RDMAPX-5.1.1-4]
// [RDMAPX-5.1.2-4] [RDMAPX-5.2-2] [RDMAPX-5.2.1-3] [RDMAPX-5.2.1-7] [RDMAPX-5.2.1-8]
// [RDMAPX-5.2.1-12] [RDMAPX-5.2.1-13] [RDMAPX-5.2.2-1] [RDMAPX-5.2.2-2] [RDMAPX-5.2.2-3]
// [RDMAPX-5.2.2-7] [RDMAPX-5.4-3] [RDMAPX-5.4-5] [RDMAPX-5.4-8] [RDMAPX-7-3] [RDMAPX-4.2-1] [I-64]
func TestAtomicsOnTheWire(t *testing.T) {
	cfg := extended()
	cfg.IRD, cfg.MaxIRD = 16, 16
	p, q := asInitiator(t, cfg)
	mr, _ := q.Register(make([]byte, 64), RemoteAtomic|RemoteRead|RemoteWrite)
	msn, amsn := ddp.MSN(1), uint32(1)
	atomicReq := func(r rdmap.AtomicRequest) []byte {
		u := seg(rdmap.AtomicRequestOp, 1, msn, 0, true, r.Append(nil))
		msn++
		return u
	}
	for round := range 50 {
		// A Write, then a chain of CmpSwaps on the written word, then Reads: as many of each as
		// agreed, all outstanding together.
		var w [8]byte
		binary.NativeEndian.PutUint64(w[:], uint64(1000*round))
		us := [][]byte{tag(rdmap.Write, mr.STag(), 0, true, w[:])}
		for i := range uint64(16) {
			r := rdmap.NewCmpSwap(mr.STag(), 0, uint64(1000*round)+i, ^uint64(0), uint64(1000*round)+i+1, ^uint64(0))
			r.ID = rand.Uint32()
			us = append(us, atomicReq(r))
		}
		for i := range 16 {
			us = append(us, readReq(msn, rdmap.ReadRequest{SinkTO: uint64(i), Size: 8, SourceSTag: mr.STag()}))
			msn++
		}
		p.ulpdu(us...)
		for i := range uint64(16) {
			u := p.next()
			want := "414b00000000" + "00000003" +
				hex.EncodeToString(binary.BigEndian.AppendUint32(nil, amsn)) + "00000000"
			if hex.EncodeToString(u[:18]) != want || len(u) != 30 || !bytes.Equal(u[18:22], us[1+i][22:26]) ||
				binary.BigEndian.Uint64(u[22:]) != uint64(1000*round)+i {
				t.Fatalf("response %d: %x", i, u)
			}
			amsn++
		}
		for i := range 16 {
			u := p.next()
			if u[1] != 0x42 || binary.BigEndian.Uint64(u[6:]) != uint64(i) ||
				binary.NativeEndian.Uint64(u[14:]) != uint64(1000*round+16) {
				t.Fatalf("Read response %d: %x", i, u)
			}
		}
	}
}

// TestAtomicResponses sends responses that do not answer our oldest Atomic. Each response must end
// the stream. [RDMAPX-5-6] [RDMAPX-5.2.2-4] [RDMAPX-5.2.2-6] [I-67] [I-68]
func TestAtomicResponses(t *testing.T) {
	for _, c := range []struct {
		name string
		u    func(id uint32) []byte
	}{
		{"identifier", func(id uint32) []byte {
			return seg(rdmap.AtomicResponseOp, 3, 1, 0, true, rdmap.AtomicResponse{ID: id + 1}.Append(nil))
		}},
		{"MSN", func(id uint32) []byte {
			return seg(rdmap.AtomicResponseOp, 3, 2, 0, true, rdmap.AtomicResponse{ID: id}.Append(nil))
		}},
		{"length", func(id uint32) []byte {
			return seg(rdmap.AtomicResponseOp, 3, 1, 0, true, append(rdmap.AtomicResponse{ID: id}.Append(nil), 0))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asResponder(t, extended())
			q.Post(SendWR{Op: OpFetchAdd, Remote: RemoteAddr{STag: 4, TO: 8}})
			r, _, _ := rdmap.ParseAtomicRequest(p.next()[18:])
			u := c.u(r.ID)
			p.ulpdu(u)
			body := binary.BigEndian.AppendUint16([]byte{0x02, 0xff, 0xc0, 0}, uint16(len(u)))
			p.terminate(append(body, u[:18]...))
			wantTerminate(t, ended(t, q), false, 0, 2, 0xff)
		})
	}
	// An Atomic Response must not complete a Read, which has no request identifier.
	t.Run("answer to a Read", func(t *testing.T) {
		p, q := asResponder(t, extended())
		q.Post(readInto(1, make([]byte, 4)))
		p.next()
		p.ulpdu(seg(rdmap.AtomicResponseOp, 3, 1, 0, true, rdmap.AtomicResponse{}.Append(nil)))
		wantTerminate(t, ended(t, q), false, 0, 2, 0xff)
	})
	t.Run("without a request", func(t *testing.T) {
		p, q := asResponder(t, extended())
		u := seg(rdmap.AtomicResponseOp, 3, 1, 0, true, rdmap.AtomicResponse{ID: 1}.Append(nil))
		p.ulpdu(u)
		p.terminate(append([]byte{0x02, 6, 0xc0, 0, 0, byte(len(u))}, u[:18]...))
		wantTerminate(t, ended(t, q), false, 0, 2, 6)
	})
	t.Run("answer to the Read behind", func(t *testing.T) {
		p, q := asResponder(t, extended())
		q.Post(readInto(1, make([]byte, 4)))
		q.Post(SendWR{Op: OpFetchAdd, Remote: RemoteAddr{STag: 4, TO: 8}})
		p.next()
		r, _, _ := rdmap.ParseAtomicRequest(p.next()[18:])
		p.ulpdu(seg(rdmap.AtomicResponseOp, 3, 1, 0, true, rdmap.AtomicResponse{ID: r.ID}.Append(nil)))
		wantTerminate(t, ended(t, q), false, 0, 2, 0xff)
	})
}

// TestImmediate checks that Immediate Data is eight bytes, keeps its order with Sends, uses one
// receive for each message, and arrives after the Writes before it. [RDMAPX-6.1-1] [RDMAPX-6.3-2]
// [RDMAPX-6.3-3] [RDMAPX-6.3-6] [RDMAPX-6.4-1] [RDMAPX-7-1] [I-66]
func TestImmediate(t *testing.T) {
	a, b := connect(t, extended(), extended())
	mem := make([]byte, 8)
	mr, _ := b.Register(mem, RemoteWrite)
	into := [3][]byte{make([]byte, 1), make([]byte, 8), make([]byte, 8)}
	for i := range 50 {
		for j := range 3 {
			w := RecvWR{ID: uint64(j), SG: []SGE{Buf(into[j])}}
			if j == 1 && i%2 == 0 {
				w.SG = nil // a receive of zero length suffices
			}
			b.PostRecv(w)
		}
		a.PostBatch([]SendWR{
			{SG: []SGE{Buf([]byte{7})}, Unsignaled: true},
			{Op: OpWrite, Remote: RemoteAddr{STag: mr.STag()}, SG: []SGE{Buf(bytes.Repeat([]byte{byte(i)}, 8))}, Unsignaled: true},
			{Op: OpImmediate, Immediate: [8]byte{1, byte(i)}, Unsignaled: true},
			{Op: OpImmediateSE, Immediate: [8]byte{2, byte(i)}},
		})
		if c := wantOK(t, b.RecvCQ()); c.ID != 0 || c.HasImm || c.Len != 1 {
			t.Fatalf("%+v", c)
		}
		if c := wantOK(t, b.RecvCQ()); c.ID != 1 || !c.HasImm || c.Imm != [8]byte{1, byte(i)} ||
			c.Len != 0 || c.Solicited {
			t.Fatalf("%+v", c)
		}
		if mem[7] != byte(i) {
			t.Fatalf("%x", mem)
		}
		if c := wantOK(t, b.RecvCQ()); c.ID != 2 || c.Imm != [8]byte{2, byte(i)} || !c.Solicited {
			t.Fatalf("%+v", c)
		}
		if !bytes.Equal(into[1], make([]byte, 8)) || !bytes.Equal(into[2], make([]byte, 8)) {
			t.Fatalf("the eight bytes went into a receive as well: %x", into)
		}
		wantOK(t, a.SendCQ())
	}
}

// TestOthersMayPass checks that messages that the peer sends after a Read or Atomic do not wait for
// the answer to it. [RDMAPX-5.4-4] [RDMAPX-5.4-6] [RDMAPX-7-4] [RDMAPX-7-2]
func TestOthersMayPass(t *testing.T) {
	p, q := asInitiator(t, extended())
	big, _ := q.Register(make([]byte, 32<<20), RemoteRead|RemoteAtomic)
	q.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}})
	p.ulpdu(readReq(1, rdmap.ReadRequest{Size: 32 << 20, SourceSTag: big.STag()}),
		seg(rdmap.AtomicRequestOp, 1, 2, 0, true, rdmap.NewFetchAdd(big.STag(), 0, 1, 0).Append(nil)),
		seg(rdmap.Immediate, 0, 1, 0, true, make([]byte, 8)))
	if c := wantOK(t, q.RecvCQ()); !c.HasImm {
		t.Errorf("%+v", c)
	}
	time.Sleep(time.Millisecond)
	if s := q.Stats(); s.ServedAtomics != 0 { // the Atomic must wait for the Read before it
		t.Errorf("%+v", s)
	}
}

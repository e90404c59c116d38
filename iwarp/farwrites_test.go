package iwarp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// A countingSpace counts its reads and writes.
type countingSpace struct {
	testSpace
	reads, writes int
}

func (s *countingSpace) ReadAt(p []byte, addr uint64) error {
	s.mu.Lock()
	s.reads++
	s.mu.Unlock()
	return s.testSpace.ReadAt(p, addr)
}

func (s *countingSpace) WriteAt(p []byte, addr uint64) error {
	s.mu.Lock()
	s.writes++
	s.mu.Unlock()
	return s.testSpace.WriteAt(p, addr)
}

const (
	farBase = 0x7f1200000000
	farLen  = 64 << 10 // length of the region
	farHas  = 60 << 10 // length of the accessible part of the memory
)

// A farEnd is the result of a farConversation, at the end under test.
type farEnd struct {
	mem    []byte
	said   string // what the end under test has sent, without STags, one line for each ULPDU
	done   string // completions, one line each
	placed uint64
	ended  bool
	writes int
}

// farConversation sends ULPDUs to an end whose memory is far: all at once if together is true,
// otherwise each after handling of the previous ULPDU. spoil is the index of a ULPDU to send with a
// wrong CRC, or negative.
func farConversation(t *testing.T, us func(stag uint32) [][]byte, spoil int, together bool) (e farEnd) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		p, q := asInitiator(t, nil)
		s := &countingSpace{testSpace: testSpace{base: farBase, mem: pattern(farHas, 1)}}
		mr, err := q.PD().RegisterSpace(s, farBase, farLen, RemoteRead|RemoteWrite, RegionOptions{Key: 7, KeySet: true})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			if err := q.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{mr.SGE(40000+100*i, 100)}}); err != nil {
				t.Fatal(err)
			}
		}
		var all []byte
		for i, u := range us(mr.STag()) {
			b := p.enc.Append(nil, u)
			if i == spoil {
				b[len(b)-1] ^= 1
			}
			if together {
				all = append(all, b...)
				continue
			}
			// The write may fail, because the end under test stops reading at the end of the
			// stream.
			p.c.SetWriteDeadline(time.Now().Add(time.Second))
			p.c.Write(b)
			synctest.Wait()
		}
		if together {
			p.raw(all)
			synctest.Wait()
		}
		for err = error(nil); err == nil; {
			var b [4096]byte
			var n int
			p.c.SetReadDeadline(time.Now().Add(time.Second))
			n, err = p.c.Read(b[:])
			p.buf = append(p.buf, b[:n]...)
		}
		e.ended = err == io.EOF
		for len(p.buf) > 0 {
			u := p.next()
			// The answer to a Read may or may not be sent before a Terminate, depending on when the
			// error is found.
			if e.ended && ddp.IsTagged(u[0]) {
				continue
			}
			for _, key := range []uint32{mr.STag(), mr.STag() + 1} {
				u = bytes.ReplaceAll(u, binary.BigEndian.AppendUint32(nil, key), []byte("STag"))
			}
			e.said += fmt.Sprintf("%x\n", u)
		}
		for q.RecvCQ().Len() > 0 {
			var cs [8]Completion
			for _, c := range cs[:q.RecvCQ().PollN(cs[:])] {
				e.done += fmt.Sprintln(c.ID, c.Status, c.Len)
			}
		}
		e.placed = q.Stats().PlacedBytes
		e.mem, e.writes = bytes.Clone(s.mem), s.writes
	})
	return e
}

func (e *farEnd) differs(o *farEnd) string {
	switch {
	case !bytes.Equal(e.mem, o.mem):
		for i := range e.mem {
			if e.mem[i] != o.mem[i] {
				return fmt.Sprintf("memory from byte %d on", i)
			}
		}
	case e.said != o.said:
		return fmt.Sprintf("answers %s and %s", e.said, o.said)
	case e.done != o.done:
		return fmt.Sprintf("completions %q and %q", e.done, o.done)
	case e.placed != o.placed, e.ended != o.ended:
		return fmt.Sprintf("%d and %d bytes placed, ended %v and %v", e.placed, o.placed, e.ended, o.ended)
	}
	return ""
}

// TestFarWrites checks that adjacent short Writes, arriving together, are placed with a single
// call.
func TestFarWrites(t *testing.T) {
	e := farConversation(t, func(stag uint32) (us [][]byte) {
		for i := range 20 {
			us = append(us, tag(rdmap.Write, stag, farBase+100+uint64(50*i), i%2 == 1, pattern(50, byte(10+i))))
		}
		return append(us, seg(rdmap.Send, 0, 1, 0, true, []byte("told")))
	}, -1, true)
	want := pattern(farHas, 1)
	for i := range 20 {
		copy(want[100+50*i:], pattern(50, byte(10+i)))
	}
	copy(want[40000:], "told")
	if !bytes.Equal(e.mem, want) {
		t.Error("memory is wrong")
	}
	if e.writes != 2 {
		t.Errorf("%d calls, want one for the Writes and one for the Send", e.writes)
	}
	if e.placed != 1000 || e.ended || e.done != fmt.Sprintln(0, StatusOK, 4) {
		t.Errorf("%d bytes placed, ended %v, completions %q", e.placed, e.ended, e.done)
	}
}

// TestFarWritesLong checks that a long segment and the short segments at the end of the message are
// placed with a single call.
func TestFarWritesLong(t *testing.T) {
	for _, c := range []struct {
		name   string
		sizes  []int
		writes int
	}{
		{"tail", []int{5000, 300}, 1},
		{"tails", []int{5000, 1000, 1, 1000}, 1},
		{"long ones", []int{5000, 5000, 5000, 20}, 3},
		{"short before long", []int{300, 5000, 300}, 2},
		{"no tail", []int{5000}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := pattern(farHas, 1)
			total := 0
			e := farConversation(t, func(stag uint32) (us [][]byte) {
				for i, n := range c.sizes {
					b := pattern(n, byte(10+i))
					copy(want[100+total:], b)
					us = append(us, tag(rdmap.Write, stag, farBase+100+uint64(total), i == len(c.sizes)-1, b))
					total += n
				}
				return us
			}, -1, true)
			if !bytes.Equal(e.mem, want) {
				t.Error("memory is wrong")
			}
			if e.writes != c.writes || e.placed != uint64(total) || e.ended {
				t.Errorf("%d calls, %d bytes placed, ended %v; want %d calls for %d bytes",
					e.writes, e.placed, e.ended, c.writes, total)
			}
		})
	}
}

// TestFarTail sends a message from far memory. The message ends in a short segment, read together
// with the segment before. If memory of the short segment is missing, the earlier segment must
// still be sent.
func TestFarTail(t *testing.T) {
	const base, size = 0x7f1200000000, 1 << 20
	// The size is fixed, because a segment size of the connection may change after a second.
	qi, qr := connect(t, &Config{Interop: Interop{FPDUSize: 64766}}, &Config{Interop: Interop{FPDUSize: 64766}})
	sink := make([]byte, size)
	mr, err := qr.PD().Register(sink, RemoteRead|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	s := &countingSpace{testSpace: testSpace{base: base, mem: pattern(size, 7)}}
	far, err := qi.PD().RegisterSpace(s, base, 2*size, RemoteRead|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	segment := int(qi.tx.mss.mulpdu.Load()) - ddp.TaggedLen
	post := func(q *QueuePair, wr SendWR) Completion {
		t.Helper()
		if err := q.Post(wr); err != nil {
			t.Fatal(err)
		}
		c, err := q.SendCQ().Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, c := range []struct{ n, reads int }{
		{segment, 1}, {segment + 1, 1}, {segment + farTail, 1}, {segment + farTail + 1, 2}, {2*segment + 100, 2},
	} {
		for _, op := range []Op{OpWrite, OpRead} {
			clear(sink)
			s.reads = 0
			from, wr := qi, SendWR{Op: OpWrite, SG: []SGE{far.SGE(5, c.n)},
				Remote: RemoteAddr{STag: mr.STag(), TO: mr.TO()}}
			if op == OpRead {
				from, wr = qr, SendWR{Op: OpRead, SG: []SGE{mr.SGE(0, c.n)},
					Remote: RemoteAddr{STag: far.STag(), TO: far.TO() + 5}}
			}
			if got := post(from, wr); got.Status != StatusOK {
				t.Fatalf("%v of %d bytes: %v", op, c.n, got.Status)
			}
			if op == OpWrite {
				qr.PostRecv(RecvWR{})
				post(qi, SendWR{Op: OpSend}) // arrives after the Write is in place
				wantOK(t, qr.RecvCQ())
			}
			if !bytes.Equal(sink[:c.n], s.mem[5:][:c.n]) || sink[c.n] != 0 {
				t.Errorf("%v of %d bytes is wrong", op, c.n)
			}
			if s.reads != c.reads {
				t.Errorf("%v of %d bytes: memory was read by %d calls, want %d", op, c.n, s.reads, c.reads)
			}
		}
	}
	clear(sink)
	var wrs []SendWR
	for i := range 15 { // several calls send the Writes
		at := i * (segment + 200)
		wrs = append(wrs, SendWR{Op: OpWrite, SG: []SGE{far.SGE(at, segment+100+i)},
			Remote: RemoteAddr{STag: mr.STag(), TO: mr.TO() + uint64(at)}})
	}
	if _, err := qi.PostBatch(wrs); err != nil {
		t.Fatal(err)
	}
	for range wrs {
		wantOK(t, qi.SendCQ())
	}
	qr.PostRecv(RecvWR{})
	post(qi, SendWR{Op: OpSend})
	wantOK(t, qr.RecvCQ())
	for i := range wrs {
		if at, n := i*(segment+200), segment+100+i; !bytes.Equal(sink[at:][:n], s.mem[at:][:n]) || sink[at+n] != 0 {
			t.Errorf("Write %d of many is wrong", i)
		}
	}
	clear(sink)
	got := post(qi, SendWR{Op: OpWrite, SG: []SGE{far.SGE(size-segment, segment+50)},
		Remote: RemoteAddr{STag: mr.STag(), TO: mr.TO()}})
	<-qr.Ended()
	if got.Status != StatusLocalAccess || !bytes.Equal(sink[:segment], s.mem[size-segment:]) {
		t.Errorf("a Write whose last segment is not there: %v, and the one before it is not in place", got.Status)
	}
}

// TestFarWritesAlone compares segments arriving together with the same segments arriving
// separately. The outcome must be the same: the same bytes are placed, a bad segment gets the same
// Terminate, and no later segment is placed. [DDP-7.1-14] [DDP-7.1-16] [MPA-6-1] [I-25]
func TestFarWritesAlone(t *testing.T) {
	n := 400
	if !testkit.LongRuns() {
		n = 100
	}
	ended, together := 0, 0
	for seed := range n {
		rnd := rand.New(rand.NewPCG(uint64(seed), 15))
		spoil := -1
		if rnd.IntN(6) == 0 {
			spoil = rnd.IntN(20)
		}
		us := func(stag uint32) (us [][]byte) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 16))
			to := uint64(farBase + 200 + rnd.IntN(1000))
			msn, reads := uint32(1), uint32(1)
			for range 20 {
				size := 1 + rnd.IntN(80)
				if rnd.IntN(15) == 0 {
					size = 900 + rnd.IntN(300)
				} else if rnd.IntN(25) == 0 {
					size = 1000 + rnd.IntN(3000)
				}
				key := stag
				// The answer to a Read may be sent late, so its source must not be written again.
				switch k := rnd.IntN(180); {
				case reads > 1:
				case k < 6: // the Write goes to another place
					to = farBase + 200 + uint64(rnd.IntN(farHas-2000))
				case k < 12: // the Write overlaps the previous Write
					to -= min(uint64(rnd.IntN(40)), to-farBase-200)
				}
				switch rnd.IntN(180) {
				case 2: // the Write begins in accessible memory and ends in missing memory
					to = farBase + farHas - uint64(rnd.IntN(200))
				case 3: // the Write ends at the end of the region, or beyond
					to = farBase + farLen - uint64(rnd.IntN(200))
				case 4:
					key++
				case 5:
					to = farBase - uint64(rnd.IntN(100))
				case 6:
					to = ^uint64(0) - uint64(rnd.IntN(100))
				case 7:
					size = 0
				case 8, 9, 20, 21, 22, 23: // a Read of written bytes
					if to-200 >= farBase && to <= farBase+farHas {
						us = append(us, readReq(ddp.MSN(reads),
							rdmap.ReadRequest{Size: 200, SinkSTag: 5, SourceSTag: stag, SourceTO: to - 200}))
						reads++
					}
					continue
				case 10, 11, 24, 25, 26, 27: // a Send, if a receive is left
					if msn <= 4 {
						us = append(us, seg(rdmap.Send, 0, ddp.MSN(msn), 0, true, pattern(20, byte(msn))))
						msn++
					}
					continue
				case 12: // the version is unknown
					u := tag(rdmap.Write, stag, to, true, pattern(9, 1))
					u[0] ^= 3
					us = append(us, u)
					continue
				case 13:
					us = append(us, nil)
					continue
				}
				us = append(us, tag(rdmap.Write, key, to, rnd.IntN(2) == 0, pattern(size, byte(rnd.IntN(256)))))
				to += uint64(size)
			}
			return us
		}
		one := farConversation(t, us, spoil, false)
		all := farConversation(t, us, spoil, true)
		if d := all.differs(&one); d != "" {
			t.Errorf("seed %d: together and alone differ in %s", seed, d)
		}
		if all.ended {
			ended++
		}
		if all.writes < one.writes {
			together++
		}
	}
	if ended < n/10 || together < n*17/20 {
		t.Errorf("of %d conversations %d ended by a fault, and %d had Writes placed together", n, ended, together)
	}
}

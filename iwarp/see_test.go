package iwarp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"viaduct/internal/frameio"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A writeTarget is memory of a responder, and the bytes it should hold.
type writeTarget struct {
	p    *peer
	q    *QueuePair
	mr   *MemoryRegion
	mem  []byte // the region, and a margin on both sides
	want []byte
	rnd  *rand.Rand
}

const targetMargin = 70000

func newWriteTarget(t *testing.T, n int) *writeTarget {
	p, q := asSilentInitiator(t, &Config{Interop: Interop{NoNudge: true}, Polled: true, Device: NewDevice(DeviceConfig{NoCRC: true})},
		mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
	x := &writeTarget{p: p, q: q, mem: make([]byte, n+2*targetMargin), rnd: rand.New(rand.NewPCG(3, 4))}
	x.fill(x.mem)
	x.want = bytes.Clone(x.mem)
	var err error
	if x.mr, err = q.PD().Register(x.mem[targetMargin:targetMargin+n], RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *writeTarget) fill(b []byte) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, x.rnd.Uint64())
		b = b[8:]
	}
}

// write appends the FPDUs of an RDMA Write of n bytes at offset at to the stream. Each segment but
// the last has full bytes.
func (x *writeTarget) write(stream []byte, at, n, full int) []byte {
	body := make([]byte, n)
	x.fill(body)
	copy(x.want[targetMargin+at:], body)
	for i := 0; i < n; i += full {
		end := min(i+full, n)
		stream = x.p.enc.Append(stream, tag(rdmap.Write, x.mr.STag(), x.mr.TO()+uint64(at+i), end == n, body[i:end]))
	}
	return stream
}

func (x *writeTarget) check(t *testing.T) {
	t.Helper()
	if bytes.Equal(x.mem, x.want) {
		return
	}
	for i := range x.mem {
		if x.mem[i] != x.want[i] {
			t.Fatalf("byte %d of %d is another", i-targetMargin, x.mr.Len())
		}
	}
}

// seen returns the largest number of segments that one read has predicted.
func (x *writeTarget) seen() (n int) {
	x.q.link.fc.WithReceiver(func() { n = cap(x.q.rx.Planned()) })
	return n
}

// TestWritesSeen checks that many segments of RDMA Writes reach their memory by few reads of the
// socket, wherever the stream is cut and whatever messages come between the segments. No byte
// outside the Writes may change. [RDMAP-5.1-4] [DDP-5.3-1] [DDP-7.1-14]
func TestWritesSeen(t *testing.T) {
	const size = 500_000
	x := newWriteTarget(t, size)
	most, msn, left := 0, ddp.FirstMSN, 0
	for round := range 25 {
		var stream []byte
		want := 0
		for range 12 {
			at := x.rnd.IntN(size)
			switch x.rnd.IntN(12) {
			case 0:
				stream = x.write(stream, at, min(size-at, 1+x.rnd.IntN(3000)), 1460)
			case 1:
				stream = x.p.enc.Append(stream, tag(rdmap.Write, x.mr.STag(), 0, true, nil))
			case 2:
				stream = x.p.enc.Append(stream, seg(rdmap.Send, 0, msn, 0, true, make([]byte, 1+x.rnd.IntN(2000))))
				msn, want = msn+1, want+1
			default:
				full := []int{64748, 40000, 30001, 9001}[x.rnd.IntN(4)]
				stream = x.write(stream, at, min(size-at, 1+x.rnd.IntN(400_000)), full)
			}
		}
		stream = x.p.enc.Append(stream, seg(rdmap.Send, 0, msn, 0, true, []byte("over")))
		msn, want = msn+1, want+1
		for ; left < want; left++ {
			if err := x.q.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 2000))}}); err != nil {
				t.Fatal(err)
			}
		}
		for end := timeUp(); want > 0; {
			k := min(len(stream), 1000+x.rnd.IntN(400_000)*min(1, round%4))
			if k > 0 {
				x.p.raw(stream[:k])
				stream = stream[k:]
			}
			for {
				c, ok := x.q.RecvCQ().Poll()
				if !ok {
					break
				}
				if c.Status != StatusOK {
					t.Fatalf("round %d: %+v", round, c)
				}
				want--
				left--
			}
			most = max(most, x.seen())
			if end() {
				t.Fatalf("round %d: %d Sends are missing", round, want)
			}
		}
		x.check(t)
	}
	if most < 4 && frameio.LooksAhead() {
		t.Errorf("at most %d places were read to ahead", most)
	}
	x.q.link.fc.WithReceiver(func() {
		if len(x.q.rx.Planned()) > 0 {
			t.Error("memory is pinned still")
		}
	})
}

// TestWritesSeenBad sends a segment that must not be placed, followed by good segments. No byte of
// all these segments may be placed, although they have arrived. [DDP-7.1-9] [DDP-7.1-12]
// [DDP-7.1-16] [MPA-8-8] [I-22]
func TestWritesSeenBad(t *testing.T) {
	const size = 400_000
	for _, c := range []struct {
		name string
		bad  func(x *writeTarget) []byte
	}{
		{"STag", func(x *writeTarget) []byte {
			return tag(rdmap.Write, x.mr.STag()+1, x.mr.TO(), false, make([]byte, 30000))
		}},
		{"one byte beyond", func(x *writeTarget) []byte {
			return tag(rdmap.Write, x.mr.STag(), x.mr.TO()+size-29999, false, make([]byte, 30000))
		}},
		{"before", func(x *writeTarget) []byte {
			return tag(rdmap.Write, x.mr.STag(), x.mr.TO()-1, false, make([]byte, 30000))
		}},
		{"wrap", func(x *writeTarget) []byte { return tag(rdmap.Write, x.mr.STag(), 1<<64-2, false, make([]byte, 30000)) }},
		{"right", func(x *writeTarget) []byte {
			mr, err := x.q.PD().Register(x.mem[:targetMargin], RemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			return tag(rdmap.Write, mr.STag(), mr.TO(), false, make([]byte, 30000))
		}},
		{"opcode", func(x *writeTarget) []byte {
			u := tag(rdmap.Write, x.mr.STag(), x.mr.TO(), false, make([]byte, 30000))
			u[1] |= 0x0f
			return u
		}},
		{"version of DDP", func(x *writeTarget) []byte {
			u := tag(rdmap.Write, x.mr.STag(), x.mr.TO(), false, make([]byte, 30000))
			u[0] ^= 3
			return u
		}},
		{"response without a request", func(x *writeTarget) []byte {
			return tag(rdmap.ReadResponse, x.mr.STag(), x.mr.TO(), false, make([]byte, 30000))
		}},
		{"Send without a receive", func(x *writeTarget) []byte {
			return seg(rdmap.Send, 0, ddp.FirstMSN, 0, true, make([]byte, 30000))
		}},
		{"end inside a segment", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newWriteTarget(t, size)
			// Most of the first message goes to the staging buffer.
			stream := x.write(nil, 1000, 300_000, 64748)
			stream = x.write(stream, 7, 390_000, 50_000)
			stream = x.write(stream, 100, 200_000, 30_000)
			if c.bad != nil {
				stream = x.p.enc.Append(stream, c.bad(x))
				want := bytes.Clone(x.want)
				stream = x.write(stream, 0, 300_000, 64748)
				x.want = want
			} else {
				stream = stream[:len(stream)-10000]
			}
			x.p.raw(stream)
			x.p.c.(interface{ CloseWrite() error }).CloseWrite()
			for over, up := false, timeUp(); !over; {
				x.q.RecvCQ().Poll()
				select {
				case <-x.q.Ended():
					over = true
				default:
				}
				if up() {
					t.Fatal("the stream does not end")
				}
			}
			x.q.Abort()
			x.q.Close()
			if c.bad == nil { // any part of the last segment may be in place
				copy(x.want[targetMargin+100+180_000:][:20_000], x.mem[targetMargin+100+180_000:])
			}
			x.check(t)
		})
	}
}

// TestWriteBehindInvalidate checks that a Write is not placed before an earlier Send that revokes
// the right to it, and that the Send does not wait for the Write. [RDMAP-5.3-14]
func TestWriteBehindInvalidate(t *testing.T) {
	x := newWriteTarget(t, 300_000)
	for msn := range ddp.MSN(11) {
		w, err := x.q.Bind(x.mr, 0, x.mr.Len(), RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		last := msn >= 10
		cut := 60_000
		buf := make([]byte, 90_000)
		if last {
			buf = buf[:cut]
		}
		if err := x.q.PostRecv(RecvWR{SG: []SGE{Buf(buf)}}); err != nil {
			t.Fatal(err)
		}
		stream := x.write(nil, 0, 290_000, 64748)
		body := make([]byte, len(buf))
		x.fill(body)
		h := rdmap.SendInvalidate.UntaggedHeader(ddp.FirstMSN+msn, 0, last, w.STag())
		stream = x.p.enc.Append(stream, append(h.Append(nil), body[:cut]...))
		if !last {
			h = rdmap.SendInvalidate.UntaggedHeader(ddp.FirstMSN+msn, uint32(cut), true, w.STag())
			stream = x.p.enc.Append(stream, append(h.Append(nil), body[cut:]...))
		} else {
			for i := range 5 {
				stream = x.p.enc.Append(stream, tag(rdmap.Write, w.STag(), w.TO()+uint64(50_000*i),
					i == 4, make([]byte, 50_000)))
			}
		}
		x.p.raw(stream)
		for end := timeUp(); ; {
			if c, ok := x.q.RecvCQ().Poll(); ok {
				if !c.Invalidated || c.Status != StatusOK || w.Valid() || !bytes.Equal(buf, body) {
					t.Fatalf("%+v", c)
				}
				break
			}
			if end() {
				t.Fatal("no Send")
			}
		}
		if last {
			for end := timeUp(); ; x.q.RecvCQ().Poll() {
				select {
				case <-x.q.Ended():
				default:
					if end() {
						t.Fatal("the stream does not end")
					}
					continue
				}
				break
			}
			wantTerminate(t, ended(t, x.q), false, 1, 1, 0)
		}
		x.check(t)
	}
}

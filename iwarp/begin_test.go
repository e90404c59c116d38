package iwarp

import (
	"bytes"
	"cmp"
	"testing"

	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// TestBegunTwice sends a message in two parts. The receiving end begins the message, but cannot
// read the missing bytes into far memory, and waits. Even so, the message must take only one
// receive. [RDMAP-5.3-2] [I-22]
func TestBegunTwice(t *testing.T) {
	const size = 60000
	p, q := asInitiator(t, &Config{Device: NewDevice(DeviceConfig{NoCRC: true})})
	mr, err := q.PD().RegisterSpace(&testSpace{base: 0x10000, mem: make([]byte, size)}, 0x10000, size, LocalOnly)
	if err != nil {
		t.Fatal(err)
	}
	for id := range 3 {
		if err := q.PostRecv(RecvWR{ID: uint64(id), SG: []SGE{mr.SGE(0, size)}}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range 3 {
		f := p.enc.Append(nil, seg(rdmap.Send, 0, ddp.MSN(id+1), 0, true, pattern(size, byte(id))))
		p.raw(f[:size/2])
		for end, begun := timeUp(), false; !begun; {
			if q.link.fc.WithReceiver(func() { begun = q.rx.box.recv != nil }); end() {
				t.Fatal("not begun")
			}
		}
		p.raw(f[size/2:])
		if c := wantOK(t, q.RecvCQ()); c.ID != uint64(id) || c.Len != size {
			t.Errorf("message %d: %+v", id, c)
		}
	}
}

// TestBeginAt checks the least number of missing bytes for which a segment is begun. [I-22]
func TestBeginAt(t *testing.T) {
	p, q := asInitiator(t, &Config{Device: NewDevice(DeviceConfig{NoCRC: true})})
	mr, err := q.Register(make([]byte, 2*longMin), RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	f := p.enc.Append(nil, tag(rdmap.Write, mr.STag(), 0, true, make([]byte, 2*longMin)))
	cut := mpa.LengthLen + ddp.TaggedLen + longMin
	p.raw(f[:cut])
	receivedFPDUs(t, q, 2)
	p.raw(f[cut:])
}

// A beginning is the received part of an FPDU.
type beginning struct {
	name string
	head []byte // DDP header
	size int    // size of the payload in bytes
	come int    // bytes of the FPDU that have arrived
	pays int    // least number of missing bytes, if not longMin
	want bool   // whether the segment is begun before all of it has arrived
	crc  bool
	lent bool // whether there is a Source
	open int  // bytes of the message that arrived in earlier segments
	mark bool
	wait bool // no FPDU arrived before
	ends bool // whether the stream ends
	note func(q *QueuePair) string
}

// TestBeginLong offers partly arrived FPDUs. The payload of an FPDU may be read into place as soon
// as its header can be trusted: at once without CRCs, and with CRCs only if memory is lent for the
// message. In all other cases, nothing may change until the whole FPDU has arrived. [I-22]
// [MPA-4.4-8] [DDP-7.1-14]
func TestBeginLong(t *testing.T) {
	const size = 30000
	h := ddp.UntaggedLen + mpa.LengthLen
	send := func(op rdmap.Opcode, mo uint32, last bool) []byte {
		return op.UntaggedHeader(1, mo, last, 0).Append(nil)
	}
	long := func(stag uint32) []byte { return rdmap.Write.TaggedHeader(stag, 0, true).Append(nil) }
	full := func(ulpdu int) func(q *QueuePair) string {
		return func(q *QueuePair) string {
			if q.rx.long != ulpdu {
				return "a wrong length to predict by"
			}
			return ""
		}
	}
	const (
		good = iota + 1 // replaced by STags that are known later
		far
		closed
		readable
	)
	other := send(rdmap.Send, 0, true)
	other[9] = 1 // the segment is on queue 1
	version := send(rdmap.Send, 0, true)
	version[0] ^= 3
	for _, c := range []beginning{
		{name: "a Write", head: long(good), size: size, come: 5000, want: true, note: full(0)},
		{name: "nothing of its payload", head: long(good), size: size, come: mpa.LengthLen + ddp.TaggedLen, want: true},
		{name: "a byte of its header is missing", head: long(good), size: size, come: mpa.LengthLen + ddp.TaggedLen - 1},
		{name: "a byte of its header alone", head: long(good), size: size, come: mpa.LengthLen + 1},
		{name: "its length alone", head: long(good), size: size, come: mpa.LengthLen},
		{name: "half of its length", head: long(good), size: size, come: 1},
		{name: "nothing", head: long(good), size: size},
		{name: "as much is missing as pays", head: long(good), size: 2 * longMin, come: mpa.LengthLen + ddp.TaggedLen + longMin, want: true},
		{name: "a byte less is missing", head: long(good), size: 2 * longMin, come: mpa.LengthLen + ddp.TaggedLen + longMin + 1},
		{name: "a long header in place of much that is missing", head: send(rdmap.Send, 0, true), size: longMin - 1, come: h},
		{name: "a Write that has no end", head: rdmap.Write.TaggedHeader(good, 0, false).Append(nil), size: size, come: 5000, want: true, note: full(ddp.TaggedLen + size)},
		{name: "a Send", head: send(rdmap.Send, 0, true), size: size, come: h + 100, want: true, note: full(0)},
		{name: "a first segment", head: send(rdmap.Send, 0, false), size: size, come: h + 100, want: true, note: full(ddp.UntaggedLen + size)},
		{name: "a later segment", head: send(rdmap.Send, 100, false), size: size, come: h + 100, open: 100, want: true, note: full(ddp.UntaggedLen + size)},
		{name: "an answer to a Read", head: rdmap.ReadResponse.TaggedHeader(5, 0, true).Append(nil), size: 50000, come: 5000, want: true, note: full(0)},
		{name: "a part of an answer", head: rdmap.ReadResponse.TaggedHeader(5, 0, false).Append(nil), size: size, come: 5000, want: true, note: full(ddp.TaggedLen + size)},
		{name: "longer than is taken", head: long(good), size: 60000, come: 5000},
		{name: "the first FPDU", head: long(good), size: size, come: 5000, wait: true},
		{name: "markers", head: long(good), size: size, come: 5000, mark: true},
		{name: "no such STag", head: long(closed), size: size, come: 5000},
		{name: "no right to write", head: long(readable), size: size, come: 5000},
		{name: "memory of another program", head: long(far), size: size, come: 5000},
		{name: "no such version", head: version, size: size, come: 5000},
		{name: "no such message on this queue", head: other, size: size, come: 5000},
		{name: "a Terminate", head: rdmap.TerminateOp.UntaggedHeader(1, 0, true, 0).Append(nil), size: 40, come: h + 8, pays: 1},
		{name: "the last byte is missing", head: long(good), size: 100, come: mpa.LengthLen + ddp.TaggedLen + 99, pays: 1, want: true},
		{name: "the CRC alone is missing", head: long(good), size: 100, come: mpa.LengthLen + ddp.TaggedLen + 100, pays: 1},
		{name: "beyond its buffer", head: send(rdmap.Send, 0, true), size: 45001, come: 5000},
		{name: "a CRC", head: send(rdmap.Send, 0, true), size: size, come: 5000, crc: true},
		{name: "a CRC, where memory is lent", head: send(rdmap.Send, 0, true), size: size, come: 5000, crc: true, lent: true, want: true},
		{name: "a CRC of a Write, where memory is lent", head: long(good), size: size, come: 5000, crc: true, lent: true},
		{name: "no CRC, where memory is lent", head: long(good), size: size, come: 5000, lent: true, want: true},
		{name: "memory that is gone", head: send(rdmap.SendSE, 0, true), size: size, come: 5000, ends: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := &Config{Interop: Interop{NoNudge: true, Markers: c.mark, MaxFPDU: 60000},
				Device: NewDevice(DeviceConfig{NoCRC: !c.crc})}
			var q *QueuePair
			if c.lent {
				var s *source
				_, q, s, _ = sourcePeer(t, c.crc)
				s.lend(make([]byte, size+100))
			} else {
				var p *peer
				p, q = asSilentInitiator(t, cfg,
					mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
				if !c.wait {
					p.ulpdu(tag(rdmap.Write, 1, 0, true, nil))
				}
			}
			if !c.wait {
				receivedFPDUs(t, q, 1)
			}
			space := &testSpace{base: 0, mem: make([]byte, size)}
			stags := make(map[uint32]uint32)
			mr, err := q.Register(make([]byte, size), RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			fr, err := q.PD().RegisterSpace(space, 0, size, RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			gone, _ := q.Register(make([]byte, size), LocalOnly)
			rd, _ := q.Register(make([]byte, size), RemoteRead)
			stags[good], stags[far], stags[closed], stags[readable] = mr.STag(), fr.STag(), gone.STag(), rd.STag()
			if !c.lent {
				sg := []SGE{Buf(make([]byte, 45000))}
				if c.ends {
					sg = []SGE{gone.SGE(0, 100), Buf(make([]byte, 45000))}
				}
				if err := q.PostRecv(RecvWR{SG: sg}); err != nil {
					t.Fatal(err)
				}
			}
			gone.Close()
			head := bytes.Clone(c.head)
			if stag, ok := stags[uint32(head[5])]; ok && head[0]&0x80 != 0 && rdmap.Opcode(head[1]&15) == rdmap.Write {
				copy(head[2:], []byte{byte(stag >> 24), byte(stag >> 16), byte(stag >> 8), byte(stag)})
			}
			var enc mpa.Encoder
			p := enc.Append(nil, head, pattern(c.size, 1))[:c.come]
			q.link.fc.WithReceiver(func() {
				r := &q.rx
				s := &r.seg
				w := &sendWQE{nsg: 1}
				w.sg[0] = Buf(make([]byte, 50000))
				if c.open > 0 {
					takeULPDU(q, seg(rdmap.Send, 0, 1, 0, false, make([]byte, c.open)))
				}
				q.reads.Push(pendingRead{w: w, stag: 5, size: 50000})
				before := q.Stats()
				r.longOp = rdmap.TerminateOp
				var f placer.Frame
				if payload, ok := q.rx.beginLong(p, cmp.Or(c.pays, longMin), nil, &f); ok {
					r.Take(f, payload)
				}
				if q.life.Load().ended() {
					r.Drop()
				}
				missing := r.Missing()
				if want := c.size - (c.come - mpa.LengthLen - len(head)); c.want && missing != want ||
					!c.want && r.Open() {
					t.Errorf("%d bytes are missing, want %d: %t", missing, want, c.want)
				}
				after := before
				if c.want || c.ends {
					after.ReceivedFPDUs++
					after.ReceivedBytes += uint64(c.size)
					if s.last {
						after.ReceivedMessages++
					}
				}
				n := q.Stats()
				n.LastActivity = before.LastActivity
				if c.ends { // the send role has sent the Terminate, or is about to
					n.SentFPDUs, n.SentMessages, n.SentBytes = before.SentFPDUs, before.SentMessages, before.SentBytes
				}
				if n != after {
					t.Errorf("counted %+v, want %+v", n, after)
				}
				if q.life.Load().ended() != c.ends {
					t.Errorf("the stream is %v", q.life.Load())
				}
				if c.want {
					if !bytes.Equal(s.u, head) || &s.u[0] == &p[mpa.LengthLen] ||
						s.crc != mpa.CRC(0, p[:mpa.LengthLen+len(head)]) || r.longOp != s.op ||
						s.op != rdmap.Opcode(head[1]&15) {
						t.Errorf("%v after %v: header %x, CRC %x", s.op, r.longOp, s.u, s.crc)
					}
					var placed []byte
					if s.op != rdmap.Write {
						ref, out := q.rx.listTarget(s, 0, uint64(len(p)))
						if out != regmem.OK {
							t.Fatal(out)
						}
						placed = ref.B()
						ref.Release()
					} else {
						placed = mr.Bytes()
					}
					if body := p[mpa.LengthLen+len(head):]; !c.lent && !bytes.HasPrefix(placed, body) {
						t.Error("what has come is not in place")
					}
				} else if r.longOp != rdmap.TerminateOp && !c.ends {
					t.Errorf("%v is told as begun", r.longOp)
				}
				if c.note != nil {
					if s := c.note(q); s != "" {
						t.Error(s)
					}
				}
				r.Drop()
				r.LetGo()
				q.reads.Pop()
			})
		})
	}
}

// takeULPDU handles a ULPDU as Receive handles a valid FPDU.
func takeULPDU(q *QueuePair, u []byte) {
	var f placer.Frame
	if payload, ok := q.rx.fpdu(u, &f); ok {
		q.rx.Take(f, payload)
	}
}

// TestBeginElsewhere: a long FPDU whose first payload bytes were already read into memory is begun
// only if they belong there. Otherwise nothing changes, and the bytes can still be moved. [I-22]
// [MPA-4.4-8]
func TestBeginElsewhere(t *testing.T) {
	const size = 30000
	cfg := &Config{Interop: Interop{NoNudge: true, MaxFPDU: 60000}, Device: NewDevice(DeviceConfig{NoCRC: true})}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	p.ulpdu(tag(rdmap.Write, 1, 0, true, nil))
	receivedFPDUs(t, q, 1)
	mem := make([]byte, 2*size)
	mr, err := q.Register(mem, RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	var enc mpa.Encoder
	const offset, head = 1000, mpa.LengthLen + ddp.TaggedLen
	fpdu := enc.Append(nil, rdmap.Write.TaggedHeader(mr.STag(), offset, true).Append(nil), pattern(size, 1))
	q.link.fc.WithReceiver(func() {
		r := &q.rx
		defer r.Drop()
		for _, at := range []struct {
			name string
			mem  []byte
			want bool
		}{
			{"a byte before", mem[offset-1:][:100], false},
			{"a byte after", mem[offset+1:][:100], false},
			{"other memory", make([]byte, 100), false},
			{"its place", mem[offset:][:100], true},
		} {
			before := q.Stats()
			var f placer.Frame
			payload, ok := r.beginLong(fpdu[:head], longMin, at.mem, &f)
			if ok != at.want || len(payload) != 0 {
				t.Errorf("%s: begun %v, %d bytes of payload", at.name, ok, len(payload))
			}
			if n := q.Stats().ReceivedFPDUs - before.ReceivedFPDUs; (n == 1) != at.want {
				t.Errorf("%s: %d FPDUs counted", at.name, n)
			}
		}
	})
}

// TestBeginGuessed: the predicted last segment of a Send is begun only if the Send ends where the
// prediction ended. Otherwise the memory after the Send has bytes of the next message, which must
// be taken back first. A Write in place of the Send is not begun either. [RDMAP-5.3-5] [I-22]
func TestBeginGuessed(t *testing.T) {
	const size = 30000
	cfg := &Config{Interop: Interop{NoNudge: true, MaxFPDU: 60000}, Device: NewDevice(DeviceConfig{NoCRC: true})}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	p.ulpdu(tag(rdmap.Write, 1, 0, true, nil))
	receivedFPDUs(t, q, 1)
	mem := make([]byte, 2*size)
	mr, err := q.Register(mem, RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.PostRecv(RecvWR{SG: []SGE{mr.SGE(0, len(mem))}}); err != nil {
		t.Fatal(err)
	}
	var enc mpa.Encoder
	send := enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, make([]byte, size)))[:mpa.LengthLen+ddp.UntaggedLen]
	write := enc.Append(nil, tag(rdmap.Write, mr.STag(), 0, true, make([]byte, size)))[:mpa.LengthLen+ddp.TaggedLen]
	q.link.fc.WithReceiver(func() {
		r := &q.rx
		for _, c := range []struct {
			name  string
			fpdu  []byte
			guess uint32 // predicted length of the Send
			want  bool
		}{
			{"a shorter Send", send, size + 1, false},
			{"a longer Send", send, size - 1, false},
			{"a Write", write, size, false},
			{"the predicted Send", send, size, true},
			{"a Write without a predicted Send", write, 0, true},
		} {
			r.sendGuess = c.guess
			var f placer.Frame
			if _, ok := r.beginLong(c.fpdu, 1, mem[:size], &f); ok != c.want {
				t.Errorf("%s: begun %t", c.name, ok)
			}
		}
		r.sendGuess = 0
		r.Drop()
		r.LetGo()
	})
}

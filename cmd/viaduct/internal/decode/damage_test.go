package decode

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"viaduct/cmd/viaduct/internal/exchange"
	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/sdpwire"
	"viaduct/internal/wire/vitcpwire"
)

// A recording holds the packets sent by the engines of a transport.
type recording struct {
	frames [][]byte
	clean  []kept // the decoded messages without damage
}

// conversation records the named exchange of our own engines.
func conversation(t *testing.T, name string) *recording {
	t.Helper()
	x, _ := exchange.Find(name)
	got, err := x.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ng, err := pcapgo.NewNgReader(bytes.NewReader(got.Capture), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{}
	for {
		b, _, err := ng.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		r.frames = append(r.frames, b)
	}
	r.clean = all(t, Options{}, record(t, r.frames))
	for _, m := range r.clean {
		if len(m.Wrong) > 0 || m.Proto == "tcp" && m.Name != "reset" {
			t.Fatalf("without damage: %s", m.line)
		}
	}
	return r
}

// packet returns packet i, whose payload lies in the frame.
func (r *recording) packet(i int) (p packet) {
	parsePacket(layers.LinkTypeEthernet, r.frames[i], &p)
	return p
}

// next returns the index of the next packet with payload in the same direction, which must be among
// the next four packets. ok is true if the bytes of packet j follow the bytes of packet i.
func (r *recording) next(i int) (j int, ok bool) {
	p := r.packet(i)
	for j = i + 1; j < len(r.frames) && j < i+5; j++ {
		if q := r.packet(j); q.src == p.src && len(q.payload) > 0 {
			return j, q.seq == p.seq+uint32(len(p.payload))
		}
	}
	return 0, false
}

// TestDamageInTransit damages captures in the ways of networks and capturing programs, at every
// packet with payload, for every transport. The decoder must name each kind of damage with its
// extent, and must not blame a peer.
func TestDamageInTransit(t *testing.T) {
	number := func(m *kept, key string) int {
		v, _ := m.Get(key)
		n := -1
		fmt.Sscan(v, &n)
		return n
	}
	kinds := []struct {
		kind, name string
		same       bool // all other messages must be the same as without damage
		// do damages packet i of a copy of the recording. do returns the capture and the number of
		// damaged bytes. The number is 0 if the kind of damage is not possible there.
		do func(t *testing.T, r *recording, i int) (capture []byte, n int)
	}{
		{"lost", "bytes missing", false, func(t *testing.T, r *recording, i int) ([]byte, int) {
			return record(t, slices.Delete(slices.Clone(r.frames), i, i+1)), len(r.packet(i).payload)
		}},
		{"cut short", "bytes missing", false, func(t *testing.T, r *recording, i int) ([]byte, int) {
			n := len(r.packet(i).payload) / 2
			return recordCut(t, r.frames, i, len(r.frames[i])-n), n
		}},
		{"twice", "retransmission", true, func(t *testing.T, r *recording, i int) ([]byte, int) {
			return record(t, slices.Insert(slices.Clone(r.frames), i+1, r.frames[i])), len(r.packet(i).payload)
		}},
		{"late", "out of order", false, func(t *testing.T, r *recording, i int) ([]byte, int) {
			j, ok := r.next(i)
			if !ok {
				return nil, 0
			}
			f := slices.Delete(slices.Clone(r.frames), i, i+1)
			return record(t, slices.Insert(f, j, r.frames[i])), len(r.packet(i).payload)
		}},
		{"overlapping", "retransmission", true, func(t *testing.T, r *recording, i int) ([]byte, int) {
			j, ok := r.next(i)
			if !ok {
				return nil, 0
			}
			p, q := r.packet(i), r.packet(j)
			n := (len(p.payload) + 1) / 2
			f := slices.Clone(r.frames)
			f[j] = again(r.frames[j], len(q.payload), p.payload[len(p.payload)-n:])
			return record(t, f), n
		}},
	}
	for _, name := range []string{"iwarp-rdma", "sdp-modes", "sdp-read-zcopy", "vitcp-rdma", "fcvi-connect"} {
		r := conversation(t, name)
		for _, k := range kinds {
			t.Run(name+"/"+k.kind, func(t *testing.T) {
				damaged := 0
				for i := range r.frames {
					if len(r.packet(i).payload) == 0 {
						continue
					}
					capture, n := k.do(t, r, i)
					if n == 0 {
						continue
					}
					damaged++
					list := all(t, Options{}, capture)
					named := slices.IndexFunc(list, func(m kept) bool {
						return m.Proto == "tcp" && m.Name == k.name && number(&m, "tcp.bytes") == n &&
							m.Src == r.packet(i).src
					})
					if named < 0 {
						t.Errorf("packet %d: %d bytes of %v are not named:%s", i+1, n, r.packet(i).src, lines(list))
						continue
					}
					for _, m := range list {
						if len(m.Wrong) > 0 {
							t.Errorf("packet %d: a false alarm: %s", i+1, m.line)
						}
					}
					if k.same && said(slices.Delete(list, named, named+1)) != said(r.clean) {
						t.Errorf("packet %d changes what is said:%s", i+1, lines(list))
					}
				}
				if damaged < 2 {
					t.Errorf("%d packets were damaged", damaged)
				}
				t.Logf("%d captures", damaged)
			})
		}
	}
}

// TestLostAtTheEnd: missing bytes at the end of a stream are noticed if the capture has a FIN after
// the missing bytes, or an acknowledgement of the bytes.
func TestLostAtTheEnd(t *testing.T) {
	for name, shown := range map[string]func(c *talk){
		"by the FIN":                func(c *talk) { c.packet(0, finFlag, nil) },
		"by the acknowledgement":    func(c *talk) { c.packet(1, ackFlag, nil) },
		"by both":                   func(c *talk) { c.packet(0, finFlag|ackFlag, nil); c.packet(1, finFlag|ackFlag, nil) },
		"by a reset":                func(c *talk) { c.packet(1, rstFlag|ackFlag, nil) },
		"by packets that come late": func(c *talk) { c.packet(0, finFlag|ackFlag, nil); c.packet(1, finFlag, nil) },
	} {
		c := newTalk()
		c.say(0, vitcpOpening(0))
		c.seq[0] += 100
		shown(c)
		list := all(t, Options{}, record(t, c.frames))
		if i := slices.IndexFunc(list, func(m kept) bool { return m.Name == "bytes missing" }); i < 0 {
			t.Errorf("%s: it is not said:%s", name, lines(list))
		} else if n, _ := list[i].Get("tcp.bytes"); n != "100" {
			t.Errorf("%s: %s bytes are missing", name, n)
		}
	}
}

// lines formats messages for people. lines returns at most 12 messages.
func lines(list []kept) (s string) {
	for i, m := range list {
		if i == 12 {
			return s + "\n\t..."
		}
		s += "\n\t" + m.line[:min(len(m.line), 150)]
	}
	return s
}

// said formats messages without the numbers and times of their packets.
func said(list []kept) (s string) {
	for _, m := range list {
		m.Frame = 0
		m.Time = m.Time.Truncate(1 << 62)
		s += string(m.AppendJSON(nil)) + "\n"
	}
	return s
}

// recordCut is record with packet i truncated to n bytes.
func recordCut(t *testing.T, frames [][]byte, i, n int) []byte {
	b := record(t, frames)
	at := 24
	for j := range frames {
		length := int(binary.LittleEndian.Uint32(b[at+8:]))
		if j == i {
			binary.LittleEndian.PutUint32(b[at+8:], uint32(n))
			return slices.Delete(b, at+16+n, at+16+length)
		}
		at += 16 + length
	}
	t.Fatalf("there is no packet %d", i)
	return nil
}

// again returns frame with old inserted in front of the n bytes of payload, as if old were sent
// again.
func again(frame []byte, n int, old []byte) []byte {
	at := len(frame) - n
	b := slices.Concat(frame[:at], old, frame[at:])
	ip := b[14:]
	tcp := ip[int(ip[0]&15)*4:]
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])+uint16(len(old)))
	} else {
		tcp = ip[40:]
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(len(old)))
	}
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])-uint32(len(old)))
	return b
}

// A spot is a part of a frame, n bytes starting at at. Damage to a spot is reported under one of
// the names: the id of a requirement, or the name of a message.
type spot struct {
	at, n int
	names []string
}

// mpaSpots returns the length and the spots of the FPDU at the front of b.
func mpaSpots(b []byte, _ bool) (n int, spots []spot) {
	n = mpa.FPDULen(int(binary.BigEndian.Uint16(b)))
	return n, []spot{
		{0, 2, []string{"MPA-6-1", "incomplete frame"}}, // with this length, the CRC is elsewhere or missing
		{2, n - 2, []string{"MPA-6-1"}},
	}
}

// vitcpSpots returns the spots of a VI/TCP segment. VI/TCP has no checksum, so a part is a spot
// only if damage there contradicts other parts.
func vitcpSpots(b []byte, _ bool) (n int, spots []spot) {
	h, _, _ := dialect.ParseHeader(b)
	spots = []spot{{0, 1, []string{"VIT-3.1-2"}}}
	// A wrong length contradicts another part of the segment, or the next frame does not parse.
	spots = append(spots, spot{2, 2, []string{"VIT-3.1-7", "VIT-3.2.1-4", "VIT-3.2-3",
		"VIT-3.1-NOP-1", "VIT-3.1-2", "VIT-3.1-3", "incomplete frame"}})
	switch h.Type {
	case vitcpwire.Send, vitcpwire.Write, vitcpwire.ReadResponse:
		spots = append(spots, spot{4, 4, []string{"VIT-3.1-8"}})
	}
	if h.Type.Numbered() {
		spots = append(spots, spot{12, 4, []string{"VIT-3.1-10", "VIT-3.1-13"}})
	}
	if h.Type == vitcpwire.ReadResponse {
		spots = append(spots, spot{12, 4, []string{"VIT-3.1-12"}})
	}
	if h.Type == vitcpwire.Write || h.Type == vitcpwire.ReadResponse {
		spots = append(spots, spot{vitcpwire.HeaderLen + 12, 4, []string{"VIT-3.2.1-4"}})
	}
	return int(h.Length), spots
}

// fcipSpots returns the spots of an encapsulated frame.
func fcipSpots(b []byte, first bool) (n int, spots []spot) {
	n, _ = fcip.FrameLen(b)
	sync := []string{"FCFS-2.3-3"}
	spots = []spot{{0, 8, sync}, {12, 4, sync}}
	if first { // a Special Frame
		return n, spots
	}
	return n, append(spots,
		spot{24, 8, []string{"FCFS-2.3-1"}}, // CRC of the encapsulation, which is 0, and SOF
		spot{32, n - 36, []string{"FCFS-2.1-6"}},
		spot{n - 4, 4, sync})
}

// TestDamageInFrames changes bytes of frames sent by the engines of each transport. The decoder
// must report one of the names of the damaged spot.
func TestDamageInFrames(t *testing.T) {
	testkit.Long(t, "5 s")
	for name, spotsOf := range map[string]func([]byte, bool) (int, []spot){
		"iwarp-rdma": mpaSpots, "sdp-modes": mpaSpots, "sdp-write-zcopy": mpaSpots, "vitcp-rdma": vitcpSpots, "fcvi-loss": fcipSpots, "fcvi-connect": fcipSpots,
	} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(18, 3936))
			r := conversation(t, name)
			damaged := make(map[string]int)
			begun := make(map[string]bool)
			for i := range r.frames {
				p := r.packet(i)
				for b := p.payload; len(b) > 0 && !bytes.HasPrefix(b, []byte("MPA ID")); {
					from := fmt.Sprint(p.src, p.dst)
					n, spots := spotsOf(b, !begun[from])
					begun[from] = true
					if n < 4 || n > len(b) {
						t.Fatalf("packet %d: a frame of %d bytes in the last %d", i+1, n, len(b))
					}
					for _, s := range spots {
						for range min(s.n, 8) {
							at, flip := s.at+rnd.IntN(s.n), byte(1+rnd.IntN(255))
							b[at] ^= flip // a byte that was captured
							list := all(t, Options{}, record(t, r.frames))
							b[at] ^= flip
							if !named(list, s.names) {
								t.Errorf("packet %d, byte %d of a frame of %d, xor %#x: none of %v is said:%s",
									i+1, at, n, flip, s.names, lines(list))
							}
							if len(list) > 10*len(r.clean) {
								t.Errorf("packet %d, byte %d of a frame of %d, xor %#x: %d messages, %d without damage",
									i+1, at, n, flip, len(list), len(r.clean))
							}
							damaged[s.names[0]]++
						}
					}
					b = b[n:]
				}
			}
			sum := 0
			for _, n := range damaged {
				sum += n
			}
			if sum < 50 {
				t.Errorf("damaged: %v", damaged)
			}
			t.Logf("%d captures: %v", sum, damaged)
		})
	}
}

// TestIdentifyDamaged checks that an FCIP stream is identified whichever byte of the first two
// words is damaged, even in the first frame.
func TestIdentifyDamaged(t *testing.T) {
	r := conversation(t, "fcvi-connect")
	i := 0
	for len(r.packet(i).payload) == 0 {
		i++
	}
	first := r.packet(i).payload
	for at := range 8 {
		for flip := range 256 {
			b := slices.Clone(first)
			b[at] ^= byte(flip)
			if name, _ := identify(b); name != "fcip" {
				t.Errorf("byte %d, xor %#x: %q", at, flip, name)
			}
		}
	}
}

func named(list []kept, names []string) bool {
	return slices.ContainsFunc(list, func(m kept) bool {
		return slices.Contains(names, m.Name) ||
			slices.ContainsFunc(m.Wrong, func(w Wrong) bool { return slices.Contains(names, w.ID) })
	})
}

// TestDamageAnywhere changes a byte anywhere in the payload. The decoder must not crash, and must
// decode the frames after the changed frame.
func TestDamageAnywhere(t *testing.T) {
	for _, name := range []string{"iwarp-rdma", "sdp-modes", "vitcp-rdma", "fcvi-loss"} {
		t.Run(name, func(t *testing.T) {
			r := conversation(t, name)
			rnd := rand.New(rand.NewPCG(18, 2026))
			for range 200 {
				i := rnd.IntN(len(r.frames))
				p := r.packet(i)
				if len(p.payload) == 0 {
					continue
				}
				at, flip := rnd.IntN(len(p.payload)), byte(1+rnd.IntN(255))
				p.payload[at] ^= flip
				if list := all(t, Options{}, record(t, r.frames)); len(list) > 10*len(r.clean) {
					t.Errorf("packet %d, byte %d xor %#x: %d messages, %d without damage", i+1,
						at, flip, len(list), len(r.clean))
				}
				p.payload[at] ^= flip
			}
		})
	}
}

// TestDamageLengths tests wrong lengths in frames whose checksums are correct.
func TestDamageLengths(t *testing.T) {
	t.Run("SDP Len", func(t *testing.T) {
		for _, wrong := range []int{-1, 1, 100} {
			c := newSDPTalk()
			m := sdpwire.Message{MID: sdpwire.Data, Bufs: 4, Len: uint32(sdpwire.BSDHLen + 20 + wrong)}
			c.raw(0, append(m.Append(nil, c.layout), make([]byte, 20)...))
			if list := all(t, Options{}, record(t, c.frames)); !named(list, []string{"SDP-6.1.4-1"}) {
				t.Errorf("Len wrong by %d:%s", wrong, lines(list))
			}
		}
	})
	t.Run("FC frame", func(t *testing.T) { // DF_CTL announces headers that the frame does not have
		f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Header: fc.Header{Type: fc.TypeFCVI, DFCtl: 3}}
		c := newTalk()
		c.say(0, fcip.Append(nil, &f))
		if list := all(t, Options{}, record(t, c.frames)); !named(list, []string{"FCFS-2.1-1"}) {
			t.Errorf("%s", lines(list))
		}
	})
	t.Run("Port Mapper", func(t *testing.T) {
		for _, n := range []int{0, 1, 47, 49} {
			var list []kept
			d := New(Options{As: map[uint16]string{talkers[0].Port(): "portmap"}}, func(m *Message) {
				k := kept{*m, string(m.AppendLine(nil))}
				k.Wrong = slices.Clone(m.Wrong)
				list = append(list, k)
			})
			d.datagram(&packet{src: talkers[0], dst: talkers[1], proto: protoUDP, payload: make([]byte, n)})
			if n < 48 && !named(list, []string{"SDP-7.3-1"}) || len(list) != 1 || len(list[0].Wrong) == 0 {
				t.Errorf("%d bytes:%s", n, lines(list))
			}
		}
	})
}

// TestDamagedFile tests truncated files, and malformed packets.
func TestDamagedFile(t *testing.T) {
	r := conversation(t, "vitcp-rdma")
	b := record(t, r.frames)
	has := func(list []kept, name, note string) bool {
		return slices.ContainsFunc(list, func(m kept) bool {
			return m.Proto == "capture" && m.Name == name && bytes.Contains([]byte(m.line), []byte(note))
		})
	}
	ends := []int{24}
	for _, f := range r.frames {
		ends = append(ends, ends[len(ends)-1]+16+len(f))
	}
	for n := 24; n < len(b); n += 7 {
		list := all(t, Options{}, b[:n])
		if whole := slices.Contains(ends, n); has(list, "broken off", "") == whole {
			t.Errorf("%d of %d bytes, whole packets %v:%s", n, len(b), whole, lines(list))
		}
	}
	for i := range r.frames {
		for _, x := range []struct {
			what   string
			reason string
			do     func(f []byte)
		}{
			{"the length of the IP header", "malformed", func(f []byte) { f[14] = f[14]&0xf0 | 1 }},
			{"a fragment", "fragments of IP packets", func(f []byte) { f[20] |= 0x20 }},
			{"the length of the TCP header", "malformed", func(f []byte) { f[14+20+12] = 0x10 }},
		} {
			f := slices.Clone(r.frames)
			f[i] = bytes.Clone(f[i])
			x.do(f[i])
			if list := all(t, Options{}, record(t, f)); !has(list, "packets left out", x.reason) {
				t.Errorf("packet %d, %s:%s", i+1, x.what, lines(list))
			}
		}
		c := bytes.Clone(b)
		binary.LittleEndian.PutUint32(c[ends[i]+8:], 1<<30) // longer than a packet may be
		if list := all(t, Options{}, c); !has(list, "broken off", "") {
			t.Errorf("packet %d, its length in the file:%s", i+1, lines(list))
		}
	}
}

package decode

import (
	"bytes"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// FuzzCapture decodes a file of any content.
func FuzzCapture(f *testing.F) {
	// A set-up with the first messages, and a part of it: the fuzzer makes what it finds
	// as short as it can, which takes long seeds a minute each.
	for _, b := range kernel(f) {
		if len(b) < 8000 {
			f.Add(b[:1500], false)
			f.Add(b[:700], true)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, segments bool) {
		_ = New(Options{Segments: segments}, func(m *Message) { m.AppendLine(nil); m.AppendJSON(nil) }).Read(bytes.NewReader(b))
	})
}

// FuzzPacket takes one packet apart.
func FuzzPacket(f *testing.F) {
	c, _ := iwarpTalk(true, false)
	f.Add(c.frames[len(c.frames)-1], uint16(layers.LinkTypeEthernet))
	f.Fuzz(func(t *testing.T, b []byte, link uint16) {
		var p packet
		if parsePacket(layers.LinkType(link), b, &p) == "" && len(p.payload) > len(b) {
			t.Fatal("more payload than there is")
		}
	})
}

// FuzzStream decodes both directions of a connection as a protocol. Each byte of
// plan takes the next piece of a direction: its length, whether it is lost, cut
// short, sent again or ahead of its turn.
func FuzzStream(f *testing.F) {
	c, e := iwarpTalk(true, true)
	c.say(0, e[0].Append(nil, make([]byte, 700)))
	for i := range Protocols {
		for _, frame := range c.frames[2:] {
			f.Add(uint8(i), []byte{3, 200, 17, 9}, frame[54:], frame[54:])
		}
	}
	f.Fuzz(func(t *testing.T, proto uint8, plan, a, b []byte) {
		opt := Options{As: map[uint16]string{}, Segments: proto&0x40 != 0}
		if proto&0x80 == 0 {
			opt.As[talkers[1].Port()] = Protocols[int(proto&0x3f)%len(Protocols)]
		}
		total := 0
		d := New(opt, func(m *Message) { total++; m.AppendLine(nil) })
		c := &talk{seq: [2]uint32{100, 200}}
		if proto&0x20 == 0 {
			c = newTalk()
		}
		rest := [2][]byte{a, b}
		for _, x := range plan {
			i := int(x & 1)
			n := min(len(rest[i]), 1+int(x>>4)*37)
			piece := rest[i][:n]
			rest[i] = rest[i][n:]
			switch x >> 1 & 7 {
			case 0: // lost
				c.seq[i] += uint32(n)
			case 1: // twice
				c.packet(i, ackFlag, piece)
				c.frames = append(c.frames, c.frames[len(c.frames)-1])
			case 2: // ahead of its turn
				c.packet(i, ackFlag, piece)
				if k := len(c.frames); k > 3 {
					c.frames[k-1], c.frames[k-2] = c.frames[k-2], c.frames[k-1]
				}
			case 3:
				c.packet(i, ackFlag|finFlag, piece)
			default:
				c.packet(i, ackFlag, piece)
			}
		}
		for i := range rest {
			c.say(i, rest[i])
		}
		var p packet
		for _, frame := range c.frames {
			d.frame++
			if parsePacket(layers.LinkTypeEthernet, frame, &p) == "" {
				if d.frame%7 == 0 && len(p.payload) > 3 {
					p.payload, p.missing = p.payload[:len(p.payload)-3], 3
				}
				d.packet(&p)
			}
		}
		d.end()
		if d.waiting != 0 {
			t.Fatalf("%d bytes wait for ever", d.waiting)
		}
		if total > 10*(len(a)+len(b)+len(plan)+100) {
			t.Fatalf("%d messages of %d bytes", total, len(a)+len(b))
		}
	})
}

// FuzzDatagram decodes a datagram of the Port Mapper.
func FuzzDatagram(f *testing.F) {
	f.Add(make([]byte, 48))
	f.Add([]byte{0x10, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := New(Options{As: map[uint16]string{talkers[0].Port(): "portmap"}}, func(m *Message) { m.AppendJSON(nil) })
		d.datagram(&packet{src: talkers[0], dst: talkers[1], proto: protoUDP, payload: b})
	})
}

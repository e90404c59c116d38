package testkit

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"
)

// A Conversation is a recorded TCP connection: the bytes of both directions as seen by the
// application.
type Conversation struct {
	Client, Server []byte // bytes sent by the side that opened the connection, and by the other side
	Port           uint16 // TCP port of the server
}

// Conversations returns the TCP connections of a pcap file, in the order they were opened. The file
// has the classic pcap format, with Ethernet frames and IPv4. Conversations puts retransmitted and
// reordered segments in order, and fails the test if bytes are missing.
func Conversations(t testing.TB, file string) []Conversation {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const fileHeader, packetHeader, ethernet = 24, 16, 14
	if len(b) < fileHeader || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 || b[20] != 1 {
		t.Fatalf("%s: not a pcap file of Ethernet frames", file)
	}
	flows := make(map[[12]byte]*flow)
	var opened [][12]byte
	for b = b[fileHeader:]; len(b) >= packetHeader; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		p := b[packetHeader : packetHeader+n]
		b = b[packetHeader+n:]
		if len(p) < ethernet+40 || p[12] != 8 || p[13] != 0 || p[ethernet+9] != 6 {
			continue
		}
		ip := p[ethernet:]
		ip = ip[:binary.BigEndian.Uint16(ip[2:])]
		tcp := ip[int(ip[0]&15)*4:]
		var key [12]byte
		copy(key[:8], ip[12:20])
		copy(key[8:], tcp[:4])
		seq, flags := binary.BigEndian.Uint32(tcp[4:]), tcp[13]
		const fin, syn, ack = 1, 2, 16
		if flags&syn != 0 {
			if flows[key] == nil {
				flows[key] = &flow{first: seq + 1}
				if flags&ack == 0 {
					opened = append(opened, key)
				}
			}
			continue
		}
		if f := flows[key]; f != nil {
			f.add(seq, tcp[int(tcp[12]>>4)*4:])
		}
	}
	var out []Conversation
	for _, key := range opened {
		back := key
		copy(back[0:4], key[4:8])
		copy(back[4:8], key[0:4])
		copy(back[8:10], key[10:12])
		copy(back[10:12], key[8:10])
		c := Conversation{Port: binary.BigEndian.Uint16(key[10:])}
		for _, d := range []struct {
			key [12]byte
			to  *[]byte
		}{{key, &c.Client}, {back, &c.Server}} {
			f := flows[d.key]
			if f == nil {
				continue
			}
			if *d.to, err = f.bytes(); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		out = append(out, c)
	}
	return out
}

type flow struct {
	first uint32
	parts []part
}

type part struct {
	at uint32 // offset of the segment in the stream
	b  []byte
}

func (f *flow) add(seq uint32, b []byte) {
	if len(b) > 0 {
		f.parts = append(f.parts, part{seq - f.first, b})
	}
}

func (f *flow) bytes() ([]byte, error) {
	slices.SortStableFunc(f.parts, func(a, b part) int { return int(int32(a.at - b.at)) })
	var out []byte
	for _, p := range f.parts {
		have := uint32(len(out))
		switch {
		case p.at > have:
			return nil, fmt.Errorf("hole of %d bytes at %d", p.at-have, have)
		case p.at+uint32(len(p.b)) <= have:
		default:
			out = append(out, p.b[have-p.at:]...)
		}
	}
	return out, nil
}

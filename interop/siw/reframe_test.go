package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/mpa"
	"viaduct/interop/internal/perftest"
)

// TestReframe copies every recorded conversation. In the copy, each frame must be a single segment,
// and the streams must be unchanged.
func TestReframe(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.pcap")
			if err := reframe(file, out); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			var copied, all int
			for b = b[pcapHeader:]; len(b) > 0; {
				n := int(binary.LittleEndian.Uint32(b[8:]))
				body := b[packetHeader+ethernetHeader+ipHeader+tcpHeader : packetHeader+n]
				b = b[packetHeader+n:]
				copied += len(body)
				if _, n, err := mpa.ParseFrame(body); err == nil && n == len(body) {
					continue
				}
				if u := int(binary.BigEndian.Uint16(body)); (2+u+3)&^3+4 != len(body) {
					t.Errorf("segment of %d bytes with a ULPDU of %d", len(body), u)
				}
			}
			for _, c := range testkit.Conversations(t, file) {
				all += len(c.Client) + len(c.Server)
			}
			if copied != all {
				t.Errorf("%d bytes copied of %d", copied, all)
			}
		})
	}
}

// TestReframeStreams tests reordered and retransmitted segments, other protocols, reused ports, and
// an FPDU too long for a segment.
func TestReframeStreams(t *testing.T) {
	start := testkit.Hex("4d504120494420526571204672616d65 10 02 0004 00000000")
	fpdu := append([]byte{0, 18}, make([]byte, 24)...)
	fpdu = append(fpdu[:24:24], 1, 2, 3, 4)[:24]
	key := flowKey{10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2}
	run := func(segments ...any) (got [][]byte, err error) {
		var out bytes.Buffer
		r := &reframer{w: &out, flows: make(map[flowKey]*flow)}
		syn := func(seq uint32) {
			p := packet(key, seq, synFlag, nil)
			r.packet(make([]byte, 8), p)
		}
		syn(99)
		for i := 0; i < len(segments) && err == nil; i += 2 {
			seq := uint32(segments[i].(int))
			if segments[i+1] == nil {
				syn(seq)
				continue
			}
			err = r.packet(make([]byte, 8), packet(key, seq, 0x10, segments[i+1].([]byte)))
		}
		for b := out.Bytes(); len(b) > 0; {
			n := int(binary.LittleEndian.Uint32(b[8:]))
			got = append(got, b[packetHeader+ethernetHeader+ipHeader+tcpHeader:packetHeader+n])
			b = b[packetHeader+n:]
		}
		return got, err
	}
	want := [][]byte{start, fpdu, fpdu}
	stream := append(append(bytes.Clone(start), fpdu...), fpdu...)
	for name, segments := range map[string][]any{
		"one segment":   {100, stream},
		"pieces":        {100, stream[:3], 103, stream[3:30], 130, stream[30:]},
		"out of order":  {100, stream[:30], 140, stream[40:], 130, stream[30:40]},
		"repeated":      {100, stream[:30], 100, stream[:40], 120, stream[20:]},
		"overlap later": {100, stream[:10], 120, stream[20:30], 105, stream[5:40], 140, stream[40:]},
	} {
		if got, err := run(segments...); err != nil || len(got) != 3 || !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
	if got, err := run(100, []byte("GET / HTTP/1.1\r\n"), 116, stream); err != nil || got != nil {
		t.Errorf("another protocol: %x, %v", got, err)
	}
	if got, err := run(100, start, 5000, nil, 5001, start); err != nil || len(got) != 2 {
		t.Errorf("ports used again: %x, %v", got, err)
	}
	if _, err := run(100, append(bytes.Clone(start), 0xff, 0xff)); err == nil {
		t.Error("an FPDU of 64 KiB and more was taken")
	}
	r := &reframer{flows: make(map[flowKey]*flow)}
	for n := range 60 { // truncated packets
		if err := r.packet(make([]byte, 8), packet(key, 1, 0x10, stream)[:n]); err != nil {
			t.Error(n, err)
		}
	}
}

// TestReframePortsAgain checks that each connection between the same ports gets separate addresses
// in the copy, the same in both directions, even if a connection was refused. A repeated SYN must
// not begin another connection.
func TestReframePortsAgain(t *testing.T) {
	start := testkit.Hex("4d504120494420526571204672616d65 10 02 0004 00000000")
	there := flowKey{10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2}
	back := there.reverse()
	var out bytes.Buffer
	r := &reframer{w: &out, flows: make(map[flowKey]*flow)}
	for _, p := range [][]byte{
		packet(there, 99, synFlag, nil), packet(back, 499, synFlag|ackFlag, nil),
		packet(there, 100, ackFlag, start), packet(back, 500, ackFlag, start),
		packet(there, 99, synFlag, nil), packet(back, 499, synFlag|ackFlag, nil),
		packet(there, 699, synFlag, nil), // this connection is refused
		packet(there, 799, synFlag, nil), packet(back, 899, synFlag|ackFlag, nil),
		packet(there, 800, ackFlag, start), packet(back, 900, ackFlag, start),
	} {
		if err := r.packet(make([]byte, 8), p); err != nil {
			t.Fatal(err)
		}
	}
	var got [][8]byte
	for b := out.Bytes(); len(b) > 0; b = b[packetHeader+binary.LittleEndian.Uint32(b[8:]):] {
		got = append(got, [8]byte(b[packetHeader+ethernetHeader+12:]))
	}
	want := [][8]byte{
		{10, 0, 0, 1, 10, 0, 0, 2}, {10, 0, 0, 2, 10, 0, 0, 1},
		{10, 2, 0, 1, 10, 2, 0, 2}, {10, 2, 0, 2, 10, 2, 0, 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("addresses %d, want %d", got, want)
	}
}

// TestReadPortsAgain: tshark can read two conversations with the same ports.
func TestReadPortsAgain(t *testing.T) {
	if err := need("tshark"); err != nil {
		t.Skip("tshark does not read what was copied:", err)
	}
	capture := recorded(t, "siw-rping-default.pcap", 7174)
	capture = append(capture, recorded(t, "siw-rping-p2p.pcap", 7176)[pcapHeader:]...)
	in, out := filepath.Join(t.TempDir(), "in.pcap"), filepath.Join(t.TempDir(), "out.pcap")
	if err := os.WriteFile(in, capture, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := reframe(in, out); err != nil {
		t.Fatal(err)
	}
	d := new(reading)
	if err := d.read(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if d.requests != 2 || d.replies != 2 || d.malformed != nil {
		t.Errorf("%d requests, %d replies, want 2; malformed: %q", d.requests, d.replies, d.malformed)
	}
}

// recorded returns a recording with other ports: 7174 for the server, 40000 for the client.
func recorded(t *testing.T, file string, server uint16) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	for p := b[pcapHeader:]; len(p) > 0; {
		n := int(binary.LittleEndian.Uint32(p[8:]))
		ports := p[packetHeader+ethernetHeader+ipHeader:]
		for at := 0; at < 4; at += 2 {
			if binary.BigEndian.Uint16(ports[at:]) == server {
				binary.BigEndian.PutUint16(ports[at:], 7174)
			} else {
				binary.BigEndian.PutUint16(ports[at:], 40000)
			}
		}
		p = p[packetHeader+n:]
	}
	return b
}

func packet(k flowKey, seq uint32, flags byte, body []byte) []byte {
	p := make([]byte, ethernetHeader+ipHeader+tcpHeader, 200)
	p[12] = 8
	ip := p[ethernetHeader:]
	ip[0], ip[9] = 0x45, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(ipHeader+tcpHeader+len(body)))
	copy(ip[12:], k[:8])
	tcp := ip[ipHeader:]
	copy(tcp, k[8:])
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[tcpFlags] = 5<<4, flags
	return append(p, body...)
}

func TestReported(t *testing.T) {
	const table = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 64         100              3.81               3.16   		   0.051772
`
	opt := perftest.Options{Size: 64, Count: 100}
	if err := reported(table, opt); err != nil {
		t.Error(err)
	}
	for name, o := range map[string]perftest.Options{"count": {Size: 64, Count: 101}, "size": {Size: 65, Count: 100}} {
		if reported(table, o) == nil {
			t.Errorf("another %s was taken", name)
		}
	}
	if reported(" 64 100 -1.00 -1.00 0.00\n", opt) == nil || reported(" 64 100 x x x\n", opt) == nil || reported("", opt) == nil {
		t.Error("no bandwidth, and no complaint")
	}
	if got := tool(perftest.Options{Test: perftest.SendBW, Size: 9, Count: 8}, 7, ""); got != "ib_send_bw -R -F -s 9 -n 8 -p 7" {
		t.Error(got)
	}
}

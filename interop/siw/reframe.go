package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// reframe copies the iWARP traffic of a capture so that each start-up frame and each FPDU is a
// single TCP segment. QEMU's user network often ends a segment in the first few bytes of an FPDU.
// tshark then loses the position in the stream, and reports correct data as malformed.
//
// The copy has no retransmissions and no other traffic. An unparsable stream is an error.
//
// A conversation with the same ports as an earlier conversation gets other addresses in the copy.
// Otherwise tshark would count its packets to the earlier conversation, even after a new SYN. Equal
// ports occur about once in twenty runs, because the host chooses a random port for each
// connection.
func reframe(in, out string) error {
	f, err := os.Open(in)
	if err != nil {
		return err
	}
	defer f.Close()
	o, err := os.Create(out)
	if err != nil {
		return err
	}
	defer o.Close()
	w := bufio.NewWriterSize(o, 1<<20)
	r := &reframer{w: w, flows: make(map[flowKey]*flow)}
	if err := r.run(bufio.NewReaderSize(f, 1<<20)); err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return o.Close()
}

// Lengths of headers, and an offset in the TCP header.
const (
	pcapHeader, packetHeader      = 24, 16
	ethernetHeader, ipHeader      = 14, 20
	tcpHeader, tcpFlags           = 20, 13
	startUpHeader                 = 20
	synFlag, ackFlag              = 2, 16
	capturedLength, privateLength = 8, 18
)

// A flowKey holds the addresses and ports of a direction of a connection.
type flowKey [12]byte

func (k flowKey) reverse() (r flowKey) {
	copy(r[0:], k[4:8])
	copy(r[4:], k[0:4])
	copy(r[8:], k[10:12])
	copy(r[10:], k[8:10])
	return r
}

// A flow is one direction of a TCP connection.
type flow struct {
	first   uint32 // sequence number after the SYN
	next    uint32 // next expected sequence number
	begun   bool   // the start-up frame has been found, so FPDUs follow
	other   bool   // the stream is not iWARP
	late    map[uint32][]byte
	pending []byte // bytes in order that are not a complete frame yet
	sent    uint32 // next sequence number in the copy
	again   byte   // number of earlier connections with these ports
}

type reframer struct {
	w     io.Writer
	flows map[flowKey]*flow
}

func (r *reframer) run(in io.Reader) error {
	var h [pcapHeader]byte
	if _, err := io.ReadFull(in, h[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(h[:]) != 0xa1b2c3d4 || h[20] != 1 {
		return errors.New("not a capture of Ethernet frames")
	}
	binary.LittleEndian.PutUint32(h[16:], 1<<18) // snapshot length: FPDUs may be long
	if _, err := r.w.Write(h[:]); err != nil {
		return err
	}
	for {
		var ph [packetHeader]byte
		if _, err := io.ReadFull(in, ph[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(ph[capturedLength:])
		if n > 1<<18 {
			return fmt.Errorf("packet of %d bytes", n)
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(in, p); err != nil {
			return err
		}
		if err := r.packet(ph[:8], p); err != nil {
			return err
		}
	}
}

// packet handles a captured packet p with the time stamp. It ignores packets other than TCP over
// IPv4.
func (r *reframer) packet(stamp, p []byte) error {
	if len(p) < ethernetHeader+ipHeader+tcpHeader || p[12] != 8 || p[13] != 0 || p[ethernetHeader+9] != 6 {
		return nil
	}
	ip := p[ethernetHeader:]
	total, ihl := int(binary.BigEndian.Uint16(ip[2:])), int(ip[0]&15)*4
	if total > len(ip) || ihl+tcpHeader > total {
		return nil
	}
	tcp := ip[ihl:total]
	hl := int(tcp[12]>>4) * 4
	if hl > len(tcp) {
		return nil
	}
	var k flowKey
	copy(k[:8], ip[12:20])
	copy(k[8:], tcp[:4])
	seq, flags, body := binary.BigEndian.Uint32(tcp[4:]), tcp[tcpFlags], tcp[hl:]
	if flags&synFlag != 0 {
		r.begin(k, seq+1, flags&ackFlag != 0)
		return nil
	}
	f := r.flows[k]
	if f == nil || f.other || len(body) == 0 {
		return nil
	}
	f.add(seq, body)
	if !f.begun && f.strange() {
		f.other = true
		return nil
	}
	for {
		n, err := f.frame()
		if err != nil {
			return fmt.Errorf("stream %x: %w", k, err)
		}
		if n == 0 {
			return nil
		}
		var ack uint32
		if back := r.flows[k.reverse()]; back != nil {
			ack = back.sent
		}
		if err := r.segment(stamp, p[:12], k, f.sent, ack, f.pending[:n]); err != nil {
			return err
		}
		f.sent += uint32(n)
		f.pending = f.pending[n:]
	}
}

// begin handles a SYN. The SYN may be a copy, or may begin another connection between the same
// ports.
func (r *reframer) begin(k flowKey, first uint32, answer bool) {
	f, back := r.flows[k], r.flows[k.reverse()]
	if f != nil && f.first == first {
		return
	}
	n := &flow{first: first, next: first, late: make(map[uint32][]byte)}
	switch {
	case answer && back != nil:
		n.again = back.again
	case f != nil:
		n.again = f.again + 1
	}
	r.flows[k] = n
}

// add adds a segment, and moves all in-order bytes to pending.
func (f *flow) add(seq uint32, body []byte) {
	f.late[seq] = append([]byte(nil), body...)
	for more := true; more; {
		more = false
		for at, b := range f.late {
			gap := int32(f.next - at) // number of bytes of b that were received before
			if gap < 0 {
				continue
			}
			delete(f.late, at)
			if int(gap) < len(b) {
				f.pending = append(f.pending, b[gap:]...)
				f.next += uint32(len(b)) - uint32(gap)
				more = true
			}
		}
	}
}

// strange reports whether the pending bytes differ from the beginning of an MPA start-up frame.
func (f *flow) strange() bool {
	const prefix = "MPA ID Re"
	n := min(len(f.pending), len(prefix))
	return string(f.pending[:n]) != prefix[:n]
}

// frame returns the length of the first frame in pending, or 0 if the frame is incomplete.
func (f *flow) frame() (n int, err error) {
	b := f.pending
	if !f.begun {
		if len(b) < startUpHeader {
			return 0, nil
		}
		n = startUpHeader + int(binary.BigEndian.Uint16(b[privateLength:]))
		f.begun = len(b) >= n
	} else {
		if len(b) < 2 {
			return 0, nil
		}
		u := int(binary.BigEndian.Uint16(b))
		if n = (2+u+3)&^3 + 4; n > 65535-ipHeader-tcpHeader {
			return 0, fmt.Errorf("FPDU of %d bytes", n)
		}
	}
	if len(b) < n {
		return 0, nil
	}
	return n, nil
}

// segment writes a frame as a single TCP segment.
func (r *reframer) segment(stamp, macs []byte, k flowKey, seq, ack uint32, body []byte) error {
	p := make([]byte, packetHeader+ethernetHeader+ipHeader+tcpHeader, packetHeader+ethernetHeader+ipHeader+tcpHeader+len(body))
	copy(p, stamp)
	length := uint32(cap(p) - packetHeader)
	binary.LittleEndian.PutUint32(p[8:], length)
	binary.LittleEndian.PutUint32(p[12:], length)
	e := p[packetHeader:]
	copy(e, macs)
	e[12] = 8
	ip := e[ethernetHeader:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(length-ethernetHeader))
	copy(ip[12:20], k[:8])
	ip[13] += r.flows[k].again
	ip[17] += r.flows[k].again
	tcp := ip[ipHeader:]
	copy(tcp, k[8:])
	const first = 1
	binary.BigEndian.PutUint32(tcp[4:], first+seq)
	binary.BigEndian.PutUint32(tcp[8:], first+ack)
	tcp[12], tcp[tcpFlags] = 5<<4, 0x18 // PSH, ACK
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	_, err := r.w.Write(append(p, body...))
	return err
}

package decode

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Options determine how a capture is decoded.
type Options struct {
	// As determines the protocol of connections from or to a port, by the protocol's name in
	// [Protocols]. Other connections are recognised by content.
	As map[uint16]string
	// Segments reports every segment as a separate message. Otherwise an RDMAP or VI/TCP message is
	// reported once, after its last segment, and a single segment only if the segment has an error.
	Segments bool
	// Stream, if positive, is the number of the only connection to decode.
	Stream int
}

// Protocols are the names for Options.As. "none" leaves the connection out.
var Protocols = []string{"iwarp", "sdp", "vitcp", "fcip", "portmap", "roce", "none"}

// A Decoder decodes one capture. Only one goroutine may use it.
type Decoder struct {
	opt   Options
	out   func(*Message)
	conns map[connKey]*conn
	order []*conn // in the order of their first packet; see maxConns
	made  int     // number of connections so far
	roce  roceHosts

	frame   int
	now     time.Time
	skipped map[skipped]int
	kept    int // memory that all connections hold, see count
	msg     Message
}

// maxConns limits the connections followed at one time. Beyond maxConns, a new connection replaces
// the oldest.
const maxConns = 50_000

// New returns a decoder that hands every message to out.
func New(opt Options, out func(*Message)) *Decoder {
	return &Decoder{opt: opt, out: out, conns: make(map[connKey]*conn), skipped: make(map[skipped]int)}
}

// Read decodes the capture in r to the end. A truncated capture is reported by a message. Read
// returns an error if r holds no capture, or if reading r fails.
func (d *Decoder) Read(r io.Reader) error {
	src, link, err := open(r)
	if err != nil {
		return err
	}
	defer d.end()
	var p packet
	for {
		b, ci, err := src.ZeroCopyReadPacketData()
		if err == io.EOF && ci.CaptureLength == 0 { // otherwise the file ends after the header of a packet
			return nil
		}
		if err != nil {
			m := d.message(nil, false)
			m.Proto, m.Name = "capture", "broken off"
			m.Note = fmt.Sprintf("behind packet %d: %v", d.frame, err)
			d.emit(m)
			if _, ok := errors.AsType[interface {
				error
				Timeout() bool
			}](err); ok { // an error of the reader, not of the capture
				return err
			}
			return nil
		}
		d.frame++
		d.now = ci.Timestamp
		if why := parsePacket(link(ci), b, &p); why != "" {
			d.skipped[why]++
			continue
		}
		d.packet(&p)
	}
}

// packet decodes one packet.
func (d *Decoder) packet(p *packet) {
	if p.proto == protoUDP {
		d.datagram(p)
		return
	}
	d.segment(p)
}

// end closes open connections and reports skipped packets, except packets without IP, TCP or UDP.
func (d *Decoder) end() {
	for _, c := range d.order {
		if !c.closed {
			c.close()
		}
	}
	for _, why := range slices.Sorted(maps.Keys(d.skipped)) {
		if why == notIP || why == otherIP {
			continue
		}
		m := d.message(nil, false)
		m.Proto, m.Name = "capture", "packets left out"
		m.text("capture.reason", string(why))
		m.num("capture.packets", uint64(d.skipped[why]))
		d.emit(m)
	}
}

// message empties the decoder's only message and prepares it for a direction of c. c is nil for
// datagrams and for the capture itself.
func (d *Decoder) message(c *conn, back bool) *Message {
	m := &d.msg
	*m = Message{Frame: d.frame, Time: d.now, Back: back, Fields: m.Fields[:0], Wrong: m.Wrong[:0]}
	if c != nil {
		m.Conn, m.Src, m.Dst = c.num, c.addr[0], c.addr[1]
		if back {
			m.Src, m.Dst = m.Dst, m.Src
		}
	}
	return m
}

func (d *Decoder) emit(m *Message) { d.out(m) }

// forced returns the protocol set by the options for the port of b or, if none, of a, or "".
func (d *Decoder) forced(a, b netip.AddrPort) string {
	if p, ok := d.opt.As[b.Port()]; ok {
		return p
	}
	return d.opt.As[a.Port()]
}

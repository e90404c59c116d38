package ladder

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"viaduct/cmd/viaduct/internal/decode"
)

// Options select the content of a diagram.
type Options struct {
	Title string
	// Ends holds the names of the lifelines, the opener of the first connection first. Empty names
	// stand for the addresses.
	Ends [2]string
	// Delay is the transit time of messages, if known. It determines the slope of the arrows.
	Delay time.Duration
	// Lost reports whether the message in a packet did not arrive. If nil, all messages arrive.
	Lost func(packet int) bool
	// Max is the greatest number of messages drawn; 0 means DefaultMax.
	Max int
}

// DefaultMax is the default of Options.Max.
const DefaultMax = 1000

// A Diagram describes the messages between two hosts.
type Diagram struct {
	Title    string
	Ends     [2]string // names of the lifelines
	Delay    time.Duration
	Messages []Message
	Skipped  int // number of messages between other hosts
	Cut      int // number of messages beyond Options.Max
	Wrong    int // number of messages that break a rule
	// MaxCredit is the greatest credit of either end, or 0 if the protocol has no credits.
	MaxCredit int
}

// A Message is an arrow, or a remark about the capture.
type Message struct {
	At      time.Duration // time since the first message
	From    int           // the sending end: 0 is left, 1 is right
	Remark  bool          // a remark about the capture, not a message
	Lost    bool
	Conn    int // number of the connection, 0 for datagrams
	Proto   string
	Name    string
	Facts   string // the most important fields
	Details string // all fields
	Wrong   []string
	// State holds the state entered by each end: the sender at the time of sending, the receiver at
	// arrival. "" means no change.
	State [2]string
	// Credit is the number of messages each end may still send after this message, -1 if unknown.
	Credit [2]int
}

// Label returns the text at the arrow.
func (m *Message) Label() string {
	s := m.Name
	if m.Facts != "" {
		s += "  " + m.Facts
	}
	if m.Lost {
		s += "  (lost)"
	}
	return s
}

// A Builder builds a diagram from the messages of a decoder.
type Builder struct {
	opt   Options
	d     Diagram
	hosts [2]netip.AddrPort // with the ports of the first connection
	conns map[int]*track
	first time.Time
	began bool
	state [2]string // current state of each end
}

// New returns an empty builder.
func New(opt Options) *Builder {
	if opt.Max == 0 {
		opt.Max = DefaultMax
	}
	return &Builder{opt: opt, d: Diagram{Title: opt.Title, Delay: opt.Delay}, conns: make(map[int]*track)}
}

// Add adds a message. Messages between other hosts than the first two are only counted.
func (b *Builder) Add(m *decode.Message) {
	x := Message{Conn: m.Conn, Proto: m.Proto, Name: m.Name, Credit: [2]int{-1, -1}}
	switch {
	case !m.Src.IsValid():
		if !b.began {
			return
		}
		x.Remark = true
	case !b.began:
		b.began, b.first = true, m.Time
		b.hosts = [2]netip.AddrPort{m.Src, m.Dst}
		if m.Back {
			b.hosts = [2]netip.AddrPort{m.Dst, m.Src}
		}
		fallthrough
	default:
		from, ok := b.side(m)
		if !ok {
			b.d.Skipped++
			return
		}
		x.From = from
	}
	if len(b.d.Messages) >= b.opt.Max {
		b.d.Cut++
		return
	}
	x.At = max(0, m.Time.Sub(b.first))
	if n := len(b.d.Messages); n > 0 {
		x.At = max(x.At, b.d.Messages[n-1].At) // captures of several network cards are not always in order
	}
	x.Lost = b.opt.Lost != nil && b.opt.Lost(m.Frame)
	x.Facts, x.Details = facts(m), details(m)
	for _, w := range m.Wrong {
		x.Wrong = append(x.Wrong, fmt.Sprintf("[%s] %s", w.ID, w.Text))
	}
	if len(x.Wrong) > 0 {
		b.d.Wrong++
	}
	if !x.Remark {
		t := b.conns[m.Conn]
		if t == nil {
			t = &track{state: &b.state}
			b.conns[m.Conn] = t
		}
		t.follow(m, &x)
		b.d.MaxCredit = max(b.d.MaxCredit, x.Credit[0], x.Credit[1])
	}
	b.d.Messages = append(b.d.Messages, x)
}

// side returns the sending end of a message; ok is false if other hosts exchanged the message. If
// both hosts have the same address, the opening end of the connection decides.
func (b *Builder) side(m *decode.Message) (from int, ok bool) {
	l, r := b.hosts[0].Addr(), b.hosts[1].Addr()
	switch {
	case l == r && m.Src.Addr() == l && m.Dst.Addr() == l:
		if m.Back {
			from = 1
		}
		return from, true
	case m.Src.Addr() == l && m.Dst.Addr() == r:
		return 0, true
	case m.Src.Addr() == r && m.Dst.Addr() == l:
		return 1, true
	}
	return 0, false
}

// Diagram returns the diagram of the messages so far.
func (b *Builder) Diagram() *Diagram {
	d := b.d
	d.Messages = slices.Clone(d.Messages)
	many := len(b.conns) > 1
	for i := range d.Ends {
		d.Ends[i] = b.hosts[i].String()
		if many {
			d.Ends[i] = b.hosts[i].Addr().String()
		}
		if b.opt.Ends[i] != "" {
			d.Ends[i] = b.opt.Ends[i]
		}
	}
	for i := range d.Messages {
		if m := &d.Messages[i]; many && m.Conn > 0 {
			m.Name = fmt.Sprintf("#%d %s", m.Conn, m.Name)
		}
	}
	return &d
}

// telling lists the fields shown at an arrow, with labels. Other fields are details.
var telling = []struct{ key, word string }{
	{"nvme.status", ""}, {"nvme.qid", "queue "}, {"nvme.slba", "block "}, {"nvme.blocks", "blocks "},
	{"sdp.mode", ""}, {"sdp.s", "S="}, {"sdp.size", "size "}, {"sdp.payload", "payload "}, {"sdp.flags", ""}, {"sdp.port", "port "},
	{"sdp.mseq", "MSeq "}, {"sdp.mseqack", "ack "}, {"sdp.bufs", "bufs "},
	{"rdmap.size", "size "}, {"rdmap.term_text", ""}, {"rdmap.bytes", "bytes "},
	{"mpa.rev", "rev "}, {"mpa.ird", "IRD "}, {"mpa.ord", "ORD "}, {"mpa.rtr", "RTR "}, {"mpa.reject", "reject="},
	{"vitcp.calling", ""}, {"vitcp.called", "calls "}, {"vitcp.reason", ""}, {"vitcp.number", "number "}, {"vitcp.ack", "ack "},
	{"vitcp.posted", "posted "}, {"vitcp.bytes", "bytes "}, {"vitcp.mtu", "MTU "},
	{"fcvi.msg_id", "MSG_ID "}, {"fcvi.tot_len", "TOT_LEN "}, {"fc.payload", "payload "}, {"fc.ox_id", "OX_ID "},
	{"cm.service_id", "service "}, {"cm.status", "status "}, {"cm.reason", "reason "}, {"cm.qpn", "QP "}, {"cm.psn", "PSN "},
	{"aeth.text", ""}, {"reth.length", "length "}, {"roce.payload", "bytes "}, {"bth.psn", "PSN "}, {"bth.qpn", "to QP "},
	{"portmap.cp", "CP "}, {"portmap.ap", "AP "}, {"tcp.bytes", "bytes "}, {"tcp.skipped", "skipped "}, {"capture.reason", ""}, {"capture.packets", "packets "},
}

// dull reports whether a field has the usual value and is therefore not shown.
func dull(m *decode.Message, key, v string) bool {
	switch key {
	case "sdp.s", "mpa.reject":
		return v == "false"
	case "rdmap.bytes":
		return m.Proto == "sdp" || m.Name == "RDMA Read Request"
	case "vitcp.number", "vitcp.ack":
		return v == "0"
	case "vitcp.posted":
		return v == "0" || m.Name == "Connect Request"
	case "vitcp.calling", "vitcp.called":
		return m.Name != "Connect Request"
	case "vitcp.mtu":
		return m.Name != "Connect Request" && m.Name != "Connect Accept"
	case "sdp.bufs":
		return m.Name != "Hello" && m.Name != "HelloAck" && m.Name != "Data"
	case "sdp.mseqack", "sdp.mseq":
		return m.Name == "Hello" || m.Name == "HelloAck"
	case "fc.ox_id":
		return m.Proto == "fcvi"
	case "fcvi.tot_len":
		return v == "0" || !strings.HasPrefix(m.Name, "READ") && !strings.HasPrefix(m.Name, "WRITE")
	case "fcvi.msg_id":
		return v == "0" || strings.HasPrefix(m.Name, "CONNECT")
	case "fc.payload":
		return v == "0"
	case "aeth.text":
		return v == "ACK" && m.Name == "RC Acknowledge"
	case "roce.payload":
		return v == "0" || m.Proto == "cm"
	case "bth.psn", "bth.qpn":
		return m.Proto == "cm"
	}
	return false
}

func facts(m *decode.Message) string {
	var list []string
	for _, f := range telling {
		if v, ok := m.Get(f.key); ok && !dull(m, f.key, v) {
			if v == "true" && strings.HasSuffix(f.word, "=") {
				v = "1"
			}
			list = append(list, f.word+v)
		}
	}
	return strings.Join(list, ", ")
}

func details(m *decode.Message) string {
	var s strings.Builder
	fmt.Fprintf(&s, "packet %d, %s", m.Frame, m.Proto)
	if m.Src.IsValid() {
		fmt.Fprintf(&s, ", %s to %s", m.Src, m.Dst)
	}
	for i := range m.Fields {
		f := &m.Fields[i]
		fmt.Fprintf(&s, "\n%s = %s", f.Key, f.String())
	}
	if m.Note != "" {
		fmt.Fprintf(&s, "\n%s", m.Note)
	}
	return s.String()
}

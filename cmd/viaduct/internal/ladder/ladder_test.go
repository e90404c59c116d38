package ladder

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"viaduct/cmd/viaduct/internal/decode"
	"viaduct/cmd/viaduct/internal/exchange"
	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func build(t testing.TB, opt Options, filter string, capture []byte) *Diagram {
	t.Helper()
	f, err := decode.ParseFilter(filter)
	if err != nil {
		t.Fatal(err)
	}
	b := New(opt)
	if err := decode.New(decode.Options{}, func(m *decode.Message) {
		if f.Wants(m) {
			b.Add(m)
		}
	}).Read(bytes.NewReader(capture)); err != nil {
		t.Fatal(err)
	}
	return b.Diagram()
}

// A box is the area a text covers.
type box struct {
	l, t, r, b float64
	s          string
}

type segment struct{ x1, y1, x2, y2 float64 }

// picture parses a drawing. picture returns the boxes of the texts, with generous widths, the
// arrows, and the size.
func picture(t *testing.T, svg []byte) (texts []box, lines []segment, w, h float64) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(svg))
	var at *box
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			return texts, lines, w, h
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		switch x := tok.(type) {
		case xml.StartElement:
			a := map[string]string{}
			for _, y := range x.Attr {
				a[y.Name.Local] = y.Value
			}
			n := func(k string) float64 { v, _ := strconv.ParseFloat(a[k], 64); return v }
			switch x.Name.Local {
			case "svg":
				w, h = n("width"), n("height")
			case "line":
				lines = append(lines, segment{n("x1"), n("y1"), n("x2"), n("y2")})
			case "text":
				size := n("font-size")
				if size == 0 {
					size = 11
				}
				texts = append(texts, box{l: n("x"), t: n("y") - 0.8*size, b: n("y") + 0.2*size,
					r: size, s: a["text-anchor"]})
				at = &texts[len(texts)-1]
			}
		case xml.CharData:
			if at == nil {
				continue
			}
			width := float64(utf8.RuneCount(x)) * at.r * 0.56
			switch at.s {
			case "middle":
				at.l -= width / 2
			case "end":
				at.l -= width
			}
			at.r, at.s = at.l+width, string(x)
		case xml.EndElement:
			if x.Name.Local == "text" {
				at = nil
			}
		}
	}
}

// clear checks that no text covers another or is cut off, and that at most throughs arrows pass
// through a text.
func clear(t *testing.T, name string, svg []byte, throughs int) {
	t.Helper()
	texts, lines, w, h := picture(t, svg)
	for i, a := range texts {
		if a.l < 0 || a.r > w || a.t < 0 || a.b > h {
			t.Errorf("%s: %q is cut: %+v of %v by %v", name, a.s, a, w, h)
		}
		for _, b := range texts[:i] {
			if a.l < b.r && b.l < a.r && a.t < b.b && b.t < a.b {
				t.Errorf("%s: %q and %q overlap", name, a.s, b.s)
			}
		}
		for _, l := range lines {
			if l.x1 == l.x2 {
				continue // a lifeline
			}
			lo, hi := max(a.l, min(l.x1, l.x2)), min(a.r, max(l.x1, l.x2))
			y := func(x float64) float64 { return l.y1 + (l.y2-l.y1)*(x-l.x1)/(l.x2-l.x1) }
			if lo < hi && min(y(lo), y(hi)) < a.b-1 && max(y(lo), y(hi)) > a.t+1 {
				if throughs--; throughs < 0 {
					t.Errorf("%s: an arrow passes through %q", name, a.s)
				}
			}
		}
	}
}

// within returns "" if list contains the elements of want in order, and otherwise the first missing
// element.
func within(list []string, want ...string) string {
	for _, s := range list {
		if len(want) > 0 && strings.Contains(s, want[0]) {
			want = want[1:]
		}
	}
	if len(want) > 0 {
		return want[0]
	}
	return ""
}

// wanted lists what the diagram of each exchange must show: the messages in order, and the states
// of both ends.
var wanted = map[string]struct{ messages, left, right []string }{
	"vitcp-connect":   {[]string{"Connect Request", "Connect Accept", "Disconnect"}, []string{"Connect Pending", "Connected", "Disconnected"}, []string{"Deciding", "Connected", "Disconnected"}},
	"vitcp-peer":      {[]string{"Connect Request", "Connect Request", "crossed"}, []string{"Connect Pending", "Connected"}, []string{"Connect Pending", "Connected"}},
	"vitcp-rdma":      {[]string{"Connect Accept", "Send", "RDMA Write", "RDMA Read Request", "RDMA Read Response"}, []string{"Connected"}, []string{"Connected"}},
	"iwarp-rdma":      {[]string{"MPA Request", "MPA Reply", "Send", "RDMA Write", "RDMA Read Request", "RDMA Read Response"}, []string{"Start-up", "Full Operation"}, []string{"Start-up", "Full Operation"}},
	"sdp-bcopy":       {[]string{"Hello", "HelloAck", "Data", "Data", "DisConn", "DisConn"}, []string{"Combined", "Buffered", "Closed"}, []string{"Combined", "Buffered", "Closed"}},
	"sdp-read-zcopy":  {[]string{"SrcAvail", "RDMA Read Request", "RDMA Read Response", "RdmaRdCompl"}, []string{"Combined", "Half closed", "Closed"}, []string{"Combined", "Closed"}},
	"sdp-write-zcopy": {[]string{"SinkAvail", "RDMA Write", "RdmaWrCompl"}, []string{"Pipelined", "Closed"}, []string{"Pipelined", "Closed"}},
	"sdp-transaction": {[]string{"SinkAvail", "RDMA Write", "RdmaWrCompl"}, []string{"Pipelined", "Closed"}, []string{"Pipelined", "Closed"}},
	"sdp-modes":       {[]string{"ModeChange", "SinkAvail", "ModeChange", "SrcAvail", "ModeChange", "Data", "DisConn"}, []string{"Combined", "Pipelined", "Combined", "Buffered", "Closed"}, []string{"Combined", "Closed"}},
	"sdp-suspend":     {[]string{"Data", "SuspComm", "SuspCommAck", "#2 MPA Request", "#2 HelloAck", "#2 Data", "#2 DisConn"}, []string{"Combined", "Suspended", "Combined", "Closed"}, []string{"Combined", "Suspending", "Suspended", "Combined", "Closed"}},
	"fcvi-connect":    {[]string{"CONNECT_RQST", "CONNECT_RESP1", "(lost)", "CONNECT_RQST", "CONNECT_RESP1", "CONNECT_RESP2", "CONNECT_RESP3", "DISCONNECT_RQST"}, []string{"Connecting", "Connected", "Idle"}, []string{"Connect wait", "Connected", "Idle"}},
	"fcvi-loss":       {[]string{"SEND_RQST", "(lost)", "READ_RQST", "DISCONNECT_RQST"}, []string{"Connected", "Idle"}, []string{"Connected", "Idle"}},
}

// TestExchanges runs and draws every exchange in all forms.
func TestExchanges(t *testing.T) {
	if len(wanted) != len(exchange.All()) {
		t.Errorf("%d exchanges, %d are tested", len(exchange.All()), len(wanted))
	}
	for _, x := range exchange.All() {
		t.Run(x.Name, func(t *testing.T) {
			t.Parallel()
			r, err := x.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d := build(t, Options{Title: x.Title, Ends: x.Ends, Delay: r.Delay, Lost: func(p int) bool { return r.Lost[p] }}, x.Filter, r.Capture)
			if d.Wrong != 0 {
				t.Errorf("%d messages are wrong", d.Wrong)
			}
			var labels []string
			var states [2][]string
			for _, m := range d.Messages {
				labels = append(labels, m.Label())
				for i := range states {
					if m.State[i] != "" {
						states[i] = append(states[i], m.State[i])
					}
				}
			}
			w := wanted[x.Name]
			for what, s := range map[string]string{"messages": within(labels, w.messages...), "left": within(states[0], w.left...), "right": within(states[1], w.right...)} {
				if s != "" {
					t.Errorf("%s: no %q in its place: %q %q", what, s, labels, states)
				}
			}
			for _, scale := range []Scale{ByEvent, ByTime} {
				var b bytes.Buffer
				if err := d.WriteSVG(&b, scale); err != nil {
					t.Fatal(err)
				}
				throughs := 0
				if scale == ByTime {
					throughs = len(d.Messages) // on a scale of time, lines may have to pass through labels
				}
				clear(t, fmt.Sprint(x.Name, scale), b.Bytes(), throughs)
			}
			var text, page bytes.Buffer
			if err := d.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(text.String(), "|\n") + strings.Count(text.String(), "| "); n < len(d.Messages) {
				t.Errorf("%d lines of text for %d messages:\n%s", n, len(d.Messages), text.String())
			}
			if err := d.WriteHTML(&page); err != nil {
				t.Fatal(err)
			}
			if s := page.String(); strings.Contains(s, "http://") &&
				strings.Count(s, "http://") != strings.Count(s, `xmlns="http://www.w3.org/2000/svg"`) ||
				strings.Contains(s, "https://") {
				t.Error("the page names an address of the network")
			}
		})
	}
}

// TestKernel draws a stored capture of another implementation.
func TestKernel(t *testing.T) {
	b, err := os.ReadFile("../../../../interop/testdata/siw-rping-big-crc.pcap")
	if err != nil {
		t.Fatal(err)
	}
	d := build(t, Options{Title: "rping"}, "", b)
	if len(d.Messages) < 15 || d.Ends[1] != "10.9.0.1:7178" || d.Messages[0].State[0] != "Start-up" {
		t.Errorf("%d messages between %q", len(d.Messages), d.Ends)
	}
	var svg bytes.Buffer
	d.WriteSVG(&svg, ByEvent)
	clear(t, "kernel", svg.Bytes(), 0)

	d = build(t, Options{Max: 3}, "", b)
	var text bytes.Buffer
	d.WriteText(&text)
	if len(d.Messages) != 3 || !strings.Contains(text.String(), fmt.Sprintf("%d more messages are not drawn", d.Cut)) ||
		d.Cut < 10 {
		t.Errorf("%d messages, %d cut:\n%s", len(d.Messages), d.Cut, text.String())
	}
}

// TestHosts: messages between other hosts are only counted, and the diagram distinguishes
// directions and connections.
func TestHosts(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"),
		netip.MustParseAddrPort("10.0.0.3:3")
	at := time.Unix(100, 0)
	bl := New(Options{})
	bl.Add(&decode.Message{Time: at, Proto: "capture", Name: "packets left out"}) // precedes all messages
	bl.Add(&decode.Message{Time: at, Conn: 1, Back: true, Src: b, Dst: a, Proto: "rdmap", Name: "first"})
	bl.Add(&decode.Message{Time: at.Add(-time.Second), Conn: 1, Src: a, Dst: b, Proto: "rdmap", Name: "earlier"})
	bl.Add(&decode.Message{Time: at.Add(time.Second), Conn: 2, Src: b, Dst: a, Proto: "rdmap",
		Name: "other way", Wrong: []decode.Wrong{{ID: "MPA-6-1", Text: "CRC"}}})
	bl.Add(&decode.Message{Time: at, Conn: 3, Src: a, Dst: c, Proto: "rdmap", Name: "another host"})
	bl.Add(&decode.Message{Time: at.Add(2 * time.Second), Proto: "capture", Name: "broken off"})
	d := bl.Diagram()
	if d.Ends != [2]string{"10.0.0.1", "10.0.0.2"} || d.Skipped != 1 || d.Wrong != 1 || len(d.Messages) != 4 {
		t.Fatalf("%+v", d)
	}
	for i, want := range []struct {
		from   int
		remark bool
		at     time.Duration
		label  string
	}{{1, false, 0, "#1 first"}, {0, false, 0, "#1 earlier"}, {1, false, time.Second, "#2 other way"}, {0, true, 2 * time.Second, "broken off"}} {
		m := &d.Messages[i]
		if m.From != want.from || m.Remark != want.remark || m.At != want.at || m.Label() != want.label {
			t.Errorf("%d: %+v, want %+v", i, m, want)
		}
	}
	var text bytes.Buffer
	d.WriteText(&text)
	if !strings.Contains(text.String(), "WRONG [MPA-6-1] CRC") {
		t.Error(text.String())
	}
}

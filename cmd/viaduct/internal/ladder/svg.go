package ladder

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// A Scale determines how times become heights.
type Scale uint8

const (
	ByEvent Scale = iota // one row for each event
	ByTime               // height is proportional to time, except where rows need more room
)

// Positions and sizes in the picture, in the picture's units. Positions along x count from the
// left.
const (
	timeX  = 76  // right edge of the times
	plotX  = 84  // left edge of the left credit plot
	plotW  = 44  // width of a credit plot
	bandX  = 134 // left edge of the left band
	bandW  = 104
	leftX  = bandX + bandW + 10
	rightX = leftX + 600
	bandRX = rightX + 10
	plotRX = bandRX + bandW + 6
	totalW = plotRX + plotW + 14
	topY   = 78
	row    = 34
)

// bandColours holds the fill colours of states, assigned in order of appearance.
var bandColours = []string{"#dbe9f6", "#d9f0dd", "#fbe8c8", "#ead9f2", "#f8d7d7", "#d5eeee", "#eeeed0", "#e3e3e3"}

// WriteSVG draws d as an SVG picture.
func (d *Diagram) WriteSVG(w io.Writer, s Scale) error {
	var b bytes.Buffer
	d.svg(&b, s)
	_, err := w.Write(b.Bytes())
	return err
}

func (d *Diagram) svg(b *bytes.Buffer, s Scale) {
	sent, arrived, height := d.layout(s)
	remarks := d.remarks()
	full := height + 20*len(remarks) + 10
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">`+"\n", totalW, full, totalW, full)
	b.WriteString(`<style>.l{paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round}.m:hover line{stroke-width:2.6}.m:hover .l{font-weight:bold}</style>` + "\n")
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", totalW, full)
	text(b, totalW/2, 22, "middle", `font-size="15" font-weight="bold"`, shorten(d.Title, 100))
	for i, x := range []int{leftX, rightX} {
		text(b, x, 48, "middle", `font-weight="bold"`, shorten(d.Ends[i], 40))
		fmt.Fprintf(b, `<line x1="%d" y1="56" x2="%d" y2="%d" stroke="#444" stroke-width="1.5"/>`+"\n", x, x, height)
	}
	d.bands(b, sent, arrived, height)
	if d.MaxCredit > 0 {
		d.plots(b, sent, arrived, height)
	}
	d.arrows(b, sent, arrived)
	for i, s := range remarks {
		text(b, totalW/2, height+20*(i+1), "middle", `fill="#555"`, s)
	}
	b.WriteString("</svg>\n")
}

func text(b *bytes.Buffer, x, y int, anchor, attrs, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, attrs, html.EscapeString(s))
}

// bands draws the states of each end along the lifeline.
func (d *Diagram) bands(b *bytes.Buffer, sent, arrived []int, height int) {
	colour := make(map[string]string)
	for end, x := range []int{bandX, bandRX} {
		type change struct {
			y     int
			state string
		}
		var list []change
		for i := range d.Messages {
			m := &d.Messages[i]
			if m.State[end] == "" {
				continue
			}
			y := sent[i]
			if m.From != end {
				if m.Lost {
					continue
				}
				y = arrived[i]
			}
			list = append(list, change{y, m.State[end]})
		}
		slices.SortStableFunc(list, func(a, b change) int { return a.y - b.y })
		for i, c := range list {
			to := height
			if i+1 < len(list) {
				to = list[i+1].y
			}
			if to <= c.y {
				continue
			}
			if colour[c.state] == "" {
				colour[c.state] = bandColours[len(colour)%len(bandColours)]
			}
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s" stroke="#bbb" stroke-width="0.5"/>`+
				"\n", x, c.y, bandW, to-c.y, colour[c.state])
			// A state shorter than a line of text has the name only in the title of the rectangle.
			if to-c.y >= 15 {
				text(b, x+bandW/2, c.y+12, "middle", `font-size="10"`, shorten(c.state, 15))
			}
		}
	}
}

// plots draws the credit of each end as a step line, with zero at the left edge of the plot.
func (d *Diagram) plots(b *bytes.Buffer, sent, arrived []int, height int) {
	for end, x := range []int{plotX, plotRX} {
		text(b, x+plotW/2, 62, "middle", `font-size="9" fill="#777"`, fmt.Sprintf("credit 0–%d", d.MaxCredit))
		fmt.Fprintf(b, `<rect x="%d" y="68" width="%d" height="%d" fill="#fafafa" stroke="#ddd" stroke-width="0.5"/>`+
			"\n", x, plotW, height-68)
		var path strings.Builder
		open := false
		last := -1
		for i := range d.Messages {
			m := &d.Messages[i]
			if m.Credit[end] < 0 || m.Lost {
				continue
			}
			y := sent[i]
			if m.From != end { // granted credit counts from its arrival
				y = arrived[i]
			}
			px := x + 2 + m.Credit[end]*(plotW-4)/max(1, d.MaxCredit)
			switch {
			case !open:
				fmt.Fprintf(&path, "M%d %d", px, y)
				open = true
			case y >= last:
				fmt.Fprintf(&path, "V%dH%d", y, px)
			default:
				fmt.Fprintf(&path, "H%d", px)
			}
			last = max(last, y)
		}
		if open {
			fmt.Fprintf(b, `<path d="%sV%d" fill="none" stroke="#2a6fb0" stroke-width="1.3"/>`+
				"\n", path.String(), height)
		}
	}
}

func (d *Diagram) arrows(b *bytes.Buffer, sent, arrived []int) {
	shown := time.Duration(-1)
	places := d.labels(sent, arrived)
	for i := range d.Messages {
		m := &d.Messages[i]
		if m.At != shown {
			text(b, timeX, sent[i]+4, "end", `fill="#777" font-size="10"`, since(m.At))
			shown = m.At
		}
		tip := m.Details
		for _, w := range m.Wrong {
			tip += "\nWRONG " + w
		}
		fmt.Fprintf(b, `<g class="m"><title>%s</title>`, html.EscapeString(m.Label()+"\n"+since(m.At)+"\n"+tip))
		colour := "#222"
		switch {
		case len(m.Wrong) > 0:
			colour = "#c01818"
		case m.Remark:
			colour = "#777"
		case m.Proto == "rdmap":
			colour = "#1d7a46"
		}
		if !m.Remark {
			l := d.line(i, sent, arrived)
			dash := ""
			if m.Lost {
				dash = ` stroke-dasharray="5 3"`
			}
			fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="1.3"%s/>`,
				l.x1, l.y1, l.x2, l.y2, colour, dash)
			head(b, l.x1, l.y1, l.x2, l.y2, colour, m.Lost)
		}
		p := places[i]
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s" fill="%s" class="l">%s</text></g>`+
			"\n", p.x, p.y, p.anchor, colour, html.EscapeString(p.s))
	}
}

// head draws the head of an arrow, or a cross if the message is lost.
func head(b *bytes.Buffer, x1, y1, x2, y2 int, colour string, lost bool) {
	if lost {
		fmt.Fprintf(b, `<path d="M%d %dl10 10m0 -10l-10 10" stroke="#c01818" stroke-width="2"/>`, x2-5, y2-5)
		return
	}
	// The slope is small, so the head points along the x axis and is tilted by the slope.
	dx := 9.0
	if x2 > x1 {
		dx = -9
	}
	tilt := float64(y2-y1) / float64(x2-x1) * dx
	fmt.Fprintf(b, `<path d="M%d %dL%.1f %.1fL%.1f %.1fZ" fill="%s"/>`, x2, y2, float64(x2)+dx,
		float64(y2)+tilt-3.5, float64(x2)+dx, float64(y2)+tilt+3.5, colour)
}

func since(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.3f s", d.Seconds())
	}
	return fmt.Sprintf("%.3f ms", float64(d.Nanoseconds())/1e6)
}

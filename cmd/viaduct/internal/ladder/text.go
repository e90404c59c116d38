package ladder

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// textWidth is the number of columns between the lifelines of the text form.
const textWidth = 66

// WriteText draws d as text. Each line is a message at the time of sending. The names in brackets
// are the states entered by the two ends.
func (d *Diagram) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	if d.Title != "" {
		fmt.Fprintf(b, "%s\n\n", d.Title)
	}
	margin := strings.Repeat(" ", 36)
	fmt.Fprintf(b, "%s%-*s%s\n", margin, textWidth+2-utf8.RuneCountInString(d.Ends[1]), d.Ends[0], d.Ends[1])
	for i := range d.Messages {
		m := &d.Messages[i]
		left, right := m.bracket(0), m.bracket(1)
		if d.MaxCredit > 0 && !m.Remark {
			left, right = left+credit(m.Credit[0]), credit(m.Credit[1])+" "+right
		}
		line := fmt.Sprintf("%10.3f ms %21s |%s| %s", float64(m.At.Microseconds())/1000, left, m.arrow(), right)
		fmt.Fprintf(b, "%s\n", strings.TrimRight(line, " "))
		for _, x := range m.Wrong {
			fmt.Fprintf(b, "%s|  WRONG %s\n", margin, x)
		}
	}
	d.tail(b)
	return b.Flush()
}

// tail writes what the diagram leaves out.
func (d *Diagram) tail(w io.Writer) {
	for _, s := range d.remarks() {
		fmt.Fprintf(w, "%s\n", s)
	}
}

func (d *Diagram) remarks() (list []string) {
	if d.Cut > 0 {
		list = append(list, fmt.Sprintf("%d more messages are not drawn", d.Cut))
	}
	if d.Skipped > 0 {
		list = append(list, fmt.Sprintf("%d messages between other hosts are not drawn", d.Skipped))
	}
	return list
}

func credit(n int) string {
	if n < 0 {
		return "    "
	}
	return fmt.Sprintf(" %3d", n)
}

func (m *Message) bracket(end int) string {
	if m.State[end] == "" {
		return ""
	}
	return "[" + m.State[end] + "]"
}

// arrow returns the line between the lifelines.
func (m *Message) arrow() string {
	label := " " + shorten(m.Label(), textWidth-8) + " "
	if m.Remark {
		return centre(label, ".")
	}
	body := []rune(centre(label, "-"))
	tip, at := '>', len(body)-1
	if m.From == 1 {
		tip, at = '<', 0
	}
	if m.Lost {
		tip = 'x'
	}
	body[at] = tip
	return string(body)
}

func centre(label, fill string) string {
	n := textWidth - utf8.RuneCountInString(label)
	return strings.Repeat(fill, n/2) + label + strings.Repeat(fill, n-n/2)
}

// shorten truncates s to n characters.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

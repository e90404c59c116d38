package ladder

import (
	"cmp"
	"slices"
	"time"
	"unicode/utf8"
)

// A mark is an event of the picture: the sending or the arrival of a message.
type mark struct {
	at      time.Duration
	i       int // index of the message
	arrival bool
	turn    int // number of earlier messages of the same end and time
}

// marks returns the events in order. An arrival comes before a message sent at the same time,
// because the message may be the answer. Messages sent by both ends at the same time alternate,
// because nothing orders these messages.
func (d *Diagram) marks() []mark {
	list := make([]mark, 0, 2*len(d.Messages))
	var turns [2]int
	for i := range d.Messages {
		m := &d.Messages[i]
		if i > 0 && m.At != d.Messages[i-1].At {
			turns = [2]int{}
		}
		x := mark{at: m.At, i: i}
		if d.Delay > 0 {
			x.turn = turns[m.From]
			turns[m.From]++
		}
		list = append(list, x)
		if d.Delay > 0 && !m.Remark {
			list = append(list, mark{at: m.At + d.Delay, i: i, arrival: true})
		}
	}
	slices.SortStableFunc(list, func(a, b mark) int {
		switch {
		case a.at < b.at || a.at == b.at && a.arrival && !b.arrival:
			return -1
		case a.at > b.at || a.at == b.at && !a.arrival && b.arrival:
			return 1
		}
		return cmp.Or(a.turn-b.turn, a.i-b.i)
	})
	return list
}

// layout returns the heights where messages are sent and arrive, and the total height.
func (d *Diagram) layout(s Scale) (sent, arrived []int, height int) {
	sent, arrived = make([]int, len(d.Messages)), make([]int, len(d.Messages))
	if s == ByTime {
		height = d.byTime(sent, arrived)
	} else {
		height = d.byEvent(sent, arrived)
	}
	return sent, arrived, height + row
}

// byEvent keeps the order of events at each end, and the order of sending. byEvent places an
// arrival as high as the two orders allow. Two messages both ends send at the same time have the
// same height.
func (d *Diagram) byEvent(sent, arrived []int) (height int) {
	y := topY - row        // height of the last sending
	end := [2]int{0, 0}    // last height used at each end
	shared, last := -1, -1 // last message at the height of its predecessor, and last message sent
	for _, k := range d.marks() {
		m := &d.Messages[k.i]
		if k.arrival {
			to := 1 - m.From
			arrived[k.i] = max(sent[k.i]+row/2, end[to]+row/4)
			end[to] = arrived[k.i]
			height = max(height, arrived[k.i])
			continue
		}
		if last >= 0 && shared != last && d.Delay > 0 && !m.Remark && !d.Messages[last].Remark &&
			d.Messages[last].At == m.At && d.Messages[last].From != m.From && end[m.From] < y {
			shared = k.i
		} else {
			y = max(y+row, end[m.From]+row/2)
		}
		sent[k.i], arrived[k.i], end[m.From] = y, y, y
		last = k.i
		height = max(height, y)
	}
	return height
}

// byTime makes heights proportional to time, where enough room remains between events.
func (d *Diagram) byTime(sent, arrived []int) (height int) {
	list := d.marks()
	perTime := 0.0
	if n := len(list); n > 1 && list[n-1].at > list[0].at {
		perTime = float64(2*row*n) / float64(list[n-1].at-list[0].at)
	}
	y := topY
	for k, x := range list {
		if k > 0 {
			gap := row
			switch prev := list[k-1]; {
			case x.arrival && prev.arrival:
				gap = row / 4
			case x.arrival || prev.arrival: // an arrival has no label
				gap = row / 2
			}
			y += max(gap, int(perTime*float64(x.at-list[k-1].at)))
		}
		if x.arrival {
			arrived[x.i] = y
		} else {
			sent[x.i], arrived[x.i] = y, y
		}
	}
	return y
}

// A stroke is the line of an arrow.
type stroke struct{ x1, y1, x2, y2 int }

// at returns the height of the line at x, which must lie between the line's ends.
func (l stroke) at(x int) int { return l.y1 + (l.y2-l.y1)*(x-l.x1)/(l.x2-l.x1) }

// line returns the arrow of message i. The arrow of a lost message ends at 60 % of the width.
func (d *Diagram) line(i int, sent, arrived []int) stroke {
	l := stroke{leftX, sent[i], rightX, arrived[i]}
	if d.Messages[i].From == 1 {
		l.x1, l.x2 = l.x2, l.x1
	}
	if d.Messages[i].Lost {
		l.y2, l.x2 = l.at(l.x1+(l.x2-l.x1)*6/10), l.x1+(l.x2-l.x1)*6/10
	}
	return l
}

// A place is the position of a message's label.
type place struct {
	s            string
	x, y         int
	anchor       string
	left, right  int // the horizontal range of the text
	above, below int
}

const (
	charW    = 6  // average width of a character of a label, in units
	labelMax = 80 // characters
	halfMax  = 49 // in characters, if another label has the same height
)

// labels chooses the text and the position of each label. The text is shortened to fit. Positions
// are near the sender, in the middle or near the receiver, preferably where a label covers nothing.
func (d *Diagram) labels(sent, arrived []int) []place {
	places := make([]place, len(d.Messages))
	lines := make([]stroke, len(d.Messages))
	for i := range d.Messages {
		lines[i] = d.line(i, sent, arrived)
	}
	const near = 40 // number of earlier and later messages that may be in the way
	for i := range d.Messages {
		m := &d.Messages[i]
		s := m.Label()
		if len(m.Wrong) > 0 {
			s = "WRONG " + m.Wrong[0] + ": " + s
		}
		most := labelMax
		for j := max(0, i-1); j < min(len(sent), i+2); j++ {
			if j != i && sent[j] == sent[i] {
				most = halfMax
			}
		}
		s = shorten(s, most)
		w := int(float64(utf8.RuneCountInString(s)) * charW)
		if m.Remark {
			places[i] = place{s: s, x: (leftX + rightX) / 2, y: sent[i] + 4, anchor: "middle",
				left: (leftX + rightX - w) / 2, right: (leftX + rightX + w) / 2, above: sent[i] - 7, below: sent[i] + 7}
			continue
		}
		starts := []int{leftX + 14, (leftX + rightX - w) / 2, rightX - 14 - w}
		anchors := []string{"start", "middle", "end"}
		if m.From == 1 {
			slices.Reverse(starts)
			slices.Reverse(anchors)
		}
		for k, left := range starts {
			p := place{s: s, anchor: anchors[k], left: left, right: left + w}
			p.x = map[string]int{"start": left, "middle": left + w/2, "end": left + w}[p.anchor]
			l := lines[i]
			lo, hi := min(l.x1, l.x2), max(l.x1, l.x2)
			p.y = min(l.at(min(max(p.left, lo), hi)), l.at(min(max(p.right, lo), hi))) - 4
			p.above, p.below = p.y-10, p.y+2
			if k == 0 {
				places[i] = p
			}
			if !d.covers(p, i, near, lines, places) {
				places[i] = p
				break
			}
		}
	}
	return places
}

// covers reports whether a label at p would cover the line of another message than i, or a placed
// label.
func (d *Diagram) covers(p place, i, near int, lines []stroke, places []place) bool {
	for j := max(0, i-near); j < min(len(lines), i+near+1); j++ {
		if j == i {
			continue
		}
		if q := places[j]; j < i && p.left < q.right && q.left < p.right && p.above < q.below && q.above < p.below {
			return true
		}
		l := lines[j]
		lo, hi := max(p.left, min(l.x1, l.x2)), min(p.right, max(l.x1, l.x2))
		if d.Messages[j].Remark || lo > hi {
			continue
		}
		a, b := l.at(lo), l.at(hi)
		if min(a, b) < p.below && max(a, b) > p.above {
			return true
		}
	}
	return false
}

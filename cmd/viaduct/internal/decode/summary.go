package decode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Summary counts messages by connection.
type Summary struct {
	conns  map[int]*Total
	counts int // number of Counts of all connections
	modes  int
	// Dropped is the number of connections not counted, because there were too many.
	Dropped int
}

// A Total counts the messages of one connection. Datagrams and remarks about the capture itself are
// connection 0.
type Total struct {
	Conn     int            `json:"conn"`
	Opener   string         `json:"opener,omitempty"`
	Other    string         `json:"other,omitempty"`
	First    time.Time      `json:"first"`
	Last     time.Time      `json:"last"`
	Messages []Count        `json:"messages"`
	Wrong    map[string]int `json:"wrong"`
	Modes    []ModeAt       `json:"modes,omitempty"`
}

// A Count is the number of messages of one kind in one direction, and the sum of their payload
// bytes where the length is known.
type Count struct {
	Dir   string `json:"dir"`
	Proto string `json:"proto"`
	Name  string `json:"name"`
	Count int    `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// A ModeAt is a change of the flow control mode of a half-connection of SDP.
type ModeAt struct {
	Time time.Time `json:"time"`
	Dir  string    `json:"dir"` // direction of the message
	S    string    `json:"s"`
	Mode string    `json:"mode"`
}

const (
	maxTotals = 20_000
	maxModes  = 1000    // mode changes per connection
	allModes  = 100_000 // mode changes of all connections
	allCounts = 200_000 // names of messages; further ones are counted as others
)

// NewSummary returns an empty summary.
func NewSummary() *Summary { return &Summary{conns: make(map[int]*Total)} }

// Add counts m.
func (s *Summary) Add(m *Message) {
	t := s.conns[m.Conn]
	if t == nil {
		if len(s.conns) >= maxTotals {
			s.Dropped++
			return
		}
		t = &Total{Conn: m.Conn, First: m.Time, Wrong: make(map[string]int)}
		if m.Conn > 0 {
			t.Opener, t.Other = m.Src.String(), m.Dst.String()
			if m.Back {
				t.Opener, t.Other = t.Other, t.Opener
			}
		}
		s.conns[m.Conn] = t
	}
	t.Last = m.Time
	c := t.find(m.dir(), m.Proto, m.Name)
	if c == nil && (s.counts >= allCounts || len(t.Messages) >= maxNames) {
		c = t.find(m.dir(), others, others)
		if c == nil {
			c = t.add(m.dir(), others, others)
		}
	} else if c == nil {
		s.counts++
		c = t.add(m.dir(), m.Proto, m.Name)
	}
	c.Count++
	for j := range m.Fields {
		switch f := &m.Fields[j]; f.Key {
		case "rdmap.bytes", "vitcp.bytes", "fc.payload", "roce.payload", "tcp.bytes", "tcp.skipped":
			c.Bytes += f.N
		}
	}
	for _, w := range m.Wrong {
		t.Wrong[w.ID]++
	}
	if mode, ok := m.Get("sdp.mode"); ok && len(t.Modes) < maxModes && s.modes < allModes {
		s.modes++
		sd, _ := m.Get("sdp.s")
		t.Modes = append(t.Modes, ModeAt{m.Time, m.dir(), sd, mode})
	}
}

// others is the name for messages without a separate Count.
const others = "others"

// maxNames limits the names of a connection, because names are searched linearly.
const maxNames = 500

func (t *Total) find(dir, proto, name string) *Count {
	i := slices.IndexFunc(t.Messages, func(c Count) bool { return c.Dir == dir && c.Proto == proto && c.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Messages[i]
}

func (t *Total) add(dir, proto, name string) *Count {
	t.Messages = append(t.Messages, Count{Dir: dir, Proto: proto, Name: name})
	return &t.Messages[len(t.Messages)-1]
}

// Totals returns the counts by connection.
func (s *Summary) Totals() []*Total {
	list := make([]*Total, 0, len(s.conns))
	for _, t := range s.conns {
		slices.SortFunc(t.Messages, func(a, b Count) int {
			return cmp.Or(strings.Compare(a.Proto, b.Proto), strings.Compare(a.Name, b.Name),
				strings.Compare(a.Dir, b.Dir))
		})
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *Total) int { return cmp.Compare(a.Conn, b.Conn) })
	return list
}

// Head returns the heading of a connection's counts.
func (t *Total) Head() string {
	if t.Conn == 0 {
		return "datagrams and the capture itself"
	}
	return fmt.Sprintf("#%d %s > %s, %v", t.Conn, t.Opener, t.Other, t.Last.Sub(t.First))
}

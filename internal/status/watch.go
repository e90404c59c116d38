package status

import (
	"net"
	"reflect"
	"strings"
	"time"
	"unicode"

	"viaduct/iwarp"
	"viaduct/sdp"
	"viaduct/vi"
)

// A Hint holds facts about a connection the connection itself does not report. An empty field is
// taken from the connection, if possible.
type Hint struct {
	Transport     string // "sdp", "iwarp", "vi" or "tcp"
	Role          string // "dial", "accept" or "peer"
	Local, Remote string
	Why           string // why the connection uses TCP or shared memory
	Memory        uint64 // bytes of receive buffers
}

func (h Hint) fill(c *Conn) Conn {
	for _, f := range []struct {
		to   *string
		from string
	}{{&c.Transport, h.Transport}, {&c.Role, h.Role}, {&c.Local, h.Local}, {&c.Remote, h.Remote}, {&c.Why, h.Why}} {
		if f.from != "" {
			*f.to = f.from
		}
	}
	if h.Memory != 0 {
		c.Memory = h.Memory
	}
	return *c
}

func hintOf(h []Hint) Hint {
	if len(h) == 0 {
		return Hint{}
	}
	return h[0]
}

func text(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// WatchConn registers a byte stream until it has ended. The report has all counters of an
// *sdp.Conn, and the kernel's counters of an *sdp.TCPConn or *net.TCPConn. Other types are ignored,
// because nothing reports the end of such a connection.
func (s *Server) WatchConn(c net.Conn, hint ...Hint) {
	h := hintOf(hint)
	if s == nil {
		return
	}
	switch c := c.(type) {
	case *sdp.Conn:
		s.Watch(Source{
			Report: func(counters bool) Conn { r := sdpConn(c, counters); return h.fill(&r) },
			Ended:  func() bool { return closed(c.Done()) },
		})
	case *sdp.TCPConn:
		s.watchTCP(c.TCPConn, h, c.Path().Why)
	case *net.TCPConn:
		s.watchTCP(c, h, "")
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func sdpConn(c *sdp.Conn, counters bool) Conn {
	p, st := c.Path(), c.Stats()
	r := Conn{Transport: "sdp", Role: "dial", Local: text(p.Local), Remote: text(p.Remote),
		Why: p.Why, State: "open", Active: st.Stream.LastActivity,
		Path:          "sdp " + strings.ToLower(st.SendMode) + "/" + strings.ToLower(st.RecvMode) + checksum(p.CRC),
		SentBytes:     st.SentBytesBcopy + st.SentBytesPrefix + st.SentBytesTransact + st.SentBytesRead + st.SentBytesWrite,
		ReceivedBytes: st.RecvBytesBcopy + st.RecvBytesPrefix + st.RecvBytesTransact + st.RecvBytesRead + st.RecvBytesWrite,
		Credits:       st.Credits, Queued: uint64(st.SendQueue), Memory: uint64(st.Held),
	}
	if p.Accepted {
		r.Role = "accept"
	}
	r.by(p.SharedMemory, p.TCPWhy)
	if counters {
		r.Counters = map[string]uint64{}
		numbers(r.Counters, "sdp_", st.Counters)
		numbers(r.Counters, "", st.Stream)
	}
	return r
}

// by sets SharedMemory and WhyTCP.
func (c *Conn) by(sharedMemory bool, whyTCP string) {
	c.SharedMemory, c.WhyTCP = sharedMemory, whyTCP
	if sharedMemory {
		c.Path += " shm"
	}
}

func checksum(on bool) string {
	if on {
		return " crc"
	}
	return ""
}

func (s *Server) watchTCP(c *net.TCPConn, h Hint, why string) {
	local, remote := text(c.LocalAddr()), text(c.RemoteAddr())
	s.Watch(Source{
		Report: func(bool) Conn {
			r := Conn{Transport: "tcp", Local: local, Remote: remote, Path: "tcp", Why: why, State: "open", Credits: -1}
			var open bool
			if r.SentBytes, r.ReceivedBytes, open = tcpInfo(c); !open {
				r.State = "closed"
			}
			return h.fill(&r)
		},
		Ended: func() bool { _, _, open := tcpInfo(c); return !open },
	})
}

// WatchQueuePair registers an iWARP stream until it has ended.
func (s *Server) WatchQueuePair(q *iwarp.QueuePair, hint ...Hint) {
	h := hintOf(hint)
	s.Watch(Source{
		Report: func(counters bool) Conn {
			st, p := q.Stats(), q.Params()
			r := Conn{Transport: "iwarp", Local: text(q.LocalAddr()), Remote: text(q.RemoteAddr()),
				State: streamState(q), Active: st.LastActivity,
				Path: "iwarp" + checksum(p.CRC), SentBytes: st.SentBytes, ReceivedBytes: st.ReceivedBytes,
				Credits: -1, Queued: st.SendPosted}
			if p.SendMarkers || p.RecvMarkers {
				r.Path += " markers"
			}
			by := q.Path()
			r.by(by.SharedMemory, by.Why)
			if p.Enhanced {
				r.Why = "MPA revision 2 agreed on"
			} else if p.Rev != 0 {
				r.Why = "MPA revision 1: one side asked for it"
			}
			if counters {
				r.Counters = map[string]uint64{}
				numbers(r.Counters, "", st)
			}
			return h.fill(&r)
		},
		Ended: func() bool { return closed(q.Ended()) },
	})
}

func streamState(q *iwarp.QueuePair) string {
	switch {
	case closed(q.Ended()):
		return "ended"
	case closed(q.PeerClosed()):
		return "peer closed"
	}
	return "open"
}

// WatchVI registers a VI until it is in state Idle: the connection, or the attempt to connect, has
// ended. A VI that is Idle at the call is dropped by the next report, even if connected later.
func (s *Server) WatchVI(v *vi.VI, hint ...Hint) {
	h := hintOf(hint)
	s.Watch(Source{
		Report: func(counters bool) Conn {
			state, a, _, _ := v.Query()
			t := v.Traffic()
			r := Conn{Transport: "vi", State: strings.ToLower(state.String()), SentBytes: t.SentBytes,
				ReceivedBytes: t.ReceivedBytes, Credits: t.Credits, Queued: t.SendPosted}
			if state == vi.Connected {
				r.State = "open"
			}
			r.Path = "vi " + map[vi.Reliability]string{vi.UnreliableDelivery: "unreliable", vi.ReliableDelivery: "delivery", vi.ReliableReception: "reception"}[a.Reliability]
			if a.FlowControl {
				r.Path += " flow"
			}
			if counters {
				r.Counters = map[string]uint64{}
				numbers(r.Counters, "", t)
				delete(r.Counters, "credits")
			}
			if h.Transport != "" {
				r.Path = h.Transport + strings.TrimPrefix(r.Path, "vi")
			}
			if by := v.Path(); state == vi.Connected {
				r.by(by.SharedMemory, by.Why)
			}
			return h.fill(&r)
		},
		Ended: func() bool { return v.State() == vi.Idle },
	})
}

// names maps the names of counters to the names of the same counters in "rdma statistic".
var names = map[string]string{
	"sent_bytes": "tx_bytes", "received_bytes": "rx_bytes",
	"sent_fpdus": "tx_pkts", "received_fpdus": "rx_pkts",
	"served_reads": "rx_read_requests", "served_atomics": "rx_atomic_requests",
	"no_receive": "out_of_buffer",
}

// numbers stores each numeric field of the struct from in m. The keys are prefix and the field's
// name, in the style of "rdma statistic".
func numbers(m map[string]uint64, prefix string, from any) {
	v := reflect.ValueOf(from)
	for i := range v.NumField() {
		name := prefix + snake(v.Type().Field(i).Name)
		if n, ok := names[name]; ok {
			name = n
		}
		switch x := v.Field(i).Interface().(type) {
		case uint64:
			m[name] += x
		case int:
			m[name] += uint64(max(0, x))
		case time.Duration:
			m[name+"_us"] += uint64(x.Microseconds())
		}
	}
}

// snake converts a name like SentFPDUs to sent_fpdus.
func snake(s string) string {
	var b strings.Builder
	rs := []rune(s)
	for i, r := range rs {
		if i > 0 && unicode.IsUpper(r) {
			next := i+1 < len(rs) && unicode.IsLower(rs[i+1]) && !(rs[i+1] == 's' && i+2 == len(rs)) &&
				!(rs[i+1] == 's' && i+2 < len(rs) && unicode.IsUpper(rs[i+2]))
			if unicode.IsLower(rs[i-1]) || next {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

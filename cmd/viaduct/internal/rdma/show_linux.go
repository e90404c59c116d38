//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync/atomic"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/status"
	"viaduct/iwarp"
)

// A passed counts the payload a queue pair has sent and received over its link, without its stream.
type passed struct {
	sent, received atomic.Uint64 // bytes
	last           atomic.Int64  // when an own request last moved payload, in ns since 1970
}

// pass counts n bytes a request of q has moved.
func (l *link) pass(q *queuePair, op abi.WROp, n int) {
	from, to := q, l.peerOf(q)
	if op == abi.WROpRead {
		from, to = to, from
	}
	from.passed.sent.Add(uint64(n))
	to.passed.received.Add(uint64(n))
}

// show lists a connection in "viaduct ps", as long as its stream lasts. l may be nil.
func (s *Service) show(q *queuePair, iw *iwarp.QueuePair, l *link, role string) {
	if l == nil {
		s.opt.Status.WatchQueuePair(iw, status.Hint{Role: role})
		return
	}
	peer := l.peerOf(q)
	s.opt.Status.Watch(status.Source{
		Report: func(counters bool) status.Conn { return report(q, peer, iw, role, counters) },
		Ended: func() bool {
			select {
			case <-iw.Ended():
				return true
			default:
				return false
			}
		},
	})
}

// report returns the status of a connection with a link: the sum of the traffic over the link and
// the stream.
func report(q, peer *queuePair, iw *iwarp.QueuePair, role string, counters bool) status.Conn {
	st := iw.Stats()
	c := status.Conn{Transport: "iwarp", Role: role, Local: iw.LocalAddr().String(),
		Remote: iw.RemoteAddr().String(), State: "open", Active: st.LastActivity,
		Path: "iwarp copied", Why: "both programs run under this command: payload is copied from one to the other",
		SentBytes:     q.passed.sent.Load() + st.SentBytes,
		ReceivedBytes: q.passed.received.Load() + st.ReceivedBytes, Credits: -1, Queued: st.SendPosted}
	for _, end := range []*queuePair{q, peer} {
		if t := end.passed.last.Load(); t > c.Active.UnixNano() {
			c.Active = time.Unix(0, t)
		}
	}
	if counters {
		c.Counters = map[string]uint64{"tx_bytes": c.SentBytes, "rx_bytes": c.ReceivedBytes}
	}
	return c
}

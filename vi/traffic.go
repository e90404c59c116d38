package vi

// Traffic has the counters of a VI since the connection was set up.
type Traffic struct {
	SentMessages, ReceivedMessages uint64 // Sends and RDMAs, each counted when it has completed
	SentBytes, ReceivedBytes       uint64 // payload
	ServedReads                    uint64 // RDMA Reads of the peer that this side has answered

	// Credits is the number of messages with a receive descriptor the VI may send now, or -1
	// without flow control.
	Credits int

	SendPosted, RecvPosted uint64 // descriptors in the queues that were not yet dequeued
}

// A counted is a Link with traffic counters.
type counted interface{ Traffic() Traffic }

// Traffic returns the current counters. The counters of an ended connection remain until the VI is
// connected again. Before the first connection, and with a provider without counters, all counters
// except SendPosted and RecvPosted are zero. Credits is -1 without a connection. Traffic never
// waits for the peer.
func (v *VI) Traffic() Traffic {
	t := Traffic{Credits: -1}
	if ep := v.conn.Load(); ep != nil {
		if c, ok := ep.link.(counted); ok {
			t = c.Traffic()
		}
	} else if last := v.carried.Load(); last != nil {
		t = *last
	}
	t.SendPosted, t.RecvPosted = v.send.waiting(), v.recv.waiting()
	return t
}

// keepTraffic stores the counters of a link. It runs twice: before the VI drops the link, so that
// Traffic always has a result, and after the link was stopped, with the final counts. The caller
// holds mu.
func (v *VI) keepTraffic(l Link) {
	t := Traffic{Credits: -1}
	if c, ok := l.(counted); ok {
		t = c.Traffic()
		t.Credits = -1
	}
	v.carried.Store(&t)
}

// waiting returns the number of posted descriptors not yet dequeued.
func (s *side) waiting() uint64 {
	c := s.q.Counts()
	return c.Posted - c.Reaped
}

package vi

// Traffic counts what a connected VI has done since its connection was set up.
type Traffic struct {
	SentMessages, ReceivedMessages uint64 // Sends and RDMA, each counted when it is complete
	SentBytes, ReceivedBytes       uint64 // payload
	ServedReads                    uint64 // RDMA Reads of the peer that were answered

	// Credits is the number of messages that consume a receive descriptor and may be sent now. It
	// is -1 without flow control.
	Credits int

	SendPosted, RecvPosted uint64 // descriptors in the queues that were not dequeued yet
}

// A counted Link counts its traffic.
type counted interface{ Traffic() Traffic }

// Traffic returns the current counters. Those of an ended connection remain until the VI is
// connected again. Before the first connection, and with a provider that does not count, every
// counter but the posted descriptors is zero. Credits is -1 without a connection. Traffic never
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

// keepTraffic stores the traffic of a link: once before the VI drops the link, so that Traffic
// always has a result, and again after the link was stopped, with the final counts. It is called
// with mu held.
func (v *VI) keepTraffic(l Link) {
	t := Traffic{Credits: -1}
	if c, ok := l.(counted); ok {
		t = c.Traffic()
		t.Credits = -1
	}
	v.carried.Store(&t)
}

// waiting returns the number of descriptors in the queue.
func (s *side) waiting() uint64 {
	c := s.q.Counts()
	return c.Posted - c.Reaped
}

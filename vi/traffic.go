package vi

// Traffic counts what a connected VI has done since its connection was set up.
type Traffic struct {
	SentMessages, ReceivedMessages uint64
	SentBytes, ReceivedBytes       uint64 // payload
	ServedReads                    uint64 // RDMA Reads of the peer that were answered

	// Credits is how many messages that consume a receive descriptor may be sent
	// now, -1 where nothing counts them.
	Credits int

	SendPosted, RecvPosted uint64 // descriptors in the queues that were not taken back yet
}

// A counted Link knows what it has carried.
type counted interface{ Traffic() Traffic }

// Traffic returns the counters at this moment. Without a connection, and with a
// provider that does not count, all but the posted descriptors is zero and
// Credits is -1. It never waits for the peer.
func (v *VI) Traffic() Traffic {
	t := Traffic{Credits: -1}
	if ep := v.conn.Load(); ep != nil {
		if c, ok := ep.link.(counted); ok {
			t = c.Traffic()
		}
	}
	t.SendPosted, t.RecvPosted = v.send.waiting(), v.recv.waiting()
	return t
}

// waiting is how many descriptors the side holds.
func (s *side) waiting() uint64 {
	c := s.q.Counts()
	return c.Posted - c.Reaped
}

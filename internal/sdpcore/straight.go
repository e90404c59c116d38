package sdpcore

import "viaduct/internal/wire/sdpwire"

// Straight is a fast Write of n bytes for the most frequent case: no other bytes are queued, there
// is credit, and len(msgs) Data messages can carry all bytes. It stores these messages in msgs and
// returns their number. The driver must send the messages with the bytes as payload, and then the
// write has ended. In any other case Straight returns 0, and the driver calls Write. Straight has
// the same effect as Write, without a queue and a list of actions. [SDP-9.1-1]
func (m *Machine) Straight(now Time, n int, msgs []sdpwire.Message) int {
	s, k := &m.src, &m.snk
	if m.life != lifeOpen || s.closing || n <= 0 ||
		s.writes.len() > 0 || s.room.len() > 0 || s.mode.zcopy(n) {
		return 0
	}
	limit := m.p.PeerSize - sdpwire.BSDHLen
	count := 1
	if n > limit {
		size := piece(n, limit)
		count = 1 + (n-limit+size-1)/size // the last message may be longer than size
	}
	// Each message needs three credits. With so much credit, no other message waits, because each
	// was sent as soon as possible.
	if count > len(msgs) || m.cr.credit() < count+2 {
		return 0
	}
	m.now = max(now, m.now)
	s.mode.noteWrite(n)
	if m.steer(); s.mode.pol.wanted || k.mode.pol.wanted {
		return 0
	}
	m.stats.SentBytesBcopy += uint64(n)
	for i := range msgs[:count] {
		p := piece(n, limit)
		n -= p
		msgs[i] = m.snd.header(sdpwire.Data, 0)
		msgs[i].Len += uint32(p)
		s.sentPayload()
	}
	return count
}

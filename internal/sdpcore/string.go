package sdpcore

import "fmt"

// String describes the state of the machine in one line, for finding the reason of a standstill.
func (m *Machine) String() string {
	s, k := &m.src, &m.snk
	return fmt.Sprintf("[%v send=%v recv=%v credit=%d stalled=%t/%v nudged=%t/%v bufs=%d free=%d told=%d empties=%d now=%v acked=%d next=%d peerHas=%d gain=%d writes=%d forced=%d advs=%d avail=%d cancel=%t/%t leaving=%t closing=%t dis=%t | reads=%d held=%d adverts=%d ops=%d expected=%d offers=%d cancel=%t/%t eof=%t]",
		m.life, s.mode.current, k.mode.current, m.cr.credit(), m.upd.stalled, m.upd.stalledAt, m.upd.nudged, m.upd.nudgedAt,
		m.cr.bufs, m.cr.free, m.cr.told, m.cr.empties, m.now, m.cr.acked, m.cr.next,
		m.cr.peerHas(), m.cr.gain(), s.writes.len(), s.writes.forced, s.advs.len(), s.room.len(),
		s.advs.cancelWant, s.advs.cancelOpen, s.mode.leaving, s.closing, s.disSent,
		k.reads.len(), k.held.n, k.fetch.adverts.len(), k.fetch.ops.len(), k.fetch.expected, k.offer.len(),
		k.offer.cancelWant, k.offer.cancelOpen, k.eof)
}

package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A srcAdv is an open SrcAvail.
type srcAdv struct {
	key    uint64
	size   int // bytes advertised
	left   int // bytes neither in the payload of the SrcAvail nor acknowledged
	stag   uint32
	seq    serial        // MSeq of the SrcAvail
	at     time.Duration // when the SrcAvail was sent, or when bytes were last acknowledged
	zeroes int           // number of RdmaRdCompls without bytes in a row [D-19]
}

// srcAvails are the open SrcAvails of this end, oldest first: Read Zcopy at the Data Source. The peer
// reads the writes that they cover, or answers with SendSm. [SDP 9.2]
type srcAvails struct {
	deque[srcAdv]
	*common
	snd  *sender
	ws   *writes
	mode *sendMode

	cancelWant bool          // a SrcAvailCancel must be sent
	cancelOpen bool          // a SrcAvailCancel was sent and is not Processed
	cancelSeq  serial        // MSeq of the SrcAvailCancel
	cancelAt   time.Duration // when the SrcAvailCancel was sent
}

// send begins a Read Zcopy: it advertises the rest of the oldest plain write, at any address,
// including the bytes in the payload, and returns the number of the latter. [SDP-9.2-1] [SDP-9-3]
// [SDP-6.3.2.1-1] [SDP-6.3.2.2-1] [SDP-6.3.2.2-2] In Combined Mode the message carries the first
// bytes [SDP-9.2-2] [SDP-11.2-6], in Pipelined Mode none [SDP-9.2-3] [SDP-11.3-4]; in both modes it
// describes the whole buffer [SDP-9.2-4].
func (s *srcAvails) send() (prefix int) {
	w := s.ws.plain()
	size := min(w.n-w.off, sdpwire.MaxSize)
	if s.mode.current == sdpwire.Combined {
		prefix = 1 // [D-82]
		if room := s.p.PeerSize - sdpwire.SrcAvailLen; s.p.BigPrefix {
			prefix = min(room, size-1) // the prefix is never all of the buffer [D-18]
		}
	}
	key := s.newKey()
	act := &s.out[s.snd.send(sdpwire.SrcAvail, 0)]
	act.Adv, act.ID, act.Off, act.N = key, w.id, w.off, prefix
	act.Msg.Size = uint32(size)
	act.Msg.Len += uint32(prefix)
	s.ws.count(w, prefix)
	s.ws.advertised++
	s.push(srcAdv{key: key, size: size, left: size - prefix, seq: serial(act.Msg.MSeq), at: s.now}) // [SDP-12.4-6]
	s.stats.SentSrcAvails++
	s.stats.SentBytesPrefix += uint64(prefix)
	return prefix
}

// bind records the STag of advertisement key. It reports whether that is an open SrcAvail.
func (s *srcAvails) bind(key uint64, stag uint32) bool {
	for i := s.len() - 1; i >= 0; i-- {
		if a := s.at(i); a.key == key {
			a.stag = stag
			return true
		}
	}
	return false
}

// end removes the oldest SrcAvail, and revokes its STag. remote means that the peer has invalidated
// the STag.
func (s *srcAvails) end(remote bool) {
	s.ws.advertised--
	s.do(Action{Op: OpRevoke, Adv: s.pop().key, Remote: remote})
}

// revoke ends all open SrcAvails without separate answers. Their writes become plain again, from the
// first undelivered byte on. [D-83]
func (s *srcAvails) revoke() {
	for s.len() > 0 {
		s.end(false)
	}
}

// override ends all open SrcAvails, because the peer has sent a SinkAvail.
func (s *srcAvails) override() {
	s.stats.Overrides += uint64(s.len())
	s.revoke()
	s.checkCancel()
}

// reissue returns the writes of all SrcAvails sent before the ModeChange to the queue, because the
// peer has discarded these SrcAvails. [SDP-12.4-6] [SDP-12.4-8] SrcAvails sent after the ModeChange
// remain valid. [D-26]
func (s *srcAvails) reissue() {
	if s.len() > 0 && s.at(0).seq.less(s.mode.leaveSeq) {
		s.override()
	}
}

// wantCancel makes a SrcAvailCancel due, unless one is open. A SrcAvail must be open. [SDP-9.5.4-1]
func (s *srcAvails) wantCancel() { s.cancelWant = !s.cancelOpen }

// sendCancel sends the SrcAvailCancel that is due. [SDP-9.5.4-1]
func (s *srcAvails) sendCancel() {
	a := s.snd.send(sdpwire.SrcAvailCancel, 0)
	s.cancelWant, s.cancelOpen, s.cancelSeq, s.cancelAt = false, true, serial(s.out[a].Msg.MSeq), s.now
	s.stats.SentSrcCancels++
}

// endCancel ends the SrcAvailCancel, and the cancelled writes that no SrcAvail covers any more.
func (s *srcAvails) endCancel() {
	s.cancelOpen, s.cancelWant = false, false
	s.ws.dropCancelled()
}

// checkCancel ends the SrcAvailCancel if no SrcAvail is open any more. [SDP-9.5.4-11]
func (s *srcAvails) checkCancel() {
	if s.len() == 0 {
		s.endCancel()
	}
}

// beginRdmaRdCompl checks an RdmaRdCompl, which refers to the oldest open SrcAvail.
func (s *srcAvails) beginRdmaRdCompl(msg *inbound) error {
	switch {
	case s.len() == 0:
		return violation("SDP-9.2-13", msg.MID, "no SrcAvail is open")
	case s.ws.forced > 0:
		return violation("SDP-9.2-27", msg.MID, "bytes of an earlier SrcAvail are still owed by Data")
	}
	a := s.at(0)
	// The peer acknowledges any part of the rest, in any number of rounds. [SDP-9.2-14] [SDP-9.2-15]
	n := int(msg.Size)
	switch { // [SDP-9.2-17]
	case n > a.left:
		return violation("SDP-9.2-17", msg.MID, "%d bytes of the %d that were left", n, a.left)
	case n == 0 && a.zeroes == 16: // [D-19]
		return violation("D-19", msg.MID, "no progress %d times", a.zeroes+1)
	case msg.invalidated && (n != a.left || msg.inv != a.stag): // [SDP-9.2-22] [D-41]
		return violation("SDP-9.2-22", msg.MID, "invalidates an STag that is not the finished SrcAvail's")
	}
	return nil
}

// endRdmaRdCompl counts bytes of the oldest open SrcAvail that the peer has read.
func (s *srcAvails) endRdmaRdCompl(msg *inbound) error {
	a, n := s.at(0), int(msg.Size)
	final := n == a.left
	if a.zeroes++; n > 0 || final {
		a.zeroes = 0
	}
	s.stats.SentBytesRead += uint64(n)
	a.left -= n
	// After the final RdmaRdCompl the peer does not read the bytes any more. [SDP-9.2-19] After any
	// other RdmaRdCompl, another answer must follow. [SDP-9.2-18]
	if final {
		s.end(msg.invalidated) // [SDP-9.2-23]
		s.ws.advance(s.ws.forced, n)
	} else {
		s.ws.count(s.written(), n)
		a.at = s.now
	}
	s.mode.noteRdCompl()
	s.checkCancel()
	s.mode.noteHint(msg.Flags) // only RdmaRdCompl and RdmaWrCompl carry the hint [SDP-6.1.2-12]
	return nil
}

// written returns the write that the oldest open SrcAvail covers.
func (s *srcAvails) written() *write { return s.ws.at(s.ws.forced) }

// beginSendSm checks a SendSm, which refers to the oldest open SrcAvail.
func (s *srcAvails) beginSendSm(msg *inbound) error {
	s.stats.RecvSendSms++
	if s.len() == 0 { // [SDP-9.2-16]
		return violation("SDP-9.2-16", msg.MID, "no SrcAvail is open")
	}
	return nil
}

// endSendSm forces the rest of the oldest open SrcAvail to Data, as the peer wants [SDP-9.2-24]
// [SDP-9.5.2.1-5]. If the SendSm answers a cancel, it ends all SrcAvails instead.
func (s *srcAvails) endSendSm(msg *inbound) error {
	if s.cancelOpen && !serial(msg.MSeqAck).less(s.cancelSeq) { // [SDP-9.5.4-11]
		s.revoke()
		s.endCancel()
		return nil
	}
	// A SendSm from before the cancel ends its SrcAvail in the normal way. [D-31]
	w := s.written()
	s.end(false)
	w.forced, w.bcopy = true, true
	s.ws.forced++
	if w.cancel {
		w.cancel = false
		s.ws.detach(w)
	}
	s.mode.noteSendSm() // [D-39]
	s.checkCancel()
	return nil
}

// unansweredFits reports whether the oldest SrcAvail may be cancelled and its bytes sent by Bcopy.
func (s *srcAvails) unansweredFits() bool {
	return s.len() > 0 && !s.cancelOpen && !s.cancelWant && s.at(0).left <= s.p.SendBudget
}

// tick cancels the SrcAvails if the oldest is unanswered for too long, so that their bytes are sent
// by Bcopy. [D-81]
func (s *srcAvails) tick() {
	if s.unansweredFits() && s.now >= s.at(0).at+s.p.Timers.Unanswered {
		for i := range s.ws.covered() {
			s.ws.at(i).bcopy = true
		}
		s.cancelWant = true
	}
}

// cancelExpired reports whether the peer has not answered a SrcAvailCancel in time.
func (s *srcAvails) cancelExpired() bool {
	return s.cancelOpen && s.now >= s.cancelAt+s.p.Timers.Cancel
}

// timers adds the times of tick and of an unanswered cancel.
func (s *srcAvails) timers(a *alarm) {
	if s.cancelOpen {
		a.at(s.cancelAt + s.p.Timers.Cancel)
	}
	if s.unansweredFits() {
		a.at(s.at(0).at + s.p.Timers.Unanswered)
	}
}

package fcip

import (
	"errors"
	"time"

	"viaduct/internal/fc"
)

// ErrSilent is the reason for the end of a link on which nothing has arrived for twice K_A_TOV, not
// even an answer to LKA.
var ErrSilent = errors.New("fcip: the other end is silent")

// watch tests the link. After each half K_A_TOV without a frame watch sends a link keep alive
// (LKA), a class F link service between the fabric controllers of both ends. Any received frame
// shows that the other end is alive.
func (l *Link) watch() {
	half := l.katov / 2
	// The timer must not fire before l.watchdog is set.
	l.watchdog = time.AfterFunc(time.Hour, func() {
		if l.closed.Load() {
			return
		}
		got := l.stats.recvF.Load()
		if got != l.heard {
			l.heard, l.quiet = got, 0
		} else if l.quiet++; l.quiet >= 4 {
			l.Abort(ErrSilent)
			return
		} else {
			l.Send(&fc.Frame{SOF: fc.SOFf, EOF: fc.EOFt, Payload: fc.AppendCmd(nil, fc.ELSLKA), Header: fc.Header{
				RCtl: fc.RCtlELSReq, DID: fc.AddrFabricController, SID: fc.AddrFabricController, Type: fc.TypeELS,
				FCtl: fc.FCtlFirstSeq | fc.FCtlEndSeq | fc.FCtlSeqInit, OXID: uint16(l.quiet), RXID: fc.Unassigned}})
			l.Flush()
		}
		l.watchdog.Reset(half)
	})
	l.watchdog.Reset(half)
}

// keepAlive handles an LKA or the answer to one, and returns false for any other frame. The answer
// to an LKA is sent with the next frames, or by the next flush.
func (l *Link) keepAlive(f *fc.Frame) bool {
	if f.SOF != fc.SOFf || f.Type != fc.TypeELS || f.DID != fc.AddrFabricController ||
		f.SID != fc.AddrFabricController {
		return false
	}
	if f.RCtl == fc.RCtlELSReq && fc.CmdOf(f.Payload) == fc.ELSLKA {
		l.Send(&fc.Frame{SOF: fc.SOFf, EOF: fc.EOFt, Payload: fc.AppendCmd(nil, fc.ELSAcc), Header: fc.Header{
			RCtl: fc.RCtlELSReply, DID: f.SID, SID: f.DID, Type: fc.TypeELS,
			FCtl: fc.FCtlExchResponder | fc.FCtlLastSeq | fc.FCtlEndSeq, OXID: f.OXID, RXID: fc.Unassigned}})
		l.answer = true
	}
	return true
}

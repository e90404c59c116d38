package doze

import "sync/atomic"

// Who waits for an answer looks for it for a moment before he sleeps, since being
// woken takes about as long. Where that was in vain several times in a row, the
// other end is likely to wait for this very processor: from then on only a few
// look, to see whether that has changed.
const (
	inVain  = 4
	oneEach = 16 // of those that would look
)

// Looks remembers whether looking was of use. The zero value is ready for use, by
// several goroutines at once.
type Looks struct {
	vain   atomic.Int32  // looks in vain since the last that was not
	passed atomic.Uint32 // occasions after too many of those
}

// Worth tells whether the caller should look.
func (l *Looks) Worth() bool { return l.vain.Load() < inVain || l.passed.Add(1)%oneEach == 0 }

// Done tells whether a look was of use.
func (l *Looks) Done(use bool) {
	if !use {
		l.vain.Add(1)
	} else if l.vain.Load() > 0 {
		l.vain.Store(0)
	}
}

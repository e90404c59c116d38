package sdp

import (
	"time"

	"viaduct/internal/sdpcore"
)

// An alarm is the timer of a connection, and two times at which the timer fires besides the times of
// the machine and the calls. Conn.mu guards all fields.
type alarm struct {
	fire   func() // called without Conn.mu
	timer  *time.Timer
	at     sdpcore.Time // when the timer fires; 0 for never
	attend sdpcore.Time // when the connection begins to receive without a call; 0 if it has begun
	close  sdpcore.Time // when a closed connection is reset; 0 for never
}

// set makes the timer fire at the given time. A timer that fires earlier stays unchanged.
func (a *alarm) set(at sdpcore.Time, now func() sdpcore.Time) {
	if at == 0 || a.at != 0 && a.at <= at {
		return
	}
	a.at = at
	if left := max(at-now(), 0); a.timer == nil {
		a.timer = time.AfterFunc(left, a.fire)
	} else {
		a.timer.Reset(left)
	}
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// due reports whether the time *at has come. If so, due sets *at to never.
func due(at *sdpcore.Time, now sdpcore.Time) bool {
	if *at == 0 || now < *at {
		return false
	}
	*at = 0
	return true
}

// soonest returns the earlier of two times, where 0 stands for never.
func soonest(a, b sdpcore.Time) sdpcore.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

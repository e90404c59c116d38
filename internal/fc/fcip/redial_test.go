package fcip

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/samehost"
)

// An attempts is a log handler recording the times of the failed attempts of a Redialer.
type attempts struct {
	slog.Handler
	at []time.Time
}

func (*attempts) Enabled(context.Context, slog.Level) bool { return true }

func (a *attempts) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "fabric not reached" {
		a.at = append(a.at, r.Time)
	}
	return nil
}

// TestRedialer: the pauses between the attempts to reach a fabric grow from 0.1 s to 1 s, a quarter
// more or less, so that members of a restarted fabric join the fabric again within five seconds.
// [FCFS-3.2-5]
func TestRedialer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		log := &attempts{Handler: slog.DiscardHandler, at: []time.Time{time.Now()}}
		r := Redialer{Address: "no port", Config: Config{FabricName: 1, SameHost: samehost.Off, Logger: slog.New(log)}}
		if l, err := r.Dial(ctx); l != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", l, err)
		}
		if n := len(log.at); n < 45 {
			t.Errorf("%d attempts in a minute", n)
		}
		pause := firstPause
		for i := range len(log.at) - 1 {
			if got := log.at[i+1].Sub(log.at[i]); got < pause*3/4 || got > pause*5/4 {
				t.Errorf("pause %d: %v", i, got)
			}
			pause = min(2*pause, time.Second)
		}
		if connectTime+time.Second*5/4 >= 5*time.Second {
			t.Error("an attempt can end after more than five seconds")
		}
	})
}

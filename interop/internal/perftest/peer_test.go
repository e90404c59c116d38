package perftest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/iwarp"
)

// TestBadPeers runs peers that leave the exchange at each step. Each of our roles must then end
// soon, with an error.
func TestBadPeers(t *testing.T) {
	exchange := []string{capturedVersion, capturedCycle, capturedLine, capturedMTU, capturedKeys}
	bad := []struct{ messages, want string }{
		{"352e3030 000000000000000000000000", "version"},
		{"00000000", "buffer size 0"},
		{"00010000", "cache line 65536"},
		{"7800", "MTU"},
		{"00", "keys of 1 bytes"},
	}
	opt := Options{Size: 64, Count: 10}
	for step, b := range bad {
		for name, script := range map[string][]string{
			b.want:               append(exchange[:step:step], b.messages),
			"short " + b.want:    append(exchange[:step:step], "ff"),
			"long " + b.want:     append(exchange[:step:step], strings.Repeat("00", keysLen+8)),
			"close at " + b.want: exchange[:step],
		} {
			t.Run(name, func(t *testing.T) {
				check := func(role string, err error) {
					t.Helper()
					if err == nil || name == b.want && !strings.Contains(err.Error(), b.want) ||
						strings.HasPrefix(name, "close") && !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("%s: %v", role, err)
					}
				}
				ctx := within(t)
				l, served := serve(ctx, t, nil, opt)
				c := control{client: true}
				cfg := Config(nil, opt)
				cfg.Prepare = c.prepare
				q, err := iwarp.Dial(ctx, l.Addr().String(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				play(ctx, q, &c, script)
				check("server", (<-served).err)

				called := make(chan error, 1)
				go func() {
					_, err := Dial(ctx, l.Addr().String(), nil, opt)
					called <- err
				}()
				r, err := l.AcceptRequest(ctx)
				if err != nil {
					t.Fatal(err)
				}
				c = control{}
				c.prepare(r.QueuePair())
				if q, err = r.Accept(nil); err != nil {
					t.Fatal(err)
				}
				play(ctx, q, &c, script)
				check("client", <-called)
			})
		}
	}
}

// play sends the messages of the script and closes.
func play(ctx context.Context, q *iwarp.QueuePair, c *control, script []string) {
	for _, s := range script {
		if _, err := c.exchange(ctx, testkit.Hex(s)); err != nil {
			break
		}
	}
	q.Close()
}

// TestBadTraffic: a fault on the data stream ends the run with an error naming the fault.
func TestBadTraffic(t *testing.T) {
	t.Run("credit for nothing", func(t *testing.T) {
		w := &sender{session: &session{opt: Options{Test: SendBW, Count: 10}}, word: []byte{3, 0, 0, 0}}
		if n, err := w.room(5); err != nil || n != 10-1-2 {
			t.Error(n, err)
		}
		if _, err := w.room(2); !errors.Is(err, ErrCount) {
			t.Error(err)
		}
	})
	t.Run("write outside", func(t *testing.T) {
		ctx := within(t)
		small, large := Options{Size: 64, Count: 10}, Options{Size: 8192, Count: 10}
		l, served := serve(ctx, t, nil, small)
		if _, err := Dial(ctx, l.Addr().String(), nil, large); err == nil {
			t.Error("the client saw nothing of it")
		}
		if s := <-served; s.err == nil {
			t.Error("the server saw nothing of it")
		}
	})
}

package perftest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/iwarp"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var tests = []Test{WriteBW, ReadBW, SendBW}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

type outcome struct {
	res *Result
	err error
}

// serve starts our server. The listener is closed when the test ends.
func serve(ctx context.Context, t *testing.T, base *iwarp.Config, opt Options) (*iwarp.Listener, <-chan outcome) {
	t.Helper()
	l, err := iwarp.Listen("127.0.0.1:0", Config(base, opt))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	served := make(chan outcome, 1)
	go func() {
		res, err := Serve(ctx, l, opt)
		served <- outcome{res, err}
	}()
	return l, served
}

// both runs our client against our server.
func both(t *testing.T, client, server Options, base *iwarp.Config) (c, s outcome) {
	t.Helper()
	ctx := within(t)
	l, served := serve(ctx, t, base, server)
	defer l.Close()
	c.res, c.err = Dial(ctx, l.Addr().String(), base, client)
	if c.err != nil {
		l.Close()
	}
	return c, <-served
}

func TestRuns(t *testing.T) {
	for _, test := range tests {
		for _, v := range []struct{ size, count, depth int }{
			{1, 5, 1}, {32, 7, 0}, {64, 100, 0}, {100, 100, 3}, {2048, 100, 0}, {2049, 50, 0}, {4096, 100, 0}, {5000, 1100, 0}, {65536, 50, 0}, {1 << 20, 6, 2},
		} {
			t.Run(fmt.Sprintf("%v/%dx%d", test, v.count, v.size), func(t *testing.T) {
				opt := Options{Test: test, Size: v.size, Count: v.count, Depth: v.depth, Verify: true}
				c, s := both(t, opt, opt, nil)
				if c.err != nil || s.err != nil {
					t.Fatalf("client %v, server %v", c.err, s.err)
				}
				for _, r := range []*Result{c.res, s.res} {
					if r.Test != test || r.Size != v.size || r.Count != v.count || r.Bytes() != uint64(v.size*v.count) {
						t.Errorf("%+v", r)
					}
				}
				if r := s.res.Peer; test == SendBW && r != nil || test != SendBW && (r == nil || r.Average <= 0 || r.Rate <= 0) {
					t.Errorf("the server was told %+v", r)
				}
				verified := map[Test]*Result{WriteBW: s.res, ReadBW: c.res, SendBW: s.res}[test]
				if verified.Verified != v.count {
					t.Errorf("verified %d of %d", verified.Verified, v.count)
				}
			})
		}
	}
}

// TestStarts runs all tests with MPA start-ups different from the default.
func TestStarts(t *testing.T) {
	for name, base := range map[string]*iwarp.Config{"client-server": {Interop: iwarp.Interop{ClientServer: true}}, "markers": {Interop: iwarp.Interop{Markers: true}}} {
		for _, test := range tests {
			opt := Options{Test: test, Size: 3000, Count: 20, Verify: true}
			if c, s := both(t, opt, opt, base); c.err != nil || s.err != nil {
				t.Errorf("%s, %v: client %v, server %v", name, test, c.err, s.err)
			}
		}
	}
}

// TestDisagreement gives the two ends different options, and checks the error of each end.
func TestDisagreement(t *testing.T) {
	for _, v := range []struct {
		name           string
		client, server Options
		err            error
	}{
		{"count", Options{Size: 64, Count: 10}, Options{Size: 64, Count: 20}, ErrCount},
		{"size", Options{Size: 64, Count: 10}, Options{Size: 128, Count: 10}, ErrCount},
		{"reads", Options{Test: ReadBW, Size: 64, Count: 10}, Options{Test: ReadBW, Size: 64, Count: 11}, ErrCount},
		{"sends", Options{Test: SendBW, Size: 64, Count: 10}, Options{Test: SendBW, Size: 128, Count: 10}, ErrCount},
	} {
		t.Run(v.name, func(t *testing.T) {
			c, s := both(t, v.client, v.server, nil)
			if !errors.Is(s.err, v.err) {
				t.Errorf("server: %v", s.err)
			}
			if c.err == nil {
				t.Error("the client saw nothing of it")
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Test: 3}, {Size: -1}, {Size: MaxSize + 1}, {Count: 4}, {Depth: -1}, {Depth: MaxDepth + 1}, {Test: SendBW, Size: 1 << 20}} {
		if _, err := Dial(context.Background(), "", nil, o); err == nil || !strings.HasPrefix(err.Error(), "perftest: ") {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := Serve(context.Background(), nil, o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
	o := Options{Test: ReadBW, Size: 8 << 20}
	if err := o.check(); err != nil || o.Depth != 32 || o.Count != DefaultCount {
		t.Errorf("%+v, %v", o, err)
	}
	for count, want := range map[int]int{5: 6, 6: 6, 511: 512, 512: 512, 5000: 512} {
		if o := (Options{Count: count}); o.receives() != want {
			t.Errorf("%d messages: %d receives, want %d", count, o.receives(), want)
		}
	}
}

// TestSettle: the client of Writes, and no other, waits before reporting the end of the run, and
// the wait may fail.
func TestSettle(t *testing.T) {
	ours := errors.New("ours")
	for _, test := range tests {
		server := Options{Test: test, Size: 4096, Count: 20, Verify: true}
		calls := 0
		client := server
		client.Settle = func(context.Context) error { calls++; return nil }
		c, s := both(t, client, server, nil)
		if want := map[Test]int{WriteBW: 1}[test]; c.err != nil || s.err != nil || calls != want {
			t.Errorf("%v: called %d times, want %d: %v, %v", test, calls, want, c.err, s.err)
		}
	}
	server := Options{Size: 64, Count: 10}
	client := server
	client.Settle = func(context.Context) error { return ours }
	if c, s := both(t, client, server, nil); c.err != ours || s.err == nil {
		t.Errorf("client %v, server %v", c.err, s.err)
	}
}

// TestSecondStream: the client retries while the server does not listen for the second stream, and
// gives up after some attempts.
func TestSecondStream(t *testing.T) {
	opt := Options{Size: 64, Count: 10}
	ctx := within(t)
	l, served := serve(ctx, t, nil, opt)
	calls := 0
	_, err := Client(ctx, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		switch calls++; calls {
		case 2:
			return nil, syscall.ECONNREFUSED
		case 3: // like a forwarded port without a listener
			a, b := net.Pipe()
			b.Close()
			return a, nil
		}
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}, nil, opt)
	if err != nil || calls != 4 {
		t.Errorf("%d connections: %v", calls, err)
	}
	if s := <-served; s.err != nil {
		t.Error(s.err)
	}

	ctx, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
	defer cancel()
	_, err = redial(ctx, func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED }, nil)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connected without a listener: %v", err)
	}
}

func TestNames(t *testing.T) {
	for test, want := range map[Test]string{WriteBW: "ib_write_bw", ReadBW: "ib_read_bw", SendBW: "ib_send_bw", 9: "Test(0x09)"} {
		if test.String() != want {
			t.Errorf("%v, want %s", test, want)
		}
	}
}

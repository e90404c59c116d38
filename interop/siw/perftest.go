package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"viaduct/interop/internal/perftest"
	"viaduct/iwarp"
)

// A bandwidth lists the runs of perftest's tools in a mode.
type bandwidth struct {
	sizes []int
	count int // least number of messages
}

var bandwidthTests = []perftest.Test{perftest.WriteBW, perftest.ReadBW, perftest.SendBW}

// sockets makes connections with segments of a multiple of four bytes, like all FPDUs; see rmem.
var sockets = net.ListenConfig{Control: segments}

// rmem limits the guest's receive window to less than 64 KiB, so that the window is a multiple of
// the segment size. siw wrongly restarts a CRC for each arriving part (see docs/iwarp-peers.md), so
// a CRC must not be split. QEMU's user network splits the stream at the end of a window, and
// otherwise only at the ends of our segments.
const rmem = "echo 4096 131072 131072 >/proc/sys/net/ipv4/tcp_rmem"

// bandwidthTalks returns the runs of a mode: each tool as client and as server.
func (r *runner) bandwidthTalks(m mode) (talks []talk) {
	for _, test := range bandwidthTests {
		for _, size := range m.bandwidth.sizes {
			opt := perftest.Options{Test: test, Size: size, Count: max(r.count, m.bandwidth.count), Verify: true}
			// The exchange of perftest adds at least 8 messages each way.
			t := talk{startUps: 2, fpdus: opt.Count + 16}
			t.what = fmt.Sprintf("guest's %v, our server, %d x %d bytes", test, opt.Count, size)
			t.run = func(ctx context.Context) error {
				l, err := sockets.Listen(ctx, "tcp", "127.0.0.1:0")
				if err != nil {
					return err
				}
				return r.serveTool(ctx, opt, l)
			}
			talks = append(talks, t)
			t.what = fmt.Sprintf("our client, guest's %v, %d x %d bytes", test, opt.Count, size)
			t.run = func(ctx context.Context) error { return r.callTool(ctx, opt, 0) }
			talks = append(talks, t)
		}
	}
	return talks
}

// tool returns the command line of a tool; host is "" for a server. With -F the tool ignores the
// processor's frequency.
func tool(opt perftest.Options, port int, host string) string {
	return strings.TrimSpace(fmt.Sprintf("%v -R -F -s %d -n %d -p %d %s", opt.Test, opt.Size, opt.Count, port, host))
}

// serveTool runs our server on nl for a tool of the guest, and closes nl.
func (r *runner) serveTool(ctx context.Context, opt perftest.Options, nl net.Listener) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	l := iwarp.NewListener(nl, perftest.Config(nil, opt))
	defer l.Close()
	type outcome struct {
		res *perftest.Result
		err error
	}
	served := make(chan outcome, 1)
	go func() {
		res, err := perftest.Serve(ctx, l, opt)
		served <- outcome{res, err}
	}()
	out, err := r.guest.run(ctx, talkLimit, tool(opt, port(l.Addr()), "10.0.2.2"))
	if err != nil {
		cancel()
		return fmt.Errorf("the guest's client: %w\nour server: %v", err, (<-served).err)
	}
	s := <-served
	if s.err != nil {
		return fmt.Errorf("our server: %w\nthe guest's client:\n%s", s.err, tail(out, 15))
	}
	if opt.Test != perftest.ReadBW && s.res.Verified != opt.Count {
		return fmt.Errorf("contents of %d messages verified, want %d", s.res.Verified, opt.Count)
	}
	return reported(out, opt)
}

// callTool runs our client against a tool of the guest, listening at port guestPort+behind.
func (r *runner) callTool(ctx context.Context, opt perftest.Options, behind int) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	script := tool(opt, guestPort+behind, "")
	if opt.Test == perftest.WriteBW {
		opt.Settle = r.quiet
	}
	serving, err := r.guest.start(talkLimit, script)
	if err != nil {
		return err
	}
	if _, err := r.guest.run(ctx, talkLimit, fmt.Sprintf("wait-port %d", guestPort+behind)); err != nil {
		return err
	}
	res, err := perftest.Client(ctx, func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Control: sockets.Control}
		return d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.forward[behind])))
	}, nil, opt)
	if err != nil {
		return fmt.Errorf("our client: %w", err)
	}
	if opt.Test == perftest.ReadBW && res.Verified != opt.Count {
		return fmt.Errorf("contents of %d messages verified, want %d", res.Verified, opt.Count)
	}
	out, err := r.guest.finish(ctx, talkLimit, script, serving)
	if err != nil {
		return err
	}
	return reported(out, opt)
}

// quiet waits until no more packets arrive at the guest. QEMU's user network acknowledges data for
// the guest, and buffers some hundred kilobytes.
func (r *runner) quiet(ctx context.Context) error {
	const script = "f=/sys/class/net/eth0/statistics/rx_packets; a=; while b=$a; a=$(cat $f); [ \"$a\" != \"$b\" ]; do sleep 0.1; done"
	_, err := r.guest.run(ctx, talkLimit, script)
	return err
}

// reported checks the line for opt.Size in the table printed by a tool of the guest: the line must
// have the right count and a bandwidth.
func reported(out string, opt perftest.Options) error {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 5 || f[0] != strconv.Itoa(opt.Size) {
			continue
		}
		if f[1] != strconv.Itoa(opt.Count) {
			return fmt.Errorf("the guest's tool reports %s messages of %s bytes, want %d", f[1], f[0], opt.Count)
		}
		// The clock of an emulated processor may yield 0.00.
		if average, err := strconv.ParseFloat(f[3], 64); err != nil || !(average >= 0) {
			return fmt.Errorf("the guest's tool reports a bandwidth of %q", f[3])
		}
		return nil
	}
	return fmt.Errorf("the guest's tool reports nothing about %d bytes:\n%s", opt.Size, tail(out, 15))
}

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

// bandwidth are the runs of perftest's tools in a mode.
type bandwidth struct {
	sizes []int
	count int // messages, at least
}

var bandwidthTests = []perftest.Test{perftest.WriteBW, perftest.ReadBW, perftest.SendBW}

// sockets makes our connections with segments whose length is a multiple of
// four, as all FPDUs are, see rmem.
var sockets = net.ListenConfig{Control: segments}

// rmem bounds the guest's receive window below 64 KiB, where it is a multiple of
// the segment. siw starts to copy a CRC again for each piece of it that arrives
// (see docs/iwarp-peers.md), so that one must not be cut; QEMU's user network
// cuts where a window ends, and otherwise where we do.
const rmem = "echo 4096 131072 131072 >/proc/sys/net/ipv4/tcp_rmem"

// bandwidthTalks are the runs of a mode: each tool as client and as server.
func (r *runner) bandwidthTalks(m mode) (talks []talk) {
	for _, test := range bandwidthTests {
		for _, size := range m.bandwidth.sizes {
			opt := perftest.Options{Test: test, Size: size, Count: max(r.count, m.bandwidth.count), Verify: true}
			// The first FPDUs are the exchange, 8 messages each way and more.
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

// tool is the command line of a tool; host is empty for a server. -F leaves the
// processor's frequency alone.
func tool(opt perftest.Options, port int, host string) string {
	return strings.TrimSpace(fmt.Sprintf("%v -R -F -s %d -n %d -p %d %s", opt.Test, opt.Size, opt.Count, port, host))
}

// serveTool lets a tool of the guest run against our server on nl, which it
// closes.
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

// callTool runs our client against a tool of the guest, on the port that is so
// many behind the first.
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

// quiet waits until nothing arrives at the guest's card any more. QEMU's user
// network acknowledges for the guest, and holds some hundred kilobytes.
func (r *runner) quiet(ctx context.Context) error {
	const script = "f=/sys/class/net/eth0/statistics/rx_packets; a=; while b=$a; a=$(cat $f); [ \"$a\" != \"$b\" ]; do sleep 0.1; done"
	_, err := r.guest.run(ctx, talkLimit, script)
	return err
}

// reported looks for the line of a tool's table: size, count, bandwidth.
func reported(out string, opt perftest.Options) error {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 5 || f[0] != strconv.Itoa(opt.Size) {
			continue
		}
		if f[1] != strconv.Itoa(opt.Count) {
			return fmt.Errorf("the guest's tool reports %s messages of %s bytes, want %d", f[1], f[0], opt.Count)
		}
		// The clock of an emulated processor may make it 0.00.
		if average, err := strconv.ParseFloat(f[3], 64); err != nil || !(average >= 0) {
			return fmt.Errorf("the guest's tool reports a bandwidth of %q", f[3])
		}
		return nil
	}
	return fmt.Errorf("the guest's tool reports nothing about %d bytes:\n%s", opt.Size, tail(out, 15))
}

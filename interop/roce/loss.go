package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// A loss is a share of the RoCEv2 packets between the guest and this machine, in thousandths.
type loss int

// lossRules are nftables rules that drop packets in both directions at random.
const lossRules = `table netdev %[1]s {
	chain in { type filter hook ingress device "%[1]s" priority 0; udp dport 4791 numgen random mod 1000 < %[2]d counter drop; }
	chain out { type filter hook egress device "%[1]s" priority 0; udp dport 4791 numgen random mod 1000 < %[2]d counter drop; }
}
`

// begin makes the interface tap lose packets, until end is called. end returns an error if no packet
// was lost.
func (l loss) begin(ctx context.Context, tap string) (end func() error, err error) {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(lossRules, tap, l))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, skip(fmt.Sprintf("nft cannot drop packets of %s: %v\n%s", tap, err, out))
	}
	ctx = context.WithoutCancel(ctx)
	return func() error {
		rules, err := command(ctx, "", "nft", "list", "table", "netdev", tap)
		if _, e := command(ctx, "", "nft", "delete", "table", "netdev", tap); err == nil {
			err = e
		}
		if err == nil && strings.Count(string(rules), "packets 0 ") == 2 {
			err = errors.New("no packet was lost")
		}
		return err
	}, nil
}

// possible tries the rules on tap.
func (l loss) possible(ctx context.Context, tap string) error {
	if err := need("nft"); err != nil {
		return err
	}
	if _, err := l.begin(ctx, tap); err != nil {
		return err
	}
	_, err := command(ctx, "", "nft", "delete", "table", "netdev", tap)
	return err
}

// losing returns the conversation c, held while the interface tap loses packets.
func (l loss) losing(tap string, c check) check {
	run := c.run
	c.name = fmt.Sprintf("loss %g %%, %s", float64(l)/10, c.name)
	c.run = func(ctx context.Context, g *guest) error {
		end, err := l.begin(ctx, tap)
		if err != nil {
			return err
		}
		err = run(ctx, g)
		if e := end(); err == nil {
			err = e
		}
		return err
	}
	return c
}

// lossTalks returns conversations over reliable connections that lose packets, and have enough
// packets to lose some. The pingpong programs are not among them: they end with their last message,
// and leave a peer alone whose last acknowledgement was lost.
//
// The guest waits for a time-out if a NAK or a response to a Read is lost, and Linux 6.1's rxe also
// ignores a NAK unless an acknowledgement has arrived since the previous one. Therefore the time-out
// is 268 ms instead of the 1 s of the option patient, and there are fewer messages with a loss of 5 %.
func lossTalks() (ts []deviceTalk) {
	f := ipv4
	for _, l := range []loss{1, 10, 50} {
		n := 200
		if l == 50 {
			n = 50
		}
		for _, serves := range []bool{false, true} {
			for _, c := range []struct {
				tool       string
				n, packets int
			}{
				{"ib_write_bw -m 1024 -s 65536", n, n * 64},
				{"ib_send_bw -m 1024 -s 65536", n, n * 64},
				{"ib_read_lat -m 1024 -s 65536", n, n * 64},
				{"ib_atomic_lat", 10 * n, 2 * 10 * n},
			} {
				t := f.talk(fmt.Sprintf("%s -n %d -d rxe0 -F -u 16", c.tool, c.n), f.perftest, serves, c.packets)
				t.loss = l
				ts = append(ts, t)
			}
		}
	}
	return ts
}

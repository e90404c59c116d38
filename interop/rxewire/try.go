//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"viaduct/interop/internal/link"
)

// A scenario is a fault of the network in both directions.
type scenario struct {
	name  string
	fault link.Fault
	hole  time.Duration // no packet passes for so long, once the conversation has begun
	lossy bool          // datagrams may be lost or doubled
	talks []talk
}

// forever is the duration of a hole that lasts until the end of the conversation.
const forever = time.Duration(1<<63 - 1)

// A talk is a conversation of a server and a client.
type talk struct {
	line    string // of both; PORT and ADDR stand for a TCP port and the server's address
	server  string // further options of the server
	client  string // further options of the client
	managed bool   // by rdma_cm: the client is tried again until the server listens

	datagrams bool
	timeout   uint // code of the timeout of a queue pair, for a hole that lasts for ever
}

const (
	rcSmall = "ibv_rc_pingpong -p PORT -g 1 -c -n 200 -s 16384 -m 1024"
	rcLarge = "ibv_rc_pingpong -p PORT -g 1 -c -n 100 -s 65536 -m 4096"
)

// perftest returns the command line of a tool. GID 1 is the IPv4 address.
func perftest(tool, options string) string { return tool + " -F -x 1 -p PORT " + options }

// reliable returns conversations over reliable connections.
func reliable() []talk {
	return []talk{
		{line: rcSmall, client: "ADDR"},
		{line: rcLarge, client: "ADDR"},
		{line: perftest("ib_write_bw", "-u 18 -m 1024 -s 65536 -n 200"), client: "ADDR"},
		{line: perftest("ib_read_lat", "-u 18 -m 4096 -s 16384 -n 300"), client: "ADDR"},
		{line: perftest("ib_atomic_lat", "-u 18 -n 1000"), client: "ADDR"},
		{line: "rping_whole -p PORT -a ADDR -C 30 -S 10000", server: "-s", client: "-c -V", managed: true},
	}
}

// datagrams is a conversation by datagrams. If a datagram is lost, both programs wait for ever. If
// one is doubled, the program that counts it twice may end first, and the other one waits.
var datagrams = talk{line: "ibv_ud_pingpong -p PORT -g 1 -c -n 500 -s 1000", client: "ADDR", datagrams: true}

// enduring returns long conversations whose queue pairs give up after (7 + 1) * 4.096 us * 2^timeout.
func enduring(timeout uint) []talk {
	u := fmt.Sprintf("-u %d ", timeout)
	return []talk{
		{line: perftest("ib_write_bw", u+"-s 65536 -n 2000"), client: "ADDR", timeout: timeout},
		{line: perftest("ib_read_lat", u+"-s 4096 -n 5000"), client: "ADDR", timeout: timeout},
		{line: perftest("ib_atomic_lat", u+"-n 5000"), client: "ADDR", timeout: timeout},
	}
}

// retries is the number of retries of perftest and of the pingpong programs.
const retries = 7

// computed returns the time until a queue pair with a timeout code gives up.
func computed(timeout uint) time.Duration { return (retries + 1) * 4096 * time.Nanosecond << timeout }

func scenarios() []scenario {
	all := append(reliable(), datagrams)
	const delay = time.Millisecond // packets that reorder overtake delayed ones
	// At 2^19 * 4.096 us a queue pair gives up after 17 s, at 2^16 * 4.096 us after 2.1 s.
	const long, short = 19, 16
	pingpong := talk{line: "ibv_rc_pingpong -p PORT -g 1 -n 1000000", client: "ADDR", timeout: 14}
	return []scenario{
		{name: "loss 0.1 %", fault: link.Fault{Loss: 0.001}, lossy: true, talks: all},
		{name: "loss 1 %", fault: link.Fault{Loss: 0.01}, lossy: true, talks: all},
		{name: "loss 5 %", fault: link.Fault{Loss: 0.05}, lossy: true, talks: all},
		{name: "reordering", fault: link.Fault{Delay: delay, Reorder: 0.05}, talks: all},
		{name: "duplicates", fault: link.Fault{Duplicate: 0.05}, lossy: true, talks: all},
		{name: "all at once", fault: link.Fault{Delay: delay, Reorder: 0.02, Loss: 0.01, Duplicate: 0.02}, lossy: true, talks: all},
		{name: "nothing for 5 s", hole: 5 * time.Second, talks: enduring(long)},
		{name: "nothing any more", hole: forever, talks: append(enduring(short), pingpong)},
	}
}

// try holds all conversations, and prints a line for each.
func try(ctx context.Context, p plan) error {
	if err := need("ibv_rc_pingpong", "ibv_ud_pingpong", "ib_write_bw", "ib_read_lat", "ib_atomic_lat", "rping"); err != nil {
		return err
	}
	l, err := newLab(ctx, p.seed)
	if err != nil {
		return err
	}
	defer l.close()
	held, failed := 0, 0
	for range p.runs {
		for _, s := range scenarios() {
			for _, t := range s.talks {
				name := s.name + ": " + t.line
				if !p.only.MatchString(name) || ctx.Err() != nil {
					continue
				}
				begin := time.Now()
				before := l.lost()
				note, err := l.hold(ctx, s, t)
				for n := 1; n < tries && err != nil && gaveUp.MatchString(err.Error()); n++ {
					fmt.Printf("again: a program gave up: %s: %s\n", s.name, t.name())
					note, err = l.hold(ctx, s, t)
				}
				held++
				verdict := "ok"
				if err != nil {
					verdict = "FAILED"
					failed++
				}
				fmt.Printf("%-6s %5.1f s  %s: %s; %d packets lost%s\n", verdict, time.Since(begin).Seconds(), s.name, t.name(), l.lost()-before, note)
				if err != nil {
					fmt.Printf("    %s\n", strings.ReplaceAll(err.Error(), "\n", "\n    "))
				}
			}
		}
	}
	var faults link.Counters
	for _, e := range l.ends {
		c := e.Counters()
		faults.Packets += c.Packets
		faults.Lost += c.Lost
		faults.Doubled += c.Doubled
		faults.Overtaken += c.Overtaken
	}
	fmt.Printf("%d conversations; %d packets, of which %d were lost, %d doubled, %d overtook others\n", held,
		faults.Packets, faults.Lost, faults.Doubled, faults.Overtaken)
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d conversations failed", failed, held)
	case held == 0:
		return errors.New("no conversation has such a name")
	}
	return ctx.Err()
}

// name returns the program and the options that matter.
func (t talk) name() string {
	return strings.NewReplacer(" -p PORT", "", " -g 1", "", " -x 1", "", " -F", "", " -a ADDR", "", "_whole", "").Replace(t.line)
}

func need(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if missing != nil {
		return skip("missing: " + strings.Join(missing, " "))
	}
	return nil
}

// lost returns the number of packets that the network has lost.
func (l *lab) lost() (n uint64) {
	for _, e := range l.ends {
		n += e.Counters().Lost
	}
	return n
}

// packets returns the number of packets that the network was given.
func (l *lab) packets() (n uint64) {
	for _, e := range l.ends {
		n += e.Counters().Packets
	}
	return n
}

// firstPort is the first TCP port of the programs. Each conversation has another port.
const firstPort = 15000

// patience is how long a conversation may take.
const patience = 3 * time.Minute

// A pingpong program gives up a peer after half a second. On a busy machine the peer may stand still
// for longer, or for most of that time before a hole, so such a conversation is held again, at most
// tries times in all.
const tries = 3

// hold holds a conversation, and checks its end. note is a remark for the table.
func (l *lab) hold(ctx context.Context, s scenario, t talk) (note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l.port++
	port := firstPort + l.port%10000
	l.setFault(s.fault)
	at, from := l.ends[0], l.ends[1]
	script := func(options string) string {
		return strings.NewReplacer("PORT", fmt.Sprint(port), "ADDR", at.addr.String()).Replace(t.line + " " + options)
	}
	server, err := l.device(ctx, at, script(t.server))
	if err != nil {
		return "", err
	}
	defer func() { cancel(); <-server.ended }()
	call := script(t.client)
	if t.managed {
		call = "retry " + call
	} else if err := at.listens(ctx, port, server); err != nil {
		return "", err
	}
	sent, packets := from.Counters().Bytes, l.packets()
	client, err := l.device(ctx, from, call)
	if err != nil {
		return "", err
	}
	defer func() { cancel(); <-client.ended }()
	if s.hole > 0 {
		if err := l.flows(ctx, from, sent, client); err != nil {
			return "", err
		}
		begin := time.Now()
		l.setFault(link.Fault{Blackhole: true})
		if s.hole == forever {
			return t.givesUp(server, client, begin)
		}
		select {
		case <-time.After(s.hole):
		case <-client.ended:
			return "", fmt.Errorf("the client has ended in the hole: %v\n%s", client.err, &client.out)
		}
		l.setFault(s.fault)
	}
	if t.datagrams && s.lossy && l.quiet(ctx, packets, server, client) {
		return oneWaits(server, client)
	}
	return judge(server, client)
}

func (l *lab) setFault(f link.Fault) {
	for _, e := range l.ends {
		e.SetFault(f)
	}
}

// flows waits until the client has sent so much that its queue pair must be in use.
func (l *lab) flows(ctx context.Context, from *end, before uint64, client *process) error {
	const inUse = 50_000 // bytes, more than the programs exchange over TCP
	for from.Counters().Bytes-before < inUse {
		select {
		case <-client.ended:
			return fmt.Errorf("the client has ended too early: %v\n%s", client.err, &client.out)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// quiet reports whether the network has carried no packet for two seconds before both processes have
// ended, although it had carried more than before. Then a datagram is lost perhaps, which nobody
// sends again.
func (l *lab) quiet(ctx context.Context, before uint64, server, client *process) bool {
	const enough = 2 * time.Second
	tick := time.NewTicker(enough / 20)
	defer tick.Stop()
	for last, still := before, 0; still < 20; still++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		if server.over() && client.over() {
			return false
		}
		if n := l.packets(); n != last || n == before && !client.over() {
			last, still = n, 0
		}
	}
	return true
}

// oneWaits checks the end of a conversation in which one program at least waits for ever. The other
// one may have ended well.
func oneWaits(server, client *process) (note string, err error) {
	for _, p := range []*process{server, client} {
		if p.over() && p.err != nil {
			return "", fmt.Errorf("%w\n%s", p.err, &p.out)
		}
	}
	return ", one waited for a datagram", nil
}

// judge waits for the end of both programs, and checks their statuses.
func judge(server, client *process) (note string, err error) {
	if server.status() != 0 || client.status() != 0 {
		return "", fmt.Errorf("server: %v\n%s\nclient: %v\n%s", server.err, &server.out, client.err, &client.out)
	}
	return "", nil
}

// gaveUp matches the output of a program whose request has failed with "retry exceeded", status 12.
var gaveUp = regexp.MustCompile(`transport retry counter exceeded|Failed status 12\b`)

// givesUp waits for the program that gives up. The other program may wait for ever.
func (t talk) givesUp(server, client *process, begin time.Time) (note string, err error) {
	first := client
	select {
	case <-client.ended:
	case <-server.ended:
		first = server
	}
	want, took := computed(t.timeout), first.at.Sub(begin)
	note = fmt.Sprintf(", gave up after %.2f s, computed %.2f s", took.Seconds(), want.Seconds())
	if !gaveUp.MatchString(first.out.String()) {
		return note, fmt.Errorf("no retry was exceeded: %v\n%s", first.err, &first.out)
	}
	// The last acknowledgement came before the hole. On a busy machine both ends may have stood still
	// in between, but hardly for so long.
	const still = 200 * time.Millisecond
	if took < want-still {
		return note, fmt.Errorf("given up too early:\n%s", &first.out)
	}
	return note, nil
}

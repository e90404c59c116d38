package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"viaduct/roce"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	keep := flag.String("keep", "", "directory to keep the capture of the last round and the console in")
	cache := flag.String("cache", "", "directory of downloaded kernels (default: viaduct/roce in the user's cache directory)")
	rounds := flag.Int("rounds", 1, "hold all conversations this many times with the same guest, each time with checks of their own")
	limit := flag.Duration("timeout", 25*time.Minute, "time for a round, and for the start of the guest in the first")
	only := flag.String("only", "", "hold the conversations alone whose names match this expression")
	all := flag.Bool("all", false, "hold the conversations of perftest, and by IPv6 addresses of the device, as well: some minutes more")
	losing := flag.Bool("loss", false, "hold conversations of perftest with losses of 0.1, 1 and 5 % as well: some minutes more")
	require := flag.Bool("require", false, "fail if something is missing, instead of skipping")
	flag.Parse()
	which, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "roce:", err)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(ctx, *limit*time.Duration(*rounds))
	err = run(ctx, options{*keep, *cache, which, *rounds, *all, *losing})
	cancel()
	stop()
	var s skip
	switch {
	case err == nil:
	case errors.As(err, &s) && !*require:
		fmt.Printf("\n*** SKIPPED: %v ***\n*** Nothing was tested against the kernel's rxe. ***\n", err)
	default:
		fmt.Fprintln(os.Stderr, "roce:", err)
		os.Exit(1)
	}
}

// Addresses of this side and of the guest. The guest's init sets the guest's IPv6 address.
var (
	ours    = netip.MustParseAddr("198.18.87.1")
	ours6   = netip.MustParseAddr("fd87::1")
	theirs  = netip.MustParseAddr("198.18.87.2")
	theirs6 = netip.MustParseAddr("fd87::2")
)

// options are the options of the command.
type options struct {
	keep, cache string
	only        *regexp.Regexp
	rounds      int
	all, loss   bool
}

func run(ctx context.Context, o options) error {
	if err := need("qemu-system-x86_64", "ip"); err != nil {
		return err
	}
	if os.Getuid() != 0 {
		return skip("this needs root, for a tap interface")
	}
	cache := o.cache
	if cache == "" {
		c, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		cache = filepath.Join(c, "viaduct", "roce")
	}
	work, err := os.MkdirTemp("", "viaduct-roce.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dir := work
	if o.keep != "" {
		if dir = o.keep; os.MkdirAll(dir, 0o755) != nil {
			return fmt.Errorf("no directory %s", o.keep)
		}
	}
	begin := time.Now()
	bin, err := build(ctx, work, "cmd/viaduct")
	if err != nil {
		return err
	}
	example, err := build(ctx, work, "examples/roce")
	if err != nil {
		return err
	}
	im, err := buildImage(ctx, cache, work)
	if err != nil {
		return err
	}
	fmt.Printf("guest: built in %.0f s\n", time.Since(begin).Seconds())
	tap := fmt.Sprintf("roce%d", os.Getpid()%100000)
	for _, args := range []string{"tuntap add dev %s mode tap", "addr add " + ours.String() + "/24 dev %s", "addr add " + deviceAddr.String() + "/24 dev %s", "addr add " + ours6.String() + "/64 dev %s nodad", "addr add " + deviceAddr6.String() + "/64 dev %s nodad", "link set %s mtu 9000 up"} {
		if _, err := command(ctx, "", "ip", strings.Fields(fmt.Sprintf(args, tap))...); err != nil {
			return skip("no tap interface: " + err.Error())
		}
	}
	defer command(context.WithoutCancel(ctx), "", "ip", "link", "del", tap)
	dev, err := roce.Open(ours)
	if err != nil {
		return skip(err.Error())
	}
	defer dev.Close()
	dev6, err := roce.Open(ours6)
	if err != nil {
		return skip(err.Error())
	}
	defer dev6.Close()
	g, err := boot(ctx, im, tap, theirs.String(), dir)
	if err != nil {
		return err
	}
	fmt.Printf("guest: up after %.0f s\n", time.Since(begin).Seconds())
	cs := append(checks(dev, dev6), check{"examples/roce writes into the memory of a program of the guest", 6,
		func(ctx context.Context, g *guest) error { return runExample(ctx, example, g) }})
	if !o.all {
		fmt.Println("left out without -all: perftest, and IPv6 addresses of the device")
	}
	talks := deviceTalks(o.all)
	if err := loss(1).possible(ctx, tap); err != nil {
		fmt.Printf("*** SKIPPED: conversations that lose packets: %v ***\n", err)
	} else {
		rates := []loss{10}
		if o.loss {
			rates, talks = []loss{1, 10, 50}, append(talks, lossTalks()...)
		}
		for _, l := range rates {
			cs = append(cs, l.losing(tap, memoryCheck(dev, "", 1024, true)))
		}
	}
	for _, t := range talks {
		c := check{t.String(), t.packets, func(ctx context.Context, g *guest) error { return t.hold(ctx, bin, g) }}
		if t.loss > 0 {
			c = t.loss.losing(tap, c)
		}
		cs = append(cs, c)
	}
	cs = slices.DeleteFunc(cs, func(c check) bool { return !o.only.MatchString(c.name) })
	defer g.stop()
	for n := range o.rounds {
		begin := time.Now()
		again, err := round(ctx, cs, g, filepath.Join(dir, "capture.pcap"), dev, dev6)
		if err != nil {
			return fmt.Errorf("round %d of %d: %w", n+1, o.rounds, err)
		}
		fmt.Printf("round %d of %d: %d conversations, %d held again, %.0f s\n", n+1, o.rounds, len(cs), again, time.Since(begin).Seconds())
	}
	return nil
}

// round holds the conversations once, and checks the counters of both sides and the capture. Each
// round overwrites the capture of the previous one. again is the number of conversations held again.
func round(ctx context.Context, cs []check, g *guest, file string, devices ...*roce.Device) (again int, err error) {
	if err := g.capture(file); err != nil {
		return 0, err
	}
	_, before, err := counters(g)
	if err != nil {
		return 0, err
	}
	failures, again, packets := converse(ctx, cs, g)
	after, err := inspect(g, devices...)
	if e := g.endCapture(); err == nil {
		err = e
	}
	if failures > 0 {
		return again, fmt.Errorf("%d conversations failed; the guest's console ends with:\n%s", failures, g.consoleTail())
	}
	if err != nil {
		return again, err
	}
	toGuest, err := dissect(ctx, file, packets)
	if err != nil || toGuest < 0 {
		return again, err
	}
	// The guest's kernel does not count what it refuses. It refuses what arrives after the guest's queue
	// pair is in the error state or closed, such as a probe that crosses the answer to a wrong key. If
	// the guest has given up, all that was sent to it until then is refused.
	refused := toGuest - (after - before)
	fmt.Printf("the guest has refused %d of the %d packets\n", refused, toGuest)
	if again == 0 && refused > len(cs) {
		return again, fmt.Errorf("the guest has refused %d packets in %d conversations", refused, len(cs))
	}
	return again, nil
}

// counters returns the counters of the guest's device as text, and the number of packets that the
// guest has taken.
func counters(g *guest) (text string, taken int, err error) {
	said, err := g.run(time.Minute, "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && for f in *; do echo $f $(cat $f); done")
	if err != nil {
		return "", 0, err
	}
	words := strings.Fields(said)
	i := slices.Index(words, "rcvd_pkts")
	if i < 0 || i+1 == len(words) {
		return "", 0, errors.New("the guest does not count received packets")
	}
	taken, err = strconv.Atoi(words[i+1])
	return strings.Join(words, " "), taken, err
}

// inspect prints the counters of both sides, and checks that the guest's kernel has refused no packet
// and that no malformed packet or wrong CRC has arrived here. taken is the number of packets that the
// guest has taken.
func inspect(g *guest, devices ...*roce.Device) (taken int, err error) {
	text, taken, err := counters(g)
	if err != nil {
		return 0, err
	}
	fmt.Printf("the guest counts: %s\n", text)
	for _, d := range devices {
		n := d.Stats()
		fmt.Printf("ours, %v: %+v\n", d.Addr(), n)
		if n.Malformed > 0 || n.WrongCRC > 0 {
			return 0, fmt.Errorf("packets to %v: %d are malformed, and %d have a wrong CRC", d.Addr(), n.Malformed, n.WrongCRC)
		}
	}
	// The kernel reports wrong CRCs, but does not count them.
	said, err := g.run(time.Minute, "dmesg | grep -iE 'rxe.*(icrc|bad|malformed)' || :")
	if err == nil && strings.TrimSpace(said) != "" {
		err = fmt.Errorf("the guest has refused packets:\n%s", said)
	}
	return taken, err
}

// A check is a conversation.
type check struct {
	name    string
	packets int // least number of packets in the capture
	run     func(context.Context, *guest) error
}

// memoryCheck returns a conversation of a device with the guest's memory-lending program.
func memoryCheck(d *roce.Device, family string, mtu int, lossy bool) check {
	return check{fmt.Sprintf("memory of the guest, MTU %d: Writes, Reads, atomic operations, a wrong key%s", mtu, family), 2_000_000 / mtu,
		func(ctx context.Context, g *guest) error { return useMemory(ctx, d, g, mtu, lossy) }}
}

// checks returns all conversations with devices of the process. dev is the device of the IPv4
// address ours, dev6 the device of ours6.
func checks(dev, dev6 *roce.Device) (cs []check) {
	addFor := func(d *roce.Device, family string, t talk) {
		cs = append(cs, check{t.String() + family, 2 * t.count * max(1, t.size/t.mtu),
			func(ctx context.Context, g *guest) error { return t.hold(ctx, d, g) }})
	}
	add := func(t talk) { addFor(dev, "", t) }
	cs = append(cs, memoryCheck(dev, "", 1024, false), memoryCheck(dev, "", 4096, false), memoryCheck(dev6, ", IPv6", 4096, false))
	for _, serves := range []bool{false, true} {
		addFor(dev6, ", IPv6", talk{roce.RC, 1024, 65535, 50, serves})
		addFor(dev6, ", IPv6", talk{roce.UD, 4096, 1000, 50, serves})
	}
	for _, serves := range []bool{false, true} {
		for _, mtu := range []int{1024, 4096} {
			for _, size := range []int{1, 4096, 65535} {
				add(talk{roce.RC, mtu, size, 100, serves})
			}
			add(talk{roce.RC, mtu, 1 << 20, 20, serves})
		}
		add(talk{roce.UC, 1024, 4000, 100, serves})
		add(talk{roce.UD, 4096, 1000, 100, serves})
		add(talk{roce.UD, 4096, 4096, 50, serves})
	}
	return cs
}

// Without an answer for half a second, a program of the guest or of the device gives up, because it
// sets its time-out (67 ms, seven times) itself. A program of package roce gives up after 2 s. An
// emulated processor may stand still for longer on a busy machine, so such a conversation is held
// again, at most tries times in all.
const (
	spent = "transport retry counter exceeded" // of programs that use verbs
	tries = 4
)

// gaveUp matches the messages of all programs that have given up.
var gaveUp = regexp.MustCompile(spent + "|roce: retry exceeded")

// converse runs the conversations, and stops after three failures. The results are the number of
// failures, the number of conversations held again, and the least number of packets in the capture.
func converse(ctx context.Context, cs []check, g *guest) (failures, again, packets int) {
	for _, c := range cs {
		begin := time.Now()
		err := c.run(ctx, g)
		for n := 1; n < tries && err != nil && gaveUp.MatchString(err.Error()); n++ {
			fmt.Printf("again: a program gave up: %s\n", c.name)
			again++
			err = c.run(ctx, g)
		}
		verdict := "ok"
		if err != nil {
			verdict = "FAILED"
			failures++
		}
		fmt.Printf("%-7s %6.2f s  %s\n", verdict, time.Since(begin).Seconds(), c.name)
		if err != nil {
			fmt.Printf("    %s\n", strings.ReplaceAll(err.Error(), "\n", "\n    "))
		}
		if failures == 3 || ctx.Err() != nil {
			break
		}
		packets += c.packets
	}
	return failures, again, packets
}

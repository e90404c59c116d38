package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Addresses of the emulated device of viaduct run. The devices of the test process have other
// addresses, because each device uses UDP port 4791 of its address.
var (
	deviceAddr  = netip.MustParseAddr("198.18.87.3")
	deviceAddr6 = netip.MustParseAddr("fd87::3")
)

// A deviceTalk is a conversation between a host program, under viaduct run --rdma, and a program of
// the guest.
type deviceTalk struct {
	line         string // command of both programs
	ours, theirs string // options of the program here, and of the program in the guest
	client       string // options of the client, before the address of the server
	serves       bool   // the program on this machine is the server
	ipv6         bool   // the server has an IPv6 address
	loss         loss   // lost packets
	packets      int
}

func (t deviceTalk) String() string {
	if t.serves {
		return "device, guest calls: " + t.line + " " + t.ours
	}
	return "device, guest serves: " + t.line + " " + t.ours
}

// deviceTalks returns conversations of unmodified programs in both roles. all adds conversations of
// several minutes: perftest, and each program over IPv6.
func deviceTalks(all bool) (ts []deviceTalk) {
	families := []family{ipv4}
	if all {
		families = append(families, ipv6)
	}
	for _, f := range families {
		for _, serves := range []bool{false, true} {
			ts = append(ts, f.pingpongs(serves)...)
			ts = append(ts, f.managed(serves)...)
			if all {
				ts = append(ts, f.perftests(serves)...)
			}
		}
	}
	return ts
}

// A family contains the options of the programs for addresses of IPv4 or IPv6.
type family struct {
	pingpong, perftest string // options of the programs on this machine, for the device's GID
	gid                string // part of the guest's GID
	ours, theirs       netip.Addr
}

// talk returns a conversation of programs that connect their queue pairs themselves. option is
// f.pingpong or f.perftest.
func (f family) talk(line, option string, serves bool, packets int) deviceTalk {
	flag, _, _ := strings.Cut(option, " ")
	return deviceTalk{line: line, ours: option, theirs: flag + " $(gid " + f.gid + ")", serves: serves, packets: packets}
}

var (
	ipv4 = family{"-g 1", "-x 1", "ffff:c612", deviceAddr, theirs}
	ipv6 = family{"-g 2", "-x 2", "fd87", deviceAddr6, theirs6}
)

func (f family) pingpongs(serves bool) (ts []deviceTalk) {
	add := func(line string, packets int) { ts = append(ts, f.talk(line, f.pingpong, serves, packets)) }
	for _, mtu := range []int{1024, 4096} {
		add(fmt.Sprintf("ibv_rc_pingpong -d rxe0 -c -n 100 -s 65536 -m %d", mtu), 200*65536/mtu)
		add(fmt.Sprintf("ibv_uc_pingpong -d rxe0 -c -n 50 -s 4000 -m %d", mtu), 100)
		add(fmt.Sprintf("ibv_srq_pingpong -d rxe0 -c -q 4 -n 100 -s 4096 -m %d", mtu), 200)
	}
	add("ibv_rc_pingpong -d rxe0 -e -n 100 -s 1", 200)
	add("ibv_ud_pingpong -d rxe0 -c -n 50 -s 1000", 100)
	return ts
}

// managed returns conversations by rdma_cm. The server of rping gets an address as an option. A
// client on the host gets the device's address as an option, because the interface has several
// addresses.
func (f family) managed(serves bool) []deviceTalk {
	from := func(option string) string {
		if serves {
			return ""
		}
		return " " + option + " " + f.ours.String()
	}
	t := deviceTalk{serves: serves, ipv6: f.ours.Is6()}
	rping, ucmatose, udaddy := t, t, t
	rping.line, rping.client, rping.packets = "rping -v -V -C 20", "-c"+from("-I")+" -a", 80
	rping.ours, rping.theirs = "-s -a "+f.ours.String(), "-s -a "+f.theirs.String()
	ucmatose.line, ucmatose.client, ucmatose.packets = "ucmatose -c 4 -C 20 -S 2000", from("-b")+" -s", 160
	udaddy.line, udaddy.client, udaddy.packets = "udaddy -c 4 -C 20", from("-b")+" -s", 160
	if t.ipv6 && serves { // the servers take their address family from the address they bind
		ucmatose.ours, udaddy.ours = "-b "+f.ours.String(), "-b "+f.ours.String()
	} else if t.ipv6 {
		ucmatose.theirs, udaddy.theirs = "-b "+f.theirs.String(), "-b "+f.theirs.String()
	}
	return []deviceTalk{rping, ucmatose, udaddy}
}

// perftests returns conversations of perftest: the latency and bandwidth test of each operation,
// over each transport with the operation, for two path MTUs.
func (f family) perftests(serves bool) (ts []deviceTalk) {
	for _, mtu := range []int{1024, 4096} {
		for _, line := range perftestLines(mtu) {
			ts = append(ts, f.talk(line, f.perftest, serves, 100))
		}
	}
	return ts
}

// patient is an option of perftest: a time-out of 1 s instead of 67 ms, seven times, for a guest that
// stands still on a busy machine.
const patient = " -u 18"

func perftestLines(mtu int) (lines []string) {
	for _, c := range []struct{ operation, transports string }{{"send", "RC UC UD"}, {"write", "RC UC"}, {"read", "RC"}, {"atomic", "RC"}} {
		for transport := range strings.FieldsSeq(c.transports) {
			for _, measure := range []string{"lat", "bw"} {
				line := fmt.Sprintf("ib_%s_%s -d rxe0 -F%s -n 100 -m %d -c %s", c.operation, measure, patient, mtu, transport)
				switch {
				case c.operation == "atomic":
					line = strings.TrimSuffix(line, " -c RC")
				case transport == "UD":
					line += " -s 1024"
				default:
					line += " -s 10000"
				}
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// build builds the command at path in the module and returns the path of the program.
func build(ctx context.Context, dir, path string) (string, error) {
	bin := filepath.Join(dir, filepath.Base(path)+".bin")
	_, err := command(ctx, "", "go", "build", "-o", bin, "viaduct/"+path)
	return bin, err
}

// runExample runs the example of package roce. The example writes into the memory of a program in
// the guest and reads the bytes back.
func runExample(ctx context.Context, bin string, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		_, err := g.run(talkLimit, "memory "+gidIndex(deviceAddr)+" 1024 "+memoryPort)
		served <- err
	}()
	for {
		out, err := command(ctx, "", bin, deviceAddr.String(), net.JoinHostPort(g.address, memoryPort))
		switch {
		case err == nil && strings.Contains(string(out), `read back "hello from Go"`):
			return <-served
		case ctx.Err() != nil || !strings.Contains(fmt.Sprint(err), "refused"):
			return fmt.Errorf("%q, %w (guest: %v)", out, err, <-served)
		}
		time.Sleep(50 * time.Millisecond) // until the guest's program listens
	}
}

// hold runs the conversation. bin is the path of viaduct.
func (t deviceTalk) hold(ctx context.Context, bin string, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	ours := func(line string) error {
		// timeout passes a signal on to the programs that sh has started; sh does not.
		cmd := exec.CommandContext(ctx, bin, "run", "--rdma", "--device", "rxe0="+deviceAddr.String()+","+deviceAddr6.String(), "--",
			"timeout", fmt.Sprint(talkLimit.Seconds()), "sh", "-c", line)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", line, err, out)
		}
		return nil
	}
	theirs := func(line string) error {
		_, err := g.run(talkLimit, line)
		return err
	}
	serve, call, address := theirs, ours, g.address
	atServer, atClient := t.theirs, t.ours
	if t.serves {
		serve, call, address = ours, theirs, deviceAddr.String()
		atServer, atClient = t.ours, t.theirs
	}
	served := make(chan error, 1)
	go func() { served <- serve(t.line + " " + atServer) }()
	if t.ipv6 {
		address = theirs6.String()
		if t.serves {
			address = deviceAddr6.String()
		}
	}
	if t.client != "" { // then the options t.ours and t.theirs are for the server only
		atClient = ""
	}
	client := strings.Join([]string{t.line, atClient, t.client, address}, " ")
	// The server may be late, so the client is tried repeatedly. The server serves a single client,
	// so a client that has been connected is not tried again. An error contains the script, which
	// must not contain the message spent itself.
	err := call("for i in $(seq 200); do sleep 0.3; said=$(" + client + " 2>&1); status=$?; echo \"$said\"; [ $status = 0 ] && exit 0\n" +
		"case $said in *" + strings.ReplaceAll(spent, " ", "?") + "*) exit 1 ;; esac; done; exit 1")
	if err != nil {
		cancel()
		if !t.serves { // the guest's server would wait for ever
			program, _, _ := strings.Cut(t.line, " ")
			g.run(time.Minute, "killall "+program)
		}
		return fmt.Errorf("%w (server: %v)", err, <-served)
	}
	return <-served
}

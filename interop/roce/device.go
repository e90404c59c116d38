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
	packets      int
}

func (t deviceTalk) String() string {
	if t.serves {
		return "device, guest calls: " + t.line + " " + t.ours
	}
	return "device, guest serves: " + t.line + " " + t.ours
}

// deviceTalks returns conversations of unmodified programs in both roles. all adds the
// conversations of several minutes.
func deviceTalks(all bool) (ts []deviceTalk) {
	for _, serves := range []bool{false, true} {
		add := func(line string, packets int) {
			ts = append(ts, deviceTalk{line: line, ours: "-g 1", theirs: "-g $(gid ffff:c612)", serves: serves, packets: packets})
		}
		for _, mtu := range []int{1024, 4096} {
			add(fmt.Sprintf("ibv_rc_pingpong -d rxe0 -c -n 100 -s 65536 -m %d", mtu), 200*65536/mtu)
			add(fmt.Sprintf("ibv_uc_pingpong -d rxe0 -c -n 50 -s 4000 -m %d", mtu), 100)
		}
		add("ibv_rc_pingpong -d rxe0 -e -n 100 -s 1", 200)
		add("ibv_srq_pingpong -d rxe0 -q 4 -n 100 -s 4096", 200)
		add("ibv_ud_pingpong -d rxe0 -n 50 -s 1000", 100)
		// Conversations by rdma_cm. The server of rping gets an address as an option. A client on
		// the host gets the device's address as an option, because the interface has several
		// addresses.
		from := func(option string) string {
			if serves {
				return ""
			}
			return " " + option + " " + deviceAddr.String()
		}
		rping := deviceTalk{line: "rping -v -V -C 20", client: "-c" + from("-I") + " -a", serves: serves, packets: 80}
		rping.ours, rping.theirs = "-s -a "+deviceAddr.String(), "-s -a "+theirs.String()
		ts = append(ts, rping,
			deviceTalk{line: "ucmatose -c 4 -C 20 -S 2000", client: from("-b") + " -s", serves: serves, packets: 160},
			deviceTalk{line: "udaddy -c 4 -C 20", client: from("-b") + " -s", serves: serves, packets: 160})
		if all {
			for _, line := range []string{"ibv_rc_pingpong -d rxe0 -c -n 50 -s 65536 -m 4096", "ibv_ud_pingpong -d rxe0 -n 50 -s 1000"} {
				ts = append(ts, deviceTalk{line: line, ours: "-g 2", theirs: "-g $(gid fd87)", serves: serves, packets: 100})
			}
			for _, line := range perftests() {
				ts = append(ts, deviceTalk{line: line, ours: "-x 1", theirs: "-x $(gid ffff:c612)", serves: serves, packets: 100})
			}
			rping6 := rping
			rping6.client, rping6.ours, rping6.theirs, rping6.ipv6 = strings.ReplaceAll(rping.client, deviceAddr.String(), deviceAddr6.String()), "-s -a "+deviceAddr6.String(), "-s -a "+theirs6.String(), true
			ts = append(ts, rping6)
		}
	}
	return ts
}

// perftests returns command lines of perftest: the latency and bandwidth test of each operation,
// over each transport with the operation.
func perftests() (lines []string) {
	for _, c := range []struct{ operation, transports string }{{"send", "RC UC UD"}, {"write", "RC UC"}, {"read", "RC"}, {"atomic", "RC"}} {
		for transport := range strings.FieldsSeq(c.transports) {
			for _, measure := range []string{"lat", "bw"} {
				line := fmt.Sprintf("ib_%s_%s -d rxe0 -F -n 100 -m 1024 -c %s", c.operation, measure, transport)
				if c.operation == "atomic" {
					line = strings.TrimSuffix(line, " -c RC")
				} else {
					line += " -s 1024"
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
			return fmt.Errorf("%q, %w", out, err)
		}
		time.Sleep(50 * time.Millisecond) // until the guest's program listens
	}
}

// hold runs the conversation. bin is the path of viaduct.
func (t deviceTalk) hold(ctx context.Context, bin string, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	ours := func(line string) error {
		cmd := exec.CommandContext(ctx, bin, "run", "--rdma", "--device", "rxe0="+deviceAddr.String()+","+deviceAddr6.String(), "--", "sh", "-c", line)
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
	// so a client that has been connected is not tried again.
	err := call("for i in $(seq 60); do sleep 1; said=$(" + client + " 2>&1); status=$?; echo \"$said\"; [ $status = 0 ] && exit 0\n" +
		"case $said in *'" + spent + "'*) exit 1 ;; esac; done; exit 1")
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

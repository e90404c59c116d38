package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// deviceAddr is the address of the emulated device: this process has UDP port 4791 of the others.
var deviceAddr = netip.MustParseAddr("198.18.87.3")

// A deviceTalk is a conversation between a program of this machine, under viaduct run --rdma, and one of the
// guest.
type deviceTalk struct {
	line         string // of both sides
	ours, theirs string // options of either side alone
	client       string // what stands before the address of the server, at the client
	serves       bool   // our side is the server
	packets      int
}

func (t deviceTalk) String() string {
	if t.serves {
		return "device, guest calls: " + t.line
	}
	return "device, guest serves: " + t.line
}

// deviceTalks are conversations of unchanged programs, in both roles.
func deviceTalks() (ts []deviceTalk) {
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
		// By the connection manager. The server of rping is told its address, and a client of ours which of the
		// addresses of the interface is the device's.
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
	}
	return ts
}

// buildViaduct builds the command.
func buildViaduct(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "viaduct")
	_, err := command(ctx, "", "go", "build", "-o", bin, "viaduct/cmd/viaduct")
	return bin, err
}

// hold has the conversation.
func (t deviceTalk) hold(ctx context.Context, bin string, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	ours := func(line string) error {
		cmd := exec.CommandContext(ctx, bin, "run", "--rdma", "--device", "rxe0="+deviceAddr.String(), "--", "sh", "-c", line)
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
	if t.client != "" { // the options are the server's
		atClient = ""
	}
	client := strings.Join([]string{t.line, atClient, t.client, address}, " ")
	// The server may be late. It serves one client, so that one which fails later finds none.
	err := call("for i in 1 2 3 4 5 6 7 8 9; do sleep 1; " + client + " && exit 0; done; exit 1")
	if err != nil {
		cancel()
		return fmt.Errorf("%w (server: %v)", err, <-served)
	}
	return <-served
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"viaduct/interop/internal/perftest"
	"viaduct/interop/internal/qemu"
)

// A recording is a conversation between two guests, stored for replay.
type recording struct {
	file, load     string
	server, client string // commands; %[1]s is the server's address, %[2]d the port
}

// recordings are the captures in interop/testdata. Each recording uses a separate port, for
// selecting the packets from the whole capture.
var recordings = []recording{
	{"siw-rping-default.pcap", "siw", "rping -s -a %[1]s -p %[2]d -v -C 3", "rping -c -a %[1]s -p %[2]d -v -C 3"},
	{"siw-rping-crc.pcap", "siw-param mpa_crc_required=1", "rping -s -a %[1]s -p %[2]d -v -C 3", "rping -c -a %[1]s -p %[2]d -v -C 3"},
	{"siw-rping-p2p.pcap", "siw-param peer_to_peer=1", "rping -s -a %[1]s -p %[2]d -v -C 3", "rping -c -a %[1]s -p %[2]d -v -C 3"},
	{"siw-rping-p2p-crc.pcap", "siw-param peer_to_peer=1 mpa_crc_required=1", "rping -s -a %[1]s -p %[2]d -v -C 3", "rping -c -a %[1]s -p %[2]d -v -C 3"},
	{"siw-rping-big-crc.pcap", "siw-param mpa_crc_required=1", "rping -s -a %[1]s -p %[2]d -S 20000 -C 2", "rping -c -a %[1]s -p %[2]d -S 20000 -V -C 2"},
	{"siw-write-bw-crc.pcap", "siw-param mpa_crc_required=1", "ib_write_bw -R -s 10000 -n 5 -t 4 -F -p %[2]d", "ib_write_bw -R -s 10000 -n 5 -t 4 -F -p %[2]d %[1]s"},
	{"siw-read-bw-crc.pcap", "siw-param mpa_crc_required=1", "ib_read_bw -R -s 10000 -n 5 -t 1 -F -p %[2]d", "ib_read_bw -R -s 10000 -n 5 -t 1 -F -p %[2]d %[1]s"},
	{"siw-send-bw-crc.pcap", "siw-param mpa_crc_required=1", "ib_send_bw -R -s 10000 -n 5 -t 4 -F -p %[2]d", "ib_send_bw -R -s 10000 -n 5 -t 4 -F -p %[2]d %[1]s"},
}

const (
	serverAddress = "10.9.0.1"
	clientAddress = "10.9.0.2"
)

// recordAll runs the recordings between two connected guests, and writes their captures to
// interop/testdata.
func (o *options) recordAll(ctx context.Context, im *image, acc qemu.Accelerator, dir string) error {
	if err := need("tshark"); err != nil {
		return err
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("finding the module: %w", err)
	}
	testdata := filepath.Join(strings.TrimSpace(string(root)), "interop", "testdata")
	cable, err := freePort()
	if err != nil {
		return err
	}
	capture := filepath.Join(dir, "cable.pcap")
	server, err := boot(ctx, im, machine{name: "server", cpus: 1, address: serverAddress + "/24", capture: capture,
		network: fmt.Sprintf("socket,id=n0,listen=127.0.0.1:%d", cable)}, acc, dir)
	if err != nil {
		return err
	}
	defer server.stop()
	client, err := boot(ctx, im, machine{name: "client", cpus: 1, address: clientAddress + "/24",
		network: fmt.Sprintf("socket,id=n0,connect=127.0.0.1:%d", cable)}, acc, dir)
	if err != nil {
		return err
	}
	defer client.stop()
	if _, err := client.run(ctx, 30*time.Second, "until ping -c 1 -W 1 "+serverAddress+"; do sleep 0.2; done"); err != nil {
		return err
	}
	for i, rec := range recordings {
		p := 7174 + i
		for _, g := range []*guest{server, client} {
			if _, err := g.run(ctx, 30*time.Second, "load-siw "+rec.load); err != nil {
				return fmt.Errorf("%s: %w", rec.file, err)
			}
		}
		script := fmt.Sprintf(rec.server, serverAddress, p)
		served, err := server.start(talkLimit, script)
		if err != nil {
			return err
		}
		if _, err := server.run(ctx, 40*time.Second, fmt.Sprintf("wait-port %d", p)); err != nil {
			return fmt.Errorf("%s: %w", rec.file, err)
		}
		// After the module was reloaded, the server's guest takes a moment to be reachable again.
		out, err := client.run(ctx, talkLimit, "ping -c 1 -W 2 "+serverAddress+" >/dev/null; "+fmt.Sprintf(rec.client, serverAddress, p))
		if err != nil {
			return fmt.Errorf("%s: client: %w", rec.file, err)
		}
		if _, err := server.finish(ctx, talkLimit, script, served); err != nil {
			return fmt.Errorf("%s: server: %w", rec.file, err)
		}
		o.logf("recorded %s", rec.file)
		if o.verbose {
			o.logf("%s", out)
		}
	}
	client.stop()
	server.stop()
	if err := o.recordOurs(ctx, im, acc, dir, testdata); err != nil {
		return err
	}
	for i, rec := range recordings {
		if _, err := command(ctx, "", "tshark", "-r", capture, "-Y", fmt.Sprintf("tcp.port == %d", 7174+i), "-F", "pcap", "-w", filepath.Join(testdata, rec.file)); err != nil {
			return err
		}
		st, err := os.Stat(filepath.Join(testdata, rec.file))
		if err != nil {
			return err
		}
		o.logf("wrote %s, %d bytes", rec.file, st.Size())
	}
	return nil
}

// ours lists recordings of perftest's tools against our own peer.
var ours = []struct {
	file  string
	test  perftest.Test
	serve bool // the guest is the client
}{
	{"siw-write-bw-client.pcap", perftest.WriteBW, true},
	{"siw-write-bw-server.pcap", perftest.WriteBW, false},
	{"siw-read-bw-client.pcap", perftest.ReadBW, true},
	{"siw-read-bw-server.pcap", perftest.ReadBW, false},
	{"siw-send-bw-client.pcap", perftest.SendBW, true},
	{"siw-send-bw-server.pcap", perftest.SendBW, false},
}

// Size and number of the messages in ours: several FPDUs for each message, but a short recording.
const ourSize, ourCount = 2000, 6

// recordOurs runs the recordings of ours in a guest, and writes the packets of each to testdata. It
// selects the packets by the server's port.
func (o *options) recordOurs(ctx context.Context, im *image, acc qemu.Accelerator, dir, testdata string) error {
	r := &runner{options: o, image: im, acc: acc, dir: dir, begin: time.Now()}
	if err := r.boot(ctx); err != nil {
		return err
	}
	defer r.guest.stop()
	if err := r.load(ctx, modes[0]); err != nil {
		return err
	}
	ports := make([]int, len(ours))
	for i, rec := range ours {
		opt := perftest.Options{Test: rec.test, Size: ourSize, Count: ourCount, Verify: true}
		var err error
		if rec.serve {
			l, e := sockets.Listen(ctx, "tcp", "127.0.0.1:0")
			if e != nil {
				return e
			}
			ports[i] = port(l.Addr())
			err = r.serveTool(ctx, opt, l)
		} else {
			ports[i] = guestPort + int(rec.test)
			err = r.callTool(ctx, opt, int(rec.test))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", rec.file, err)
		}
		o.logf("recorded %s", rec.file)
	}
	r.guest.stop()
	for i, rec := range ours {
		// Streams without payload are refused connections, and left out.
		on := fmt.Sprintf("tcp.port == %d", ports[i])
		out, err := command(ctx, "", "tshark", "-r", r.captures[0], "-Y", on+" && tcp.len > 0", "-T", "fields", "-e", "tcp.stream")
		if err != nil {
			return err
		}
		streams := strings.Fields(string(out))
		slices.Sort(streams)
		streams = slices.Compact(streams)
		if len(streams) != 2 {
			return fmt.Errorf("%s: %d connections, want 2", rec.file, len(streams))
		}
		file := filepath.Join(testdata, rec.file)
		if _, err := command(ctx, "", "tshark", "-r", r.captures[0], "-Y", "tcp.stream in {"+strings.Join(streams, ", ")+"}", "-F", "pcap", "-w", file); err != nil {
			return err
		}
		st, err := os.Stat(file)
		if err != nil {
			return err
		}
		o.logf("wrote %s, %d bytes", rec.file, st.Size())
	}
	return nil
}

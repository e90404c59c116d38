//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/conform"
	"viaduct/internal/testkit"
)

// TestRXEPcap records programs over rdma_cm and RoCEv2 with --pcap. decode must find nothing wrong
// in the capture, and must agree with tshark.
func TestRXEPcap(t *testing.T) {
	t.Parallel()
	need(t, "rping", "rdmacm-utils")
	file := filepath.Join(t.TempDir(), "x.pcapng")
	a, b := wireAddr(), wireAddr()
	port := strconv.Itoa(testkit.FreePort(t))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, serverOut := rxeAt(ctx, a, rpingWhole+"rping_whole -s -a "+a+" -p "+port+" -C 3")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	client := command(ctx, "run", "--rdma", "--device", "rxe0="+b, "--pcap", file, "--", "sh", "-c",
		rpingWhole+"until rping_whole -c -a "+a+" -p "+port+" -C 3; do sleep 0.5; done")
	client.WaitDelay = 5 * time.Second
	out, err := client.CombinedOutput()
	if err != nil {
		cancel()
	}
	if serverErr := server.Wait(); err != nil || serverErr != nil {
		t.Fatalf("client %v, server %v\n%s\n%s", err, serverErr, out, serverOut)
	}
	names := map[string]bool{}
	for line := range strings.Lines(good(t, "decode", "--json", file).stdout) {
		var m struct {
			Proto, Name string
			Fields      map[string]any
			Wrong       []any
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		names[m.Proto+" "+m.Name] = true
		if len(m.Wrong) > 0 || m.Fields["roce.icrc"] != "good" {
			t.Errorf("a false alarm: %s", line)
		}
	}
	for _, want := range []string{"cm REQ", "cm REP", "cm RTU", "roce RC Send Only", "roce RC RDMA Read Request", "roce RC RDMA Write Only", "roce RC Acknowledge"} {
		if !names[want] {
			t.Errorf("no %s in the capture: %v", want, names)
		}
	}
	if text := good(t, "ladder", file).stdout; !strings.Contains(text, "[Connected]") ||
		!strings.Contains(text, "REQ  service 0x106") {
		t.Errorf("the ladder is\n%.2000s", text)
	}
	agree(t, newShark(t), file)
}

// TestConformDevice runs conform against the RoCE device. One peer is ibv_rc_pingpong, which
// announces no memory. The other peer announces everything the cases need. Only a few cases are
// run, because the peer must be started for each case.
func TestConformDevice(t *testing.T) {
	t.Parallel()
	lengthy(t, "15 s")
	t.Run("ibv_rc_pingpong", func(t *testing.T) {
		need(t, "ibv_rc_pingpong", "ibverbs-utils")
		conformDevice(t, "ibv_rc_pingpong -g 1 -n 100000 -p {port} {host}", "roce/long-send",
			"roce/duplicate-send", "roce/icrc")
	})
	t.Run("peer", func(t *testing.T) {
		peer := verbsProgram(t, filepath.Join("testdata", "conform", "peer.c"))
		conformDevice(t, peer+" 1 {host} {port}", "roce/long-write", "roce/rights", "roce/read",
			"roce/fetch-add", "roce/datagram", "roce/no-receive")
	})
}

// conformDevice runs cases against a program on the device, each with a command of its own, because
// a busy machine may need long to start the program.
func conformDevice(t *testing.T, program string, cases ...string) {
	args := []string{"--patience", "60s", "--listen", "--exec", "exec " +
		os.Args[0] + " run --rdma --device rxe0=" + wireAddr() + " -- " + program, "roce://" + wireAddr() + ":0"}
	for _, name := range cases {
		results := conformReport(t, 0, append(args, "--only", name)...).Results
		for _, x := range results {
			if x.Verdict != conform.Pass {
				t.Errorf("%s: %s %s %s", x.Name, x.Verdict, x.Row, x.Detail)
			}
		}
		if len(results) != 1 {
			t.Errorf("%d results of the case %s", len(results), name)
		}
	}
}

//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A trial is a program, or two programs talking to each other.
type trial struct {
	name  string
	needs []string // programs and files that must be installed
	long  bool     // runs only with -long
	flags []string // flags of viaduct run
	// briefly is the way left out without -long.
	briefly string

	// alone is the command line of a single program, whose output must contain says. judge, if set,
	// judges the output too.
	alone []string
	judge func(l *lab, out string) (note string, err error)

	// pair returns the command lines of both ends; at least one end must print says.
	pair func(l *lab, port string) (server, client []string)
	says string
	// moves is the least number of bytes the connections must carry. Fewer show that a program has
	// fallen back to TCP. With 0 no bytes are counted.
	moves int64
	// peer returns the command lines of the Go program for either end; nil if there is none.
	peer func(l *lab, port string) (server, client []string)
}

// has reports whether the trial can run in the given way.
func (tr *trial) has(way string) bool {
	switch {
	case tr.alone != nil:
		return way == one
	case way == goEnd:
		return tr.peer != nil
	}
	return true
}

// missing returns a program needed by a trial but not installed, or "".
func (tr *trial) missing() string {
	for _, p := range tr.needs {
		if find(p) == "" {
			return p
		}
	}
	return ""
}

// run runs a trial once, in the given way. note is a remark for the table.
func (l *lab) run(ctx context.Context, tr trial, way string) (note string, err error) {
	if tr.alone != nil {
		return l.runAlone(ctx, tr)
	}
	if way != goEnd {
		port := l.freePort()
		server, client := tr.pair(l, port)
		return "", l.runPair(ctx, tr, way, port, server, client)
	}
	port := l.freePort()
	server, _ := tr.peer(l, port)
	_, client := tr.pair(l, port)
	if err := l.runPair(ctx, tr, "go serves", port, server, client); err != nil {
		return "", fmt.Errorf("with the Go side as server: %w", err)
	}
	port = l.freePort()
	server, _ = tr.pair(l, port)
	_, client = tr.peer(l, port)
	if err := l.runPair(ctx, tr, "go calls", port, server, client); err != nil {
		return "", fmt.Errorf("with the Go side as client: %w", err)
	}
	return "", nil
}

func (l *lab) runAlone(ctx context.Context, tr trial) (note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	out, err := l.command(ctx, l.supervised(tr.flags, l.path("explain"), "", tr.alone...)...).CombinedOutput()
	if err != nil {
		err = whether(ctx, err)
	}
	if tr.judge != nil {
		var jerr error
		if note, jerr = tr.judge(l, string(out)); jerr != nil {
			return note, fmt.Errorf("%w (%v)", jerr, err)
		}
	}
	if err != nil {
		return note, fmt.Errorf("%w\n%s", err, out)
	}
	if tr.says != "" && !strings.Contains(string(out), tr.says) {
		return note, fmt.Errorf("it does not say %q:\n%s", tr.says, out)
	}
	return note, nil
}

// runPair runs both ends, under one supervisor or two as way says, and judges the result.
func (l *lab) runPair(ctx context.Context, tr trial, way, port string, server, client []string) error {
	p := pair{Port: port, Server: server, Client: client, ServerOut: l.path("server"), ClientOut: l.path("client")}
	explains := []string{l.path("explain.1"), l.path("explain.2")}
	pcap := ""
	if tr.moves > 0 {
		pcap = l.path("pcap")
	}
	switch way {
	case one:
		explains = explains[:1]
	case two:
		p.Server = l.supervised(tr.flags, explains[0], "", server...)
		p.Client = l.supervised(tr.flags, explains[1], pcap, client...)
	case "go serves":
		explains = explains[1:]
		p.Client = l.supervised(tr.flags, explains[0], pcap, client...)
	case "go calls":
		explains = explains[:1]
		p.Server = l.supervised(tr.flags, explains[0], pcap, server...)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out []byte
	err := func() error {
		if way != one {
			return p.talk(ctx, l.command)
		}
		arg, err := json.Marshal(p)
		if err != nil {
			return err
		}
		out, err = l.command(ctx, l.supervised(tr.flags, explains[0], pcap, l.self, "-pair", string(arg))...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", whether(ctx, err), strings.TrimSpace(string(out)))
		}
		return nil
	}()
	if errors.Is(err, errHangs) {
		return fmt.Errorf("%w: what its processes said is in %s", errHangs, l.keep(out, append(explains, p.ServerOut, p.ClientOut)...))
	}
	if err == nil {
		err = tr.carried(p, explains, pcap)
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, said(append(explains, p.ServerOut, p.ClientOut)...))
	}
	return nil
}

// carried judges a completed run of a pair. It returns an error unless both used iWARP, an end has
// printed says, and the capture has at least moves bytes.
func (tr *trial) carried(p pair, explains []string, pcap string) error {
	for _, f := range explains {
		if b, err := os.ReadFile(f); err != nil || !strings.Contains(string(b), "connected over iWARP") {
			return errors.New("--explain tells no connection over iWARP")
		}
	}
	client, _ := os.ReadFile(p.ClientOut)
	server, _ := os.ReadFile(p.ServerOut)
	// If the Go program is the client, only the server prints anything.
	if out := string(client) + string(server); !strings.Contains(out, tr.says) {
		return fmt.Errorf("no end says %q", tr.says)
	}
	if pcap == "" {
		return nil
	}
	st, err := os.Stat(pcap)
	if err != nil {
		return err
	}
	if st.Size() < tr.moves {
		return fmt.Errorf("the capture has %d bytes: less than the %d that the programs moved", st.Size(), tr.moves)
	}
	return os.Remove(pcap)
}

// perf returns a trial of a tool of perftest with arguments. With -F the tool does not check the
// processor's frequency.
func perf(args string) trial {
	tool := strings.Fields(args)[0]
	tr := trial{name: "perftest " + args, needs: []string{tool}, says: "#bytes", long: true}
	tr.pair = func(l *lab, port string) (server, client []string) {
		server = append(strings.Fields(args), "-R", "-F", "-p", port)
		if !strings.Contains(args, " -n ") {
			server = append(server, "-n", "300")
		}
		return server, append(server[:len(server):len(server)], "127.0.0.1")
	}
	return tr
}

// withPeer adds the Go program as the other end to a trial of perftest.
func withPeer(tr trial) trial {
	tr.long = false
	tool := tr.needs[0]
	tr.peer = func(l *lab, port string) (server, client []string) {
		return []string{l.self, "-peer", tool, "serve", port}, []string{l.self, "-peer", tool, "call", port}
	}
	return tr
}

func briefly(tr trial) trial {
	tr.long = false
	return tr
}

// without returns a copy of tr for which the given way runs only with -long.
func (tr trial) without(way string) trial {
	tr.briefly = way
	return tr
}

// rsockets returns the path of the preload library for sockets over RDMA.
func rsockets() string {
	found, _ := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
	if len(found) == 0 {
		return "/usr/lib/rsocket/librspreload.so"
	}
	return found[0]
}

func preloaded(argv ...string) []string {
	return append([]string{"env", "LD_PRELOAD=" + rsockets()}, argv...)
}

// simple returns a function for trial.pair, for a program with the usual options -p for the port
// and -s for the address.
func simple(program string, args ...string) func(*lab, string) (server, client []string) {
	return func(_ *lab, port string) (server, client []string) {
		both := append([]string{program, "-p", port}, args...)
		return both, append(both[:len(both):len(both)], "-s", "127.0.0.1")
	}
}

func peerOf(name string) func(*lab, string) (server, client []string) {
	return func(l *lab, port string) (server, client []string) {
		return []string{l.self, "-peer", name, "serve", port}, []string{l.self, "-peer", name, "call", port}
	}
}

func rping(size int) trial {
	args := []string{"-a", "127.0.0.1", "-C", "20", "-S", strconv.Itoa(size)}
	return trial{name: fmt.Sprintf("rping -S %d", size), needs: []string{"rping"}, says: "rdma-ping-19: ",
		pair: func(_ *lab, port string) (server, client []string) {
			a := append([]string{"-p", port}, args...)
			return append([]string{"rping", "-s"}, a...), append([]string{"rping", "-c", "-v", "-V"}, a...)
		},
		peer: func(l *lab, port string) (server, client []string) {
			a := append([]string{"-p", port}, args...)
			return append([]string{l.viaduct, "rping", "-s"}, a...), append([]string{l.viaduct, "rping", "-c", "-v", "-V"}, a...)
		}}
}

func pingpong(provider, endpoint string, args ...string) trial {
	return trial{name: "fi_pingpong " + provider + " " + endpoint, needs: []string{"fi_pingpong"}, says: "64k",
		pair: func(_ *lab, port string) (server, client []string) {
			both := append([]string{"fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", "20"}, args...)
			return append(both[:len(both):len(both)], "-B", port), append(both[:len(both):len(both)], "-P", port, "127.0.0.1")
		}}
}

// qperf returns a trial of qperf's tests. A side waits for a minute for the other: in 5 s, its default,
// a busy machine may not let the other answer.
func qperf(long bool, tests ...string) trial {
	return trial{name: "qperf " + strings.Join(tests, " "), needs: []string{"qperf"}, says: " =  ", long: long,
		pair: func(_ *lab, port string) (server, client []string) {
			client = append([]string{"qperf", "-lp", port, "-t", "1", "-to", "60", "--use_cm", "1", "127.0.0.1"}, tests...)
			return []string{"qperf", "-lp", port, "-lto", "60"}, append(client, "quit")
		}}
}

// iperf returns a trial of iperf3 over rsockets. With rdma-core 44 a server with more than three
// connections does not end, because the library's connection thread polls a list freed by growing
// (rdma-core pull request 1484).
func iperf(long bool, args ...string) trial {
	return trial{name: "iperf3 " + strings.Join(args, " "), needs: []string{rsockets(), "iperf3"}, says: "receiver", moves: 4 << 20, long: long, briefly: one,
		pair: func(_ *lab, port string) (server, client []string) {
			return preloaded("iperf3", "-s", "-1", "-p", port), preloaded(append([]string{"iperf3", "-c", "127.0.0.1", "-p", port, "-n", "4M"}, args...)...)
		}}
}

func trials() []trial {
	return append(ownPrograms(), []trial{
		{name: "ibv_devices", needs: []string{"ibv_devices"}, alone: []string{"ibv_devices"}, says: "siw0"},
		{name: "ibv_devinfo -v", needs: []string{"ibv_devinfo"}, alone: []string{"ibv_devinfo", "-v"}, says: "PORT_ACTIVE"},
		{name: "fi_info", needs: []string{"fi_info"}, alone: []string{"fi_info", "-p", "verbs"}, says: "FI_PROTO_IWARP"},
		rping(64), rping(65535),
		{name: "ucmatose", needs: []string{"ucmatose"}, says: "return status 0", pair: simple("ucmatose"), peer: peerOf("ucmatose")},
		{name: "ucmatose -c 20 -m", needs: []string{"ucmatose"}, says: "return status 0", pair: simple("ucmatose", "-c", "20", "-m")},
		{name: "rdma_client, rdma_server", needs: []string{"rdma_server", "rdma_client"}, says: "end 0", peer: peerOf("rdma"),
			pair: func(_ *lab, port string) (server, client []string) {
				return []string{"rdma_server", "-p", port}, []string{"rdma_client", "-s", "127.0.0.1", "-p", port}
			}},
		{name: "rstream, blocking", needs: []string{"rstream"}, says: "custom", pair: simple("rstream", "-S", "1048576", "-I", "10", "-C", "1", "-T", "b", "-T", "v")},
		{name: "rstream, not blocking", needs: []string{"rstream"}, says: "custom", pair: simple("rstream", "-S", "65536", "-I", "20", "-C", "10", "-T", "n", "-T", "v")},
		{name: "rstream, one byte", needs: []string{"rstream"}, says: "custom", long: true, pair: simple("rstream", "-S", "1", "-I", "100", "-C", "10", "-T", "v")},
		{name: "riostream", needs: []string{"riostream"}, says: "custom", pair: simple("riostream", "-S", "65536", "-I", "20", "-C", "10", "-T", "v")},
		iperf(false), iperf(true, "-R"), iperf(true, "-P", "2"),
		{name: "curl, C server", needs: []string{rsockets(), "curl", "cc"}, moves: 8 << 20,
			pair: func(l *lab, port string) (server, client []string) {
				return preloaded(l.web, port, strconv.Itoa(8<<20)), preloaded("curl", "-sS", "-o", l.path("page"), "http://127.0.0.1:"+port+"/")
			}},
		qperf(false, "rc_lat", "rc_rdma_read_bw"), qperf(true, "rc_bw", "rc_bi_bw"), qperf(true, "rc_rdma_read_lat", "rc_rdma_write_poll_lat"),
		pingpong("verbs", "msg"), pingpong("verbs;ofi_rxm", "rdm"),
		briefly(perf("ib_send_lat")), briefly(perf("ib_write_lat")).without(two), briefly(perf("ib_read_lat")).without(two),
		briefly(perf("ib_send_lat -e")), briefly(perf("ib_read_lat -e")).without(one),
		withPeer(perf("ib_send_bw")), withPeer(perf("ib_write_bw")), withPeer(perf("ib_read_bw")),
		briefly(perf("ib_send_bw -q 8")).without(one), briefly(perf("ib_write_bw -q 8")).without(two), perf("ib_read_bw -q 8"),
		// With several queue pairs the tool can hang, see docs/run-rdma.md.
		briefly(perf("ib_send_bw --use-srq")), perf("ib_send_lat --use-srq"),
		perf("ib_send_bw -e"), perf("ib_read_bw -e"), perf("ib_send_bw -b"), perf("ib_write_bw -b"), perf("ib_read_bw -b"),
		perf("ib_send_bw -s 65536"), perf("ib_write_bw -s 8388608 -n 20"), perf("ib_read_bw -s 8388608 -n 20"),
		perf("ib_send_lat -a -n 50"), perf("ib_write_lat -a -n 50"), perf("ib_read_lat -a -n 50"),
		perf("ib_send_lat -e --use-srq"), perf("ib_send_bw -e --use-srq"),
		{name: "pyverbs", needs: []string{"python3", pyverbsTests + "/run_tests.py"}, alone: []string{"sh", "-c", pyverbsScript}, judge: judgePyverbs},
	}...)
}

//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A figure is a measurement of -figures.
type figure struct {
	what, goal string
	measure    func(ctx context.Context, l *lab) (string, error)
}

func figures() []figure {
	tool := func(way string, flags []string, line string) func(context.Context, *lab) (string, error) {
		return func(ctx context.Context, l *lab) (string, error) { return l.perftest(ctx, way, flags, line) }
	}
	tcp := []string{"--tcp"}
	return []figure{
		{"a command that is answered, median of 20,000 in us", "15", func(ctx context.Context, l *lab) (string, error) { return l.commandFigure(ctx) }},
		{"ib_read_lat, one supervisor, us", "6", tool(one, nil, "ib_read_lat -n 20000")},
		{"ib_read_lat, two supervisors, us", "", tool(two, nil, "ib_read_lat -n 20000")},
		{"ib_write_bw, 20,000 of 64 bytes, one supervisor", "0.3 Mpps, 200 doorbells", tool(one, nil, "ib_write_bw -s 64 -n 20000")},
		{"ib_write_bw, 20,000 of 64 bytes, two supervisors", "0.3 Mpps, 200 doorbells", tool(two, nil, "ib_write_bw -s 64 -n 20000")},
		{"ib_write_bw, 20,000 of 64 bytes, TCP", "0.3 Mpps, 200 doorbells", tool(two, tcp, "ib_write_bw -s 64 -n 20000")},
		{"ib_write_bw, 64 KiB, one supervisor", "", tool(one, nil, "ib_write_bw -n 10000")},
		{"ib_write_bw, 64 KiB, two supervisors", "", tool(two, nil, "ib_write_bw -n 10000")},
		{"ib_write_bw, 64 KiB, TCP", "1000 MB/s", tool(two, tcp, "ib_write_bw -n 10000")},
		{"ib_read_bw, 64 KiB, TCP", "1000 MB/s", tool(two, tcp, "ib_read_bw -n 10000")},
		{"ib_send_bw, 64 KiB, TCP", "1000 MB/s", tool(two, tcp, "ib_send_bw -n 10000")},
	}
}

// measure prints the figures.
func measure(ctx context.Context) error {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	fmt.Printf("%-52s %-26s %s\n", "figure", "goal", "measured")
	for _, f := range figures() {
		got, err := f.measure(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
		fmt.Printf("%-52s %-26s %s\n", f.what, f.goal, got)
	}
	return nil
}

var (
	latencyLine   = regexp.MustCompile(`(?m)^ *\d+\s+\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s`)
	bandwidthLine = regexp.MustCompile(`(?m)^ *\d+\s+\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$`)
	doorbellsText = regexp.MustCompile(`queue pair \d+: (\d+) requests, (\d+) doorbells`)
)

// perftest runs a tool at both ends, and returns the printed figures and the number of doorbells.
func (l *lab) perftest(ctx context.Context, way string, flags []string, line string) (string, error) {
	port := l.freePort()
	server := append(strings.Fields(line), "-R", "-F", "-p", port)
	p := pair{Port: port, Server: server, Client: append(server[:len(server):len(server)], "127.0.0.1"),
		ServerOut: l.path("server"), ClientOut: l.path("client")}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	explain := l.path("explain")
	supervised := func(explain string, argv ...string) []string {
		return append(append([]string{l.viaduct, "run", "--rdma", "--explain=" + explain}, flags...), append([]string{"--"}, argv...)...)
	}
	var err error
	if way == two {
		p.Server, p.Client = supervised(l.path("explain"), p.Server...), supervised(explain, p.Client...)
		err = p.talk(ctx, l.command)
	} else {
		err = l.both(ctx, supervised, explain, p)
	}
	if err != nil {
		return "", fmt.Errorf("%w%s", err, said(p.ServerOut, p.ClientOut))
	}
	out, _ := os.ReadFile(p.ClientOut)
	told, _ := os.ReadFile(explain)
	if m := latencyLine.FindSubmatch(out); m != nil {
		return fmt.Sprintf("%s at least, %s typical", m[1], m[2]), nil
	}
	m := bandwidthLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("no figure in %q", out)
	}
	most, bells := 0, 0
	for _, q := range doorbellsText.FindAllSubmatch(told, -1) {
		requests, _ := strconv.Atoi(string(q[1]))
		if n, _ := strconv.Atoi(string(q[2])); requests > most {
			most, bells = requests, n
		}
	}
	return fmt.Sprintf("%s MB/s, %s at the peak, %s Mpps, %d doorbells", m[2], m[1], m[3], bells), nil
}

// commandFigure returns the output of commands in this program under a supervisor.
func (l *lab) commandFigure(ctx context.Context) (string, error) {
	b, err := l.command(ctx, l.supervised(nil, l.path("explain"), "", l.self, "-commands")...).Output()
	return strings.TrimSpace(string(b)), err
}

// commands queries the port of the RDMA device repeatedly, and prints the median time of a query.
func commands() error {
	fd, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	answer := new([64]byte)
	command := func(number, room int, body ...byte) error {
		b := binary.LittleEndian.AppendUint32(nil, uint32(number))
		b = binary.LittleEndian.AppendUint16(b, uint16((16+len(body))/4))
		b = binary.LittleEndian.AppendUint16(b, uint16(room/4))
		b = binary.LittleEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(answer))))
		_, err := unix.Write(fd, append(b, body...))
		return err
	}
	const getContext, queryPort = 0, 2
	if err := command(getContext, 16); err != nil {
		return err
	}
	took := make([]time.Duration, 20000)
	for i := range took {
		begin := time.Now()
		if err := command(queryPort, 40, 1, 0, 0, 0, 0, 0, 0, 0); err != nil {
			return err
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	at := func(of int) float64 { return float64(took[len(took)*of/100].Nanoseconds()) / 1000 }
	fmt.Printf("%.1f, the best tenth %.1f, the last hundredth %.1f\n", at(50), at(10), at(99))
	return nil
}

// both runs a pair under a single supervisor.
func (l *lab) both(ctx context.Context, supervised func(explain string, argv ...string) []string, explain string, p pair) error {
	arg, err := json.Marshal(p)
	if err != nil {
		return err
	}
	c := l.command(ctx, supervised(explain, l.self, "-pair", string(arg))...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", whether(ctx, err), strings.TrimSpace(string(out)))
	}
	return nil
}

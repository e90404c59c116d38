//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"viaduct/internal/figures"
)

// A measured is a figure with one value per round for each way of running the programs.
type measured struct {
	name string
	unit string
	want map[string]float64 // by way, the least ratio to native; a negative value is minus the greatest ratio
	by   map[string][]float64
}

func (m *measured) add(how string, v float64) {
	if m.by == nil {
		m.by = map[string][]float64{}
	}
	m.by[how] = append(m.by[how], v)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

// cost measures all ways, one after the other, in each round, and prints medians. If root is not
// "", cost also stores the table in the results and pages of the repository at root.
func (l *lab) cost(rounds int, root string) error {
	redis := func(name string) *measured {
		return &measured{name: "redis " + name, unit: "requests/s", want: map[string]float64{sameHost: 1.15}}
	}
	stream := &measured{name: "iperf3, one stream", unit: "Gbit/s", want: map[string]float64{sameHost: 1.8, overSDP: 0.25}}
	perCore := &measured{name: "the same for each core that was busy", unit: "Gbit/s"}
	back := &measured{name: "iperf3 -P 3 -R", unit: "Gbit/s", want: map[string]float64{sameHost: 1.8, overSDP: 0.25}}
	get, set, deep := redis("GET, 20 clients"), redis("SET, 20 clients"), redis("GET, pipeline 16")
	leftAlone := "notified"
	connect := &measured{name: "connect, least", unit: "ns", want: map[string]float64{leftAlone: -2}}
	connectMid := &measured{name: "connect, median", unit: "ns"}
	accept := &measured{name: "accept4, least", unit: "ns"}
	ppid := &measured{name: "getppid", unit: "ns"}
	send := &measured{name: "sendto and recvfrom", unit: "ns"}
	for round := range rounds {
		ways := []string{native, overSDP, sameHost}
		for i := range ways { // in a different order in each round
			if err := l.streams(ways[(i+round)%3], stream, perCore, back, get, set, deep); err != nil {
				return err
			}
		}
		for _, how := range []string{native, leftAlone} {
			if err := l.calls(how, connect, connectMid, accept, ppid, send); err != nil {
				return err
			}
		}
	}
	all := []*measured{stream, perCore, back, get, set, deep, connect, connectMid, accept, ppid, send}
	t := figures.Table{About: []string{fmt.Sprintf("%d processors, medians of %d rounds; in brackets the ratio to native.", runtime.NumCPU(), rounds)}}
	missed := costTable(&t, all, leftAlone)
	if d := median(ppid.by[leftAlone]) - median(ppid.by[native]); d > 100 {
		t.Below = append(t.Below, fmt.Sprintf("Missed: a call that is not notified costs %.0f ns more.", d), "")
		missed++
	}
	t.Below = append(t.Below, fmt.Sprintf("%d bounds missed.", missed))
	fmt.Print(t.Markdown())
	if root == "" {
		return nil
	}
	f, err := figures.Read(root)
	if err != nil {
		return err
	}
	f.Run = t
	return f.Write(root)
}

// costTable fills t and returns how many bounds were missed.
func costTable(t *figures.Table, all []*measured, leftAlone string) (missed int) {
	t.Head = figures.Row("", "native", "over SDP", "--same-host", "notified, left alone")
	for _, m := range all {
		cells := []string{m.name + ", " + m.unit}
		base := median(m.by[native])
		for _, how := range []string{native, overSDP, sameHost, leftAlone} {
			v := median(m.by[how])
			switch {
			case m.by[how] == nil:
				cells = append(cells, "")
				continue
			case how == native:
				cells = append(cells, fmt.Sprintf("%.4g", v))
				continue
			}
			mark := ""
			if w := m.want[how]; w > 0 && v/base < w || w < 0 && v/base > -w {
				mark = fmt.Sprintf(", missed: %g", max(w, -w))
				missed++
			}
			cells = append(cells, fmt.Sprintf("%.4g (%.2f%s)", v, v/base, mark))
		}
		t.Rows = append(t.Rows, figures.Row(cells...))
	}
	return missed
}

// busy returns the total processor time used by the machine.
func busy() time.Duration {
	b, _ := os.ReadFile("/proc/stat")
	var user, nice, system, idle, iowait, irq, softirq int64 // in hundredths of a second
	fmt.Sscanf(string(b), "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq)
	return time.Duration(user+nice+system+irq+softirq) * 10 * time.Millisecond
}

// streams measures a way of running programs with iperf3 and redis.
func (l *lab) streams(how string, stream, perCore, back, get, set, deep *measured) error {
	return l.run(trial{run: func(l *lab) error {
		if find("iperf3") != "" {
			port := freePort()
			s, err := l.serve(how, port, "iperf3", "-s", "-p", port)
			if err != nil {
				return err
			}
			for m, flags := range map[*measured][]string{stream: nil, back: {"-P", "3", "-R"}} {
				begin, worked := time.Now(), busy()
				out, err := l.client(how, s, append([]string{"iperf3", "-J", "-t", "1", "-c", "127.0.0.1", "-p", port}, flags...)...)
				if err != nil {
					return err
				}
				var r struct {
					End struct {
						SumReceived struct {
							BitsPerSecond float64 `json:"bits_per_second"`
						} `json:"sum_received"`
					}
				}
				if err := json.Unmarshal(out, &r); err != nil {
					return err
				}
				rate := r.End.SumReceived.BitsPerSecond / 1e9
				m.add(how, rate)
				if cores := (busy() - worked).Seconds() / time.Since(begin).Seconds(); m == stream && cores > 0 {
					perCore.add(how, rate/cores)
				}
			}
		}
		if find("redis-benchmark") == "" {
			return nil
		}
		dir, err := l.folder("redis")
		if err != nil {
			return err
		}
		port := freePort()
		s, err := l.serve(how, port, "redis-server", "--port", port, "--save", "", "--dir", dir)
		if err != nil {
			return err
		}
		for _, m := range []struct {
			*measured
			flags string
		}{{get, "-t get -n 60000"}, {set, "-t set -n 60000"}, {deep, "-t get -n 200000 -P 16"}} {
			out, err := l.client(how, s, append([]string{"redis-benchmark", "-p", port, "--csv", "-c", "20"}, strings.Fields(m.flags)...)...)
			if err != nil {
				return err
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			f := strings.Split(strings.ReplaceAll(lines[len(lines)-1], `"`, ""), ",")
			v, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return err
			}
			m.add(how, v)
		}
		return nil
	}})
}

// calls measures single system calls, natively or under run. Under run the calls are notified but
// have the native effect.
func (l *lab) calls(how string, connect, connectMid, accept, ppid, send *measured) error {
	return l.run(trial{run: func(l *lab) error {
		port := freePort()
		serve := []string{l.self, "-helper", "accept", port}
		argv := []string{l.self, "-helper", "calls", port}
		if how != native { // one rule for the port, and one for another address
			serve = append([]string{l.viaduct, "run", "--listen", port, "--portmap-listen", "off", "--"}, serve...)
			argv = append([]string{l.viaduct, "run", "--to", "192.0.2.1", "--"}, argv...)
		}
		if _, err := l.serve(native, port, serve...); err != nil {
			return err
		}
		out, err := l.command(l.ctx, argv...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", argv, err, out)
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			least, _ := strconv.ParseFloat(f[1], 64)
			mid, _ := strconv.ParseFloat(f[2], 64)
			switch f[0] {
			case "connect":
				connect.add(how, least)
				connectMid.add(how, mid)
			case "accept":
				accept.add(how, least)
			case "getppid":
				ppid.add(how, least)
			case "sendto+recvfrom":
				send.add(how, least)
			}
		}
		return nil
	}})
}

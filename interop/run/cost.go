//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// A measured is a figure by the way that programs were run, one value a round.
type measured struct {
	name string
	unit string
	want map[string]float64 // the bound of a ratio to native; negative: at most
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

// cost measures, the ways one after the other in each round, and prints medians.
func (l *lab) cost(rounds int) error {
	redis := func(name string) *measured {
		return &measured{name: "redis " + name, unit: "requests/s", want: map[string]float64{sameHost: 1.15}}
	}
	stream := &measured{name: "iperf3, one stream", unit: "Gbit/s", want: map[string]float64{sameHost: 1.8, overSDP: 0.25}}
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
		for i := range ways { // in another order each time
			if err := l.streams(ways[(i+round)%3], stream, back, get, set, deep); err != nil {
				return err
			}
		}
		for _, how := range []string{native, leftAlone} {
			if err := l.calls(how, connect, connectMid, accept, ppid, send); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d processors, medians of %d rounds; in brackets the ratio to native\n\n", runtime.NumCPU(), rounds)
	fmt.Printf("| | native | over SDP | --same-host | notified, left alone |\n|---|---|---|---|---|\n")
	missed := 0
	for _, m := range []*measured{stream, back, get, set, deep, connect, connectMid, accept, ppid, send} {
		fmt.Printf("| %s, %s |", m.name, m.unit)
		base := median(m.by[native])
		for _, how := range []string{native, overSDP, sameHost, leftAlone} {
			v := median(m.by[how])
			switch {
			case m.by[how] == nil:
				fmt.Print(" |")
				continue
			case how == native:
				fmt.Printf(" %.4g |", v)
				continue
			}
			mark := ""
			if w := m.want[how]; w > 0 && v/base < w || w < 0 && v/base > -w {
				mark = fmt.Sprintf(", missed: %g", max(w, -w))
				missed++
			}
			fmt.Printf(" %.4g (%.2f%s) |", v, v/base, mark)
		}
		fmt.Println()
	}
	if d := median(ppid.by[leftAlone]) - median(ppid.by[native]); d > 100 {
		fmt.Printf("missed: a call that is not notified costs %.0f ns more\n", d)
		missed++
	}
	fmt.Printf("\n%d bounds missed\n", missed)
	return nil
}

// streams measures one way with iperf3 and redis.
func (l *lab) streams(how string, stream, back, get, set, deep *measured) error {
	return l.run(trial{run: func(l *lab) error {
		if find("iperf3") != "" {
			port := freePort()
			s, err := l.serve(how, port, "iperf3", "-s", "-p", port)
			if err != nil {
				return err
			}
			for m, flags := range map[*measured][]string{stream: nil, back: {"-P", "3", "-R"}} {
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
				m.add(how, r.End.SumReceived.BitsPerSecond/1e9)
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
		}{{get, "-t get -n 30000"}, {set, "-t set -n 30000"}, {deep, "-t get -n 200000 -P 16"}} {
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

// calls measures single calls, notified but left alone.
func (l *lab) calls(how string, connect, connectMid, accept, ppid, send *measured) error {
	return l.run(trial{run: func(l *lab) error {
		port := freePort()
		serve := []string{l.self, "-helper", "accept", port}
		argv := []string{l.self, "-helper", "calls", port}
		if how != native { // a rule for the port, and one for another place
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

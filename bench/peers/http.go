package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// The measurements of this file run net/http over each kind of stream. The figures show how much a
// real program gains from a faster stream.

func (p *programme) http() {
	const tcp, unix, shared = "Go TCP", "Go unix socket", "sdp, shared memory"
	// targets are the goals and floors of a contest; 0 for a row that is only shown.
	type targets struct{ tcp, unix, slow, cpu, byTCP target }
	contest := func(title string, set func(m *measure), t targets) {
		p.add("Same host, "+title, []side{p.rings("sdp", set), p.ours("sdp", "sdp", set), p.ours(tcp, "tcp", set), p.ours(unix, "unix", set)},
			row{"requests", shared, tcp, rate, t.tcp.goal, t.tcp.floor, false},
			row{"requests", shared, unix, rate, t.unix.goal, t.unix.floor, false},
			row{"requests", shared, "sdp", rate, 0, 0, false},
			row{"requests", "sdp", tcp, rate, t.byTCP.goal, t.byTCP.floor, false},
			row{"99th percentile", shared, tcp, slow, t.slow.goal, t.slow.floor, true},
			row{"99th percentile", shared, unix, slow, 0, 0, true},
			row{"99th percentile", shared, "sdp", slow, 0, 0, true},
			row{"processor time", shared, tcp, cpu, t.cpu.goal, t.cpu.floor, true},
			row{"processor time", "sdp", tcp, cpu, 0, 0, true})
	}
	for _, c := range []struct {
		size, clients int
		targets
	}{
		{kib, 1, targets{tcp: target{1.2, 0.9}}},
		{kib, 16, targets{target{1.3, 1.1}, target{1.15, 1}, target{1, 1.3}, target{0.75, 0.9}, target{0.95, 0.75}}},
		{kib, 64, targets{tcp: target{1.1, 0.9}}},
		{64 * kib, 16, targets{tcp: target{1.3, 1.1}}},
		{mib, 16, targets{}},
	} {
		contest(fmt.Sprintf("HTTP, answers of %s, %s", human(c.size), counted(c.clients, "client")),
			func(m *measure) { m.Op, m.Size, m.Conns = opHTTP, c.size, c.clients }, c.targets)
	}
	contest("echo, 128 B, 16 goroutines", func(m *measure) { m.Op, m.Size, m.Conns = opEcho, 128, 16 },
		targets{tcp: target{1.4, 1.2}})
	for _, callers := range []int{1, 16} {
		contest("gRPC, 128 B, "+counted(callers, "caller"), func(m *measure) { m.Op, m.Size, m.Conns = opGRPC, 128, callers },
			targets{tcp: target{1.2, 1}})
	}
}

// A target is the goal and the floor of a row.
type target struct{ goal, floor float64 }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// serveHTTP answers requests until the initiator has measured.
func serveHTTP(m measure, l net.Listener) error {
	body := buffer(m.Size)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		w.Write(body)
	})}
	go srv.Serve(l)
	<-m.over.Done()
	return srv.Close()
}

// requests makes m.Conns clients send requests, one after the other, for m.Time, over connections
// of dial.
func requests(m measure, dial func() (net.Conn, error)) (result, error) {
	client := &http.Client{Transport: &http.Transport{
		DialContext:         func(context.Context, string, string) (net.Conn, error) { return dial() },
		MaxIdleConnsPerHost: m.Conns,
		DisableCompression:  true,
	}}
	defer client.CloseIdleConnections()
	get := func() error {
		a, err := client.Get("http://peer/")
		if err != nil {
			return err
		}
		defer a.Body.Close()
		n, err := io.Copy(io.Discard, a.Body)
		if err == nil && n != int64(m.Size) {
			err = fmt.Errorf("an answer of %d bytes, not %d", n, m.Size)
		}
		return err
	}
	return concurrently(m, func(int) error { return get() })
}

// concurrently makes m.Conns goroutines call one, with the number of the goroutine, for m.Time.
func concurrently(m measure, one func(i int) error) (result, error) {
	took := make([][]time.Duration, m.Conns)
	errs := make([]error, m.Conns)
	all := func(d time.Duration) {
		var wg sync.WaitGroup
		end := time.Now().Add(d)
		for i := range m.Conns {
			wg.Go(func() {
				took[i] = took[i][:0]
				for last := time.Now(); errs[i] == nil && (len(took[i]) == 0 || last.Before(end)); {
					errs[i] = one(i)
					t := time.Now()
					took[i] = append(took[i], t.Sub(last))
					last = t
				}
			})
		}
		wg.Wait()
	}
	all(m.Time / 8) // opens connections and fills pools
	w := watch(m.Time, 1)
	all(m.Time)
	flat := slices.Concat(took...)
	r := w.result(len(flat), m.Size)
	for _, err := range errs {
		if err != nil {
			return r, err
		}
	}
	slices.Sort(flat)
	r.SlowUS = float64(flat[len(flat)*99/100].Nanoseconds()) / 1e3
	return r, nil
}

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

// clients is the number of HTTP clients, each with a persistent connection.
const clients = 16

func (p *programme) http() {
	const tcp, unix, shared = "Go TCP", "Go unix socket", "sdp, shared memory"
	for _, size := range []int{kib, mib} {
		set := func(m *measure) { m.Op, m.Size, m.Conns = opHTTP, size, clients }
		what := fmt.Sprintf("HTTP, answers of %s, %d clients", human(size), clients)
		p.add("Same host, "+what, []side{p.rings("sdp", set), p.ours("sdp", "sdp", set), p.ours(tcp, "tcp", set), p.ours(unix, "unix", set)},
			row{"requests", shared, tcp, rate, 0, 0, false},
			row{"requests", shared, unix, rate, 0, 0, false},
			row{"requests", shared, "sdp", rate, 0, 0, false},
			row{"99th percentile", shared, tcp, slow, 0, 0, true},
			row{"99th percentile", shared, unix, slow, 0, 0, true},
			row{"99th percentile", shared, "sdp", slow, 0, 0, true})
	}
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
	took := make([][]time.Duration, m.Conns)
	errs := make([]error, m.Conns)
	all := func(d time.Duration) {
		var wg sync.WaitGroup
		end := time.Now().Add(d)
		for i := range m.Conns {
			wg.Go(func() {
				took[i] = took[i][:0]
				for last := time.Now(); errs[i] == nil && (len(took[i]) == 0 || last.Before(end)); {
					errs[i] = get()
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

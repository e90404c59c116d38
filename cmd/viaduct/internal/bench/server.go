package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/status"
)

// A request is sent by the client of a measurement to the server, on a control connection of JSON
// lines.
type request struct {
	Cmd  string `json:"cmd"` // open, accept, churn, go, finish, memory, close
	Spec spec   `json:"spec"`
}

// An answer is the server's reply.
type answer struct {
	Error  string  `json:"error,omitempty"`
	URL    string  `json:"url,omitempty"`
	Target target  `json:"target"`
	CPU    float64 `json:"cpu_seconds,omitempty"`
	Memory int64   `json:"memory,omitempty"`
}

// Serve answers control connections of l until ctx ends. shown, which may be nil, lists the
// connections of measurements.
func Serve(ctx context.Context, l net.Listener, shown *status.Server) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := sock.AcceptNext(l.Accept, ctx.Done())
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			serveControl(ctx, c, shown)
		})
	}
}

// A serving is the state of one control connection.
type serving struct {
	host  host
	s     spec
	lanes []lane
	wg    sync.WaitGroup
	errs  chan error
	cpu   float64
	churn context.CancelFunc
	ctx   context.Context
	end   context.CancelFunc

	shown *status.Server // lists the connections
}

func serveControl(ctx context.Context, c net.Conn, shown *status.Server) {
	ctx, cancel := context.WithCancel(ctx)
	v := &serving{ctx: ctx, end: cancel, shown: shown}
	defer v.reset()
	defer cancel()
	in := json.NewDecoder(io.LimitReader(bufio.NewReader(c), 1<<30))
	out := json.NewEncoder(c)
	for {
		var q request
		if err := in.Decode(&q); err != nil {
			return
		}
		a, err := v.handle(q)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return
		}
	}
}

// acceptTime bounds the wait for a lane the client has announced.
const acceptTime = 30 * time.Second

func (v *serving) handle(q request) (a answer, err error) {
	if v.host == nil && q.Cmd != "open" && q.Cmd != "close" {
		return a, errors.New("nothing is open")
	}
	switch q.Cmd {
	case "open":
		v.reset()
		if q.Spec.Conns < 1 || q.Spec.Conns > 100_000 || q.Spec.Size < 0 || q.Spec.Size > 1<<28 ||
			q.Spec.Doorbell < 0 || q.Spec.Doorbell > 4096 {
			return a, errors.New("out of range")
		}
		v.s = q.Spec
		if v.host, err = open(q.Spec); err != nil {
			v.host = nil
			return a, err
		}
		a.URL = v.host.url()
	case "accept":
		if len(v.lanes) >= v.s.Conns {
			return a, errors.New("all connections are there")
		}
		ctx, cancel := context.WithTimeout(v.ctx, acceptTime)
		defer cancel()
		l, t, err := v.host.accept(ctx)
		if err != nil {
			return a, err
		}
		v.lanes = append(v.lanes, l)
		v.s.show(v.shown, l, v.host.url(), "accept")
		a.Target = t
	case "churn":
		ctx, cancel := context.WithCancel(v.ctx)
		v.churn = cancel
		v.cpu = cpuSeconds()
		v.wg.Go(func() { churn(ctx, v.s, v.host, &v.wg) })
	case "go":
		v.cpu = cpuSeconds()
		v.errs = make(chan error, len(v.lanes))
		for _, l := range v.lanes {
			v.wg.Go(func() {
				if err := answerLane(v.ctx, v.s, l); err != nil {
					v.errs <- err
				}
			})
		}
	case "finish":
		if v.churn != nil {
			v.churn()
			v.churn = nil
		}
		v.wg.Wait()
		a.CPU = cpuSeconds() - v.cpu
		select {
		case err := <-v.errs:
			return a, err
		default:
		}
	case "memory":
		a.Memory = memory()
	case "close":
		v.reset()
	default:
		return a, fmt.Errorf("unknown command %q", q.Cmd)
	}
	return a, nil
}

// reset closes all connections of a measurement, and waits for the serving goroutines.
func (v *serving) reset() {
	if v.churn != nil {
		v.churn()
		v.churn = nil
	}
	for _, l := range v.lanes {
		l.close()
	}
	if v.host != nil {
		v.host.close()
	}
	v.wg.Wait()
	v.lanes, v.host, v.errs = nil, nil, nil
}

// answerLane runs the server's side of one lane.
func answerLane(ctx context.Context, s spec, l lane) error {
	poll := s.Op == OpPoll
	for {
		n, err := l.recv(ctx, poll)
		if err != nil {
			return err
		}
		if n == endSize && s.Size != endSize {
			return l.send(ctx, endSize, false)
		}
		if s.Op == OpPoll || s.Op == OpWait {
			if err := l.send(ctx, s.Size, poll); err != nil {
				return err
			}
		}
	}
}

// churn accepts connections, sends a message on each for OpSetup, and closes each after the client.
func churn(ctx context.Context, s spec, h host, wg *sync.WaitGroup) {
	for {
		l, _, err := h.accept(ctx)
		if err != nil {
			return
		}
		wg.Go(func() {
			if s.Op == OpSetup {
				l.send(ctx, s.Size, false)
			}
			l.recv(ctx, false) // returns when the client closes
			l.close()
		})
	}
}

// settled is how long connections are idle before their memory is measured. By then, idle
// connections have returned the buffers borrowed while active.
const settled = 900 * time.Millisecond

// memory returns the bytes the runtime needs after a garbage collection: heap, stacks and the
// runtime's own data.
func memory() int64 {
	for range 3 {
		debug.FreeOSMemory() // two collections empty a sync.Pool
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

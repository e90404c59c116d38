package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A child is a process started by this process: the server, or a victim.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(ctx context.Context, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, args...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, c.cmd.Start()
}

func (c *child) read(v any) error {
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the server ended: %w", err)
	}
	return json.Unmarshal(line, v)
}

// soak runs rounds for o.length, and then ends the server.
func (o *options) soak(ctx context.Context) error {
	server, err := startChild(ctx, "-role", "server")
	if err != nil {
		return err
	}
	defer func() {
		server.in.Close()
		server.cmd.Wait()
	}()
	var at addresses
	if err := server.read(&at); err != nil {
		return err
	}
	c, err := newClient(at, o.only)
	if err != nil {
		return err
	}
	defer c.close()
	c.log = o.verbose

	begin := time.Now()
	var firstHere, firstThere *holding // of round warm
	kills, failures := 0, 0
	fmt.Printf("with %d connections; goroutines, descriptors, regions, MB in use/resident:\n", o.conns)
	fmt.Printf("%8s  %-22s %-22s connections: orderly, killed, processes killed; MB verified\n", "time", "client", "server")
	for round := 0; ; round++ {
		left := o.length - time.Since(begin)
		if left <= 0 && round > warm {
			break
		}
		stop := make(chan struct{})
		victims := make(chan error)
		go func() { victims <- o.keepVictims(ctx, at, stop, &kills) }()
		c.round(ctx, o.conns, min(o.round, max(left, time.Second)), uint64(round))
		close(stop)
		err := <-victims
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		here := hold(c.regions, settle/2, firstHere)
		fmt.Fprintln(server.in)
		var there report
		if err := server.read(&there); err != nil {
			return err
		}
		mine := c.sum.counts()
		fmt.Printf("%8s  %-22v %-22v %d, %d, %d; %d\n", time.Since(begin).Round(time.Second), here, there.Holding,
			mine.Orderly, c.killed.Load(), kills, (mine.Bytes+there.Counts.Bytes)>>20)
		// A failure does not end the run, because later rounds may show more.
		wrong := c.takeWrong()
		if there.Counts.Wrong != "" {
			wrong = errors.Join(wrong, errors.New("the server: "+there.Counts.Wrong))
		}
		if len(there.Open) > 0 {
			wrong = errors.Join(wrong, fmt.Errorf("not ended at the server: %s", strings.Join(there.Open, "; ")))
		}
		if round == warm {
			firstHere, firstThere = &here, &there.Holding
		}
		if round > warm {
			wrong = errors.Join(wrong, grown("the client", *firstHere, here), grown("the server", *firstThere, there.Holding))
		}
		if wrong != nil {
			fmt.Printf("          %s\n", strings.ReplaceAll(wrong.Error(), "\n", "\n          "))
			failures++
		}
	}
	if failures > 0 {
		return fmt.Errorf("something was wrong in %d rounds", failures)
	}
	mine := c.sum.counts()
	fmt.Printf("%d connections in %s, %d of them through shared memory and %d of them killed, and %d processes; %d requests; nothing lost, nothing grew\n",
		mine.Orderly+mine.Early, time.Since(begin).Round(time.Second), mine.Shared, c.killed.Load(), kills, mine.Requests)
	return nil
}

// warm is the round for comparison with later rounds. At the end of round warm, pools and caches
// have reached their size.
const warm = 1

// keepVictims keeps o.victims connecting processes running, and kills and replaces the processes,
// until stop is closed. kills counts the kills.
func (o *options) keepVictims(ctx context.Context, at addresses, stop <-chan struct{}, kills *int) error {
	if o.victims == 0 {
		<-stop
		return nil
	}
	dead := make(chan error)
	for range o.victims {
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					dead <- nil
					return
				case <-ctx.Done():
					dead <- nil
					return
				default:
				}
				if err := o.victim(ctx, at, stop); err != nil {
					dead <- err
					return
				}
				mu <- struct{}{}
				*kills++
				<-mu
			}
		}()
	}
	var err error
	for range o.victims {
		err = errors.Join(err, <-dead)
	}
	return err
}

// mu guards the count of kills.
var mu = make(chan struct{}, 1)

// victim starts a connecting process, and kills the process after a random time or when stop is
// closed.
func (o *options) victim(ctx context.Context, at addresses, stop <-chan struct{}) error {
	v, err := startChild(ctx, "-role", "victim", "-conns", "20", "-only", o.only)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(v.in).Encode(at); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- v.cmd.Wait() }()
	select {
	case <-time.After(time.Second + time.Duration(rand.Int64N(int64(4*time.Second)))):
	case <-stop:
	case err := <-ended:
		return fmt.Errorf("a client process ended by itself: %v", err)
	}
	if err := v.cmd.Process.Kill(); err != nil {
		return err
	}
	<-ended
	v.in.Close()
	return nil
}

// memoryMargin is how much memory in bytes may differ between two moments without connections,
// because of pools, and of memory that the collector and the system have not reclaimed yet.
const memoryMargin = 24 << 20

// grown compares the resources of two moments without connections, and returns an error if the
// later resources are more.
func grown(side string, was, is holding) error {
	if is.exceeds(was) || is.Heap > was.Heap+memoryMargin || !raceDetector && is.RSS > was.RSS+2*memoryMargin {
		return fmt.Errorf("%w at %s: %v, and it was %v", errGrowth, side, is, was)
	}
	return nil
}

func (h holding) String() string {
	return fmt.Sprintf("%d, %d, %d, %d/%d", h.Goroutines, h.Descriptors, h.Regions, h.Heap>>20, h.RSS>>20)
}

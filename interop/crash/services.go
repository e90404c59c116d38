package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"viaduct/interop/internal/proc"
)

// handover replaces a proxy by a new proxy. Meanwhile handover kills the new proxy if killNew is
// set, and the old proxy otherwise.
func (c *campaign) handover(dir string, killNew bool) (found string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	go func() { // an echo service as the target of the proxies
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	far, farURL, err := c.serve("proxy", "--listen", "sdp://127.0.0.1:0", "--to", "tcp://"+l.Addr().String())
	if err != nil {
		return "", err
	}
	defer far.Kill()
	near := []string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", farURL, "--handover", filepath.Join(dir, "near")}
	old, nearURL, err := c.serve(near...)
	if err != nil {
		return "", err
	}
	defer func() { old.Kill() }()
	address := strings.TrimPrefix(nearURL, "tcp://")

	const busy = 3
	stop := make(chan struct{})
	var ends sync.WaitGroup
	errs := make([]error, busy)
	lost := make([]bool, busy)
	for i := range busy {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return "", err
		}
		conn.SetDeadline(time.Now().Add(proc.Patience))
		seed := c.r.Uint64()
		ends.Go(func() { lost[i], errs[i] = keepBusy(conn, seed, stop) })
	}
	time.Sleep(100 * time.Millisecond)
	if c.usual["handover"] == 0 {
		c.usual["handover"] = 600 * time.Millisecond // from the start of the new process to the end of the old one
	}
	fresh, err := c.start(near...)
	if err != nil {
		return "", err
	}
	defer func() { fresh.Kill() }()
	time.Sleep(c.moment("handover"))
	if killNew {
		fresh.Kill()
	} else {
		old.Kill()
	}
	time.Sleep(50 * time.Millisecond)
	close(stop)
	ends.Wait()
	died := 0
	for i := range busy {
		if errs[i] != nil {
			return "", errs[i]
		}
		if lost[i] {
			died++
		}
	}
	// The surviving proxy, or a new proxy, serves at the address.
	if !works(address, 10*time.Second) {
		old.Kill()
		fresh.Kill()
		near[2] = nearURL
		p, _, err := c.again(near...)
		if err != nil {
			return "", err
		}
		defer p.Kill()
		if !works(address, proc.Patience) {
			return "", fmt.Errorf("the proxy that was started then does not carry anything")
		}
		return fmt.Sprintf("%d of %d connections went with the proxy, a new one serves", died, busy), nil
	}
	return fmt.Sprintf("%d of %d connections went with the proxy, the other serves", died, busy), nil
}

// keepBusy sends bytes and compares the returned bytes, until stop is closed. lost is true if the
// connection has ended before, which is allowed; wrong bytes are an error.
func keepBusy(conn net.Conn, seed uint64, stop <-chan struct{}) (lost bool, err error) {
	defer conn.Close()
	var mu sync.Mutex
	var sent bytes.Buffer
	done := make(chan error, 1)
	over := make(chan struct{})
	go func() {
		got := make([]byte, 64<<10)
		for {
			n, err := conn.Read(got)
			mu.Lock()
			want := sent.Next(n)
			same := bytes.Equal(want, got[:n])
			mu.Unlock()
			if !same {
				done <- fmt.Errorf("other bytes came back")
				return
			}
			if err != nil {
				close(over)
				done <- nil
				return
			}
		}
	}()
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 20_000)
	for {
		select {
		case <-stop:
			select {
			case <-over:
				lost = true
			default:
			}
			conn.Close()
			return lost, <-done
		case <-time.After(time.Millisecond):
		}
		n := 1 + r.IntN(len(b))
		for i := range b[:n] {
			b[i] = byte(r.Uint32())
		}
		mu.Lock()
		sent.Write(b[:n])
		mu.Unlock()
		if _, err := conn.Write(b[:n]); err != nil {
			conn.Close()
			return true, <-done
		}
	}
}

// works reports whether a new connection through a proxy carries bytes within limit.
func works(address string, limit time.Duration) bool {
	conn, err := net.DialTimeout("tcp", address, limit)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return false
	}
	b := make([]byte, 5)
	_, err = io.ReadFull(conn, b)
	return err == nil && string(b) == "hello"
}

// fabric kills the fabric or a member (victim) while messages go through the fabric.
func (c *campaign) fabric(victim string) (found string, err error) {
	fab, at, err := c.serve("fabric", "--listen", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { fab.Kill() }()
	address := at[strings.LastIndex(at, "/")+1:]
	url := "fcvi://10.0.0.1/echo?fabric=" + address
	echo, _, err := c.serve("echo", "--listen", url)
	if err != nil {
		return "", err
	}
	defer func() { echo.Kill() }()
	ping := func(count string) *proc.Process {
		p, err := c.start("ping", url+"&self=10.0.0.2", "-c", count, "-i", "0", "-q")
		if err != nil {
			return nil
		}
		return p
	}
	if p := ping("1"); p == nil {
		return "", fmt.Errorf("ping does not start")
	} else if err := p.Wait(proc.Patience); err != nil {
		return "", fmt.Errorf("the fabric carries nothing: %w", err)
	}
	busy := ping("0")
	if busy == nil {
		return "", fmt.Errorf("ping does not start")
	}
	defer busy.Kill()
	time.Sleep(time.Duration(c.r.Int64N(int64(700 * time.Millisecond))))
	if victim == "fabric" {
		fab.Kill()
		if fab, _, err = c.again("fabric", "--listen", address); err != nil {
			return "", err
		}
	} else {
		echo.Kill()
		if echo, _, err = c.again("echo", "--listen", url); err != nil {
			return "", err
		}
	}
	begin := time.Now()
	for {
		p := ping("3")
		if p == nil {
			return "", fmt.Errorf("ping does not start")
		}
		err := p.Wait(proc.Patience)
		if err == nil {
			return "the members reach each other again", nil
		}
		if time.Since(begin) > proc.Patience {
			return "", fmt.Errorf("after %v: %w", proc.Patience, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

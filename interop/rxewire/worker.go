//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"viaduct/roce"
)

const (
	workerPort = "7175"
	bulk       = 64 << 10 // bytes of a message for bandwidth
	depth      = 16       // such messages in progress
	small      = 8        // bytes of a message for latency
	bulkTime   = 2 * time.Second
	rounds     = 20_000 // as in udp.c
	early      = 1000
)

// work is the main function of a process that uses package roce. Its arguments are the measurement,
// its own address and, of the client, the server's address. The measurement is "write", "poll" or
// "wait". The client prints the result: GB/s, or half of the median round trip in microseconds.
func work(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: worker write|poll|wait ADDRESS [SERVER]")
	}
	dev, err := roce.Open(netip.MustParseAddr(args[1]))
	if err != nil {
		return err
	}
	defer dev.Close()
	qp, err := dev.NewQueuePair(roce.Config{MTU: 4096})
	if err != nil {
		return err
	}
	mr, err := qp.PD().Register(make([]byte, depth*bulk), roce.RemoteWrite)
	if err != nil {
		return err
	}
	w := &side{qp: qp, in: make([]byte, small), poll: args[0] == "poll"}
	if err := w.receive(); err != nil {
		return err
	}
	if len(args) == 2 {
		l, err := net.Listen("tcp", net.JoinHostPort(args[1], workerPort))
		if err != nil {
			return err
		}
		if w.c, err = l.Accept(); err != nil {
			return err
		}
		if _, err := w.meet(mr); err != nil || args[0] == "write" {
			w.c.Read(make([]byte, 1)) // until the client has ended
			return err
		}
		return w.echo()
	}
	if w.c, err = net.Dial("tcp", net.JoinHostPort(args[2], workerPort)); err != nil {
		return err
	}
	far, err := w.meet(mr)
	if err != nil {
		return err
	}
	measure := w.latency
	if args[0] == "write" {
		measure = func() (float64, error) { return w.bandwidth(far) }
	}
	figure, err := measure()
	if err == nil {
		fmt.Printf("%.3f\n", figure)
	}
	return err
}

// A side is one side of a measurement.
type side struct {
	qp   *roce.QueuePair
	c    net.Conn
	in   []byte // memory of the posted receive
	poll bool
}

// meet connects the queue pair with the queue pair of the other side, and returns the address of the
// memory of the other side. Both sides are ready when it returns.
func (w *side) meet(mr *roce.MemoryRegion) (far roce.RemoteAddr, err error) {
	own, peer := w.qp.Local(), roce.Endpoint{}
	fmt.Fprintln(w.c, own.Addr, own.QPN, own.PSN, mr.Key(), mr.Addr())
	r := bufio.NewReader(w.c)
	var addr string
	if _, err := fmt.Fscanln(r, &addr, &peer.QPN, &peer.PSN, &far.Key, &far.Addr); err != nil {
		return far, err
	}
	if peer.Addr, err = netip.ParseAddr(addr); err != nil {
		return far, err
	}
	if err := w.qp.Connect(peer); err != nil {
		return far, err
	}
	fmt.Fprintln(w.c, "ready")
	_, err = r.ReadString('\n')
	return far, err
}

func (w *side) receive() error {
	return w.qp.PostRecv(roce.RecvWR{SG: []roce.SGE{roce.Buf(w.in)}})
}

func (w *side) send(b []byte) error {
	return w.qp.Post(roce.SendWR{SG: []roce.SGE{roce.Buf(b)}, Unsignaled: true})
}

// next waits for the next message, by polling or sleeping.
func (w *side) next() error {
	cq := w.qp.RecvCQ()
	if !w.poll {
		c, err := cq.Wait(context.Background())
		if err == nil {
			err = c.Err()
		}
		return err
	}
	for {
		if c, ok := cq.Poll(); ok {
			return c.Err()
		}
	}
}

// echo returns each message, until the last, whose first byte is 1.
func (w *side) echo() error {
	out := make([]byte, small)
	for {
		if err := w.next(); err != nil {
			return err
		}
		last := w.in[0] == 1
		if err := errors.Join(w.receive(), w.send(out)); err != nil {
			return err
		}
		if last {
			w.c.Read(make([]byte, 1))
			return nil
		}
	}
}

func (w *side) latency() (us float64, err error) {
	out := make([]byte, small)
	took := make([]time.Duration, 0, rounds)
	for i := range early + rounds {
		if i == early+rounds-1 {
			out[0] = 1
		}
		begin := time.Now()
		if err := w.send(out); err != nil {
			return 0, err
		}
		if err := w.next(); err != nil {
			return 0, err
		}
		if i >= early {
			took = append(took, time.Since(begin))
		}
		if err := w.receive(); err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 2000, nil
}

// bandwidth writes messages for bulkTime, depth at a time, and returns GB/s.
func (w *side) bandwidth(far roce.RemoteAddr) (float64, error) {
	data := make([]byte, bulk)
	posted, done := 0, 0
	var begin time.Time
	measured := 0
	for {
		for posted-done < depth {
			at := far
			at.Addr += uint64(posted % depth * bulk)
			if err := w.qp.Post(roce.SendWR{Op: roce.OpWrite, SG: []roce.SGE{roce.Buf(data)}, Remote: at}); err != nil {
				return 0, err
			}
			posted++
		}
		c, err := w.qp.SendCQ().Wait(context.Background())
		if err == nil {
			err = c.Err()
		}
		if err != nil {
			return 0, err
		}
		done++
		switch {
		case done == early:
			begin = time.Now()
		case done > early:
			measured++
			if d := time.Since(begin); d >= bulkTime {
				return float64(measured) * bulk / d.Seconds() / 1e9, nil
			}
		}
	}
}

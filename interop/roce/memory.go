package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"viaduct/roce"
)

//go:embed guest/memory.c
var memorySource []byte

const (
	memoryPort = "7175"
	memoryLen  = 1 << 20
)

// compileMemory compiles the guest's memory-lending program, and returns the program's path.
func compileMemory(ctx context.Context, dir string) (string, error) {
	if err := need("gcc"); err != nil {
		return "", err
	}
	source, program := filepath.Join(dir, "memory.c"), filepath.Join(dir, "memory")
	if err := os.WriteFile(source, memorySource, 0o644); err != nil {
		return "", err
	}
	if _, err := command(ctx, "", "gcc", "-O1", "-Wall", "-o", program, source, "-libverbs"); err != nil {
		return "", skip("cannot compile a program that uses verbs (Debian: apt-get install gcc libibverbs-dev): " + err.Error())
	}
	return program, nil
}

// A loan is a queue pair connected to the guest's program, and the memory lent by the program.
type loan struct {
	ctx context.Context
	qp  *roce.QueuePair
	far roce.RemoteAddr
	c   net.Conn
	out chan string // output of the program, sent after its end
	err chan error
}

// borrow starts the guest's program and connects a queue pair to it.
func borrow(ctx context.Context, dev *roce.Device, g *guest, mtu int) (*loan, error) {
	qp, err := dev.NewQueuePair(roce.Config{MTU: mtu, Timeout: guestTimeout})
	if err != nil {
		return nil, err
	}
	l := &loan{ctx: ctx, qp: qp, out: make(chan string, 1), err: make(chan error, 1)}
	go func() {
		out, err := g.run(talkLimit, fmt.Sprintf("memory %s %d %s", gidIndex(dev.Addr()), mtu, memoryPort))
		l.out <- out
		l.err <- err
	}()
	for l.c == nil {
		if l.c, err = net.DialTimeout("tcp", net.JoinHostPort(g.address, memoryPort), time.Second); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("%w (guest: %v)", err, <-l.err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	own, peer := qp.Local(), roce.Endpoint{}
	fmt.Fprintln(l.c, own.Addr, own.QPN, own.PSN, 0, 0)
	r := bufio.NewReader(l.c)
	var addr string
	if _, err := fmt.Fscanln(r, &addr, &peer.QPN, &peer.PSN, &l.far.Key, &l.far.Addr); err != nil {
		return nil, err
	}
	if peer.Addr, err = netip.ParseAddr(addr); err != nil {
		return nil, err
	}
	peer.Addr = peer.Addr.Unmap()
	if err := qp.Connect(peer); err != nil {
		return nil, err
	}
	_, err = r.ReadString('\n')
	return l, err
}

// do posts requests, signals only the last, and waits for the completion of the last.
func (l *loan) do(wrs ...roce.SendWR) (roce.Completion, error) {
	for i := range wrs {
		wrs[i].Unsignaled = i+1 < len(wrs)
	}
	if err := l.qp.Post(wrs...); err != nil {
		return roce.Completion{}, err
	}
	c, err := l.qp.SendCQ().Wait(l.ctx)
	if err == nil {
		err = c.Err()
	}
	return c, err
}

// useMemory writes into the guest's memory, reads the bytes back, and increments a word there with
// atomic operations. If packets are lost, the answer to a wrong key may be among them. The guest's
// queue pair is then in the error state, and answers no repetition.
func useMemory(ctx context.Context, dev *roce.Device, g *guest, mtu int, lossy bool) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	l, err := borrow(ctx, dev, g, mtu)
	if err != nil {
		return err
	}
	defer l.qp.Close()
	err = l.use(mtu, lossy)
	l.c.Close()
	out, e := <-l.out, <-l.err
	if err == nil {
		err = e
	}
	if err == nil && strings.TrimSpace(out) != "4711" {
		err = fmt.Errorf("the guest's word is %q", out)
	}
	return err
}

// use is useMemory over a connected queue pair. It leaves the word 4711 in the guest's memory.
func (l *loan) use(mtu int, lossy bool) error {
	for _, n := range []int{1, 3, 4, 1000, mtu, mtu + 1, 65536, 999_999} {
		data, back := make([]byte, n), make([]byte, n)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		at := l.far
		at.Addr += uint64(8 + rand.IntN(memoryLen-8-n+1))
		if _, err := l.do(roce.SendWR{Op: roce.OpWrite, SG: []roce.SGE{roce.Buf(data)}, Remote: at}, roce.SendWR{Op: roce.OpRead, SG: []roce.SGE{roce.Buf(back)}, Remote: at}); err != nil {
			return fmt.Errorf("%d bytes: %w; %+v", n, err, l.qp.Stats())
		}
		if !bytes.Equal(data, back) {
			return fmt.Errorf("%d bytes came back different", n)
		}
	}
	const adds = 200
	for i := range adds {
		old := make([]byte, 8)
		c, err := l.do(roce.SendWR{Op: roce.OpFetchAdd, SG: []roce.SGE{roce.Buf(old)}, Remote: l.far, SwapAdd: 3})
		if err != nil || c.Value != uint64(3*i) || binary.NativeEndian.Uint64(old) != c.Value {
			return fmt.Errorf("addition %d: the word was %d: %w", i, c.Value, err)
		}
	}
	if c, err := l.do(roce.SendWR{Op: roce.OpCmpSwap, Remote: l.far, Compare: 3 * adds, SwapAdd: 4711}); err != nil || c.Value != 3*adds {
		return fmt.Errorf("compare and swap: the word was %d: %w", c.Value, err)
	}
	bad := l.far
	bad.Key ^= 0x5500
	if c, err := l.do(roce.SendWR{Op: roce.OpWrite, SG: []roce.SGE{roce.Buf(make([]byte, 9))}, Remote: bad}); c.Status != roce.StatusRemoteAccess && !(lossy && c.Status == roce.StatusRetryExceeded) {
		return fmt.Errorf("a wrong key: %v, %w", c.Status, err)
	}
	return nil
}

// Command peer is either end of pingpong.c in Go, over VI/TCP on loopback.
//
//	peer server|client COUNT
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"viaduct/vi"
	"viaduct/vitcp"
)

const size = 64

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: peer server|client COUNT")
	}
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1] == "server", n); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server bool, n int) error {
	provider, err := vitcp.New(vitcp.Config{})
	if err != nil {
		return err
	}
	nic, err := vi.Open(provider, "127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer nic.Close()
	in, err := nic.RegisterMem(make([]byte, size), vi.MemAttributes{})
	if err != nil {
		return err
	}
	out, err := nic.RegisterMem(make([]byte, size), vi.MemAttributes{})
	if err != nil {
		return err
	}
	v, err := nic.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery, MaxTransferSize: 64 << 10, EnableRDMAWrite: true}, nil, nil)
	if err != nil {
		return err
	}
	defer v.Disconnect()
	recv := func() error { return v.PostRecv(vi.NewRecv(in.Segment(0, size))) }
	if err := recv(); err != nil {
		return err
	}
	if err := connect(ctx, nic, v, server); err != nil {
		return err
	}
	send := func(s string) error {
		copy(out.Bytes(), append([]byte(s), 0))
		if err := v.PostSend(vi.NewSend(out.Segment(0, size))); err != nil {
			return err
		}
		_, err := v.SendWait(ctx)
		return err
	}
	for i := range n {
		if !server {
			if err := send(fmt.Sprintf("ping %d", i)); err != nil {
				return err
			}
		}
		if _, err := v.RecvWait(ctx); err != nil {
			return err
		}
		got, _, _ := strings.Cut(string(in.Bytes()), "\x00")
		if want := fmt.Sprintf("%s %d", map[bool]string{true: "ping", false: "pong"}[server], i); got != want {
			return fmt.Errorf("%q came, expected %q", got, want)
		}
		if i+1 < n {
			if err := recv(); err != nil {
				return err
			}
		}
		if server {
			if err := send(fmt.Sprintf("pong %d", i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func connect(ctx context.Context, nic *vi.NIC, v *vi.VI, server bool) error {
	there := vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte("pingpong")}
	if server {
		r, err := nic.ConnectWait(ctx, there)
		if err != nil {
			return err
		}
		return r.Accept(ctx, v)
	}
	for {
		_, err := v.ConnectRequest(ctx, vi.Address{Host: there.Host, Discriminator: []byte("client")}, there)
		if !errors.Is(err, vi.ErrNoMatch) {
			return err
		}
	}
}

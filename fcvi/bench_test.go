package fcvi

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// benchPair connects two VIs over an FCIP link on loopback.
func benchPair(b testing.TB, level vi.Reliability, cfg Config) (from, to *vi.VI, src, dst *vi.Region) {
	var nics [2]*vi.NIC
	for i := range nics {
		c := cfg
		if i == 1 {
			c.Listen = "127.0.0.1:0"
		}
		p, err := New(c)
		if err != nil {
			b.Fatal(err)
		}
		if nics[i], err = vi.Open(p, "", nil); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { nics[i].Close() })
	}
	var vis [2]*vi.VI
	var mem [2]*vi.Region
	var err error
	for i := range vis {
		if vis[i], err = nics[i].CreateVI(vi.Attributes{Reliability: level, EnableRDMAWrite: true, EnableRDMARead: level != vi.UnreliableDelivery}, nil, nil); err != nil {
			b.Fatal(err)
		}
		if mem[i], err = nics[i].RegisterMem(make([]byte, 4<<20), vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true}); err != nil {
			b.Fatal(err)
		}
	}
	at := vi.Address{Host: nics[1].Query().LocalAddress, Discriminator: []byte("bench")}
	done := make(chan error, 1)
	go func() {
		r, err := nics[1].ConnectWait(context.Background(), at)
		if err == nil {
			err = r.Accept(context.Background(), vis[1])
		}
		done <- err
	}()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := askFor(ctx, vis[0], vi.Address{}, at); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return vis[0], vis[1], mem[0], mem[1]
}

// BenchmarkWrite measures RDMA Writes at Reliable Reception, with eight outstanding. The benchmark
// counts bytes when their response proves them in the peer's memory.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{64, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			from, _, src, dst := benchPair(b, vi.ReliableReception, Config{})
			var ds [8]*vi.Descriptor
			for i := range ds {
				ds[i] = vi.NewRDMAWrite(dst.Remote(i%4*size), src.Segment(0, size))
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			n := 0
			reap := func() {
				if _, err := from.SendWait(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if n >= len(ds) {
					reap()
				}
				if err := from.PostSend(ds[n%len(ds)]); err != nil {
					b.Fatal(err)
				}
				n++
			}
			for range min(n, len(ds)) {
				reap()
			}
		})
	}
}

// BenchmarkRead measures RDMA Reads, with four outstanding.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			from, _, src, dst := benchPair(b, vi.ReliableDelivery, Config{})
			var ds [4]*vi.Descriptor
			for i := range ds {
				ds[i] = vi.NewRDMARead(dst.Remote(0), src.Segment(i%4*size, size))
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n >= len(ds) {
					if _, err := from.SendWait(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
				if err := from.PostSend(ds[n%len(ds)]); err != nil {
					b.Fatal(err)
				}
				n++
			}
			for range min(n, len(ds)) {
				from.SendWait(context.Background())
			}
		})
	}
}

// BenchmarkTCP is the baseline: the same sizes over a plain TCP stream.
func BenchmarkTCP(b *testing.B) {
	for _, size := range []int{64, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer ln.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				c, err := ln.Accept()
				if err != nil {
					return
				}
				buf := make([]byte, max(size, 65536))
				for {
					if _, err := c.Read(buf); err == io.EOF {
						c.Close()
						return
					}
				}
			}()
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			c.Close()
			<-done
		})
	}
}

package frameio

import (
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"viaduct/internal/testkit"
)

var benchSizes = []int{64, 4 << 10, 64 << 10, 1 << 20}

// benchLimit bounds the queued bytes, and so the memory, of the throughput benchmarks.
const benchLimit = 8 << 20

// BenchmarkThroughput sends frames one way. The reader polls, or leaves reading to the passive
// goroutine. For comparison, plain TCP sends the same frames with one Write each, to a loop of
// buffered Reads.
func BenchmarkThroughput(b *testing.B) {
	for _, n := range benchSizes {
		frame := make([]byte, n)
		b.Run("frameio/"+strconv.Itoa(n), func(b *testing.B) {
			p, q := kinds[0].connect(b)
			var got atomic.Int64
			q.got = func([]byte) { got.Add(1) }
			p.c.Start(nil)
			q.c.Start(nil)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			sent := int64(0)
			limit := int64(max(8, benchLimit/n))
			batch := max(1, min(32, 4096/n))
			for b.Loop() {
				p.post(frame)
				if sent++; sent%int64(batch) == 0 {
					p.c.Kick()
				}
				for sent-got.Load() > limit {
					p.c.Kick()
					q.c.Poll()
				}
			}
			p.c.Kick()
			for got.Load() < sent {
				q.c.Poll()
			}
		})
		b.Run("tcp/"+strconv.Itoa(n), func(b *testing.B) {
			x, y := testkit.TCPPair(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, stageSize)
				for {
					if _, err := y.Read(buf); err != nil {
						return
					}
				}
			}()
			b.SetBytes(int64(n))
			b.ReportAllocs()
			out := make([]byte, 4+n)
			for b.Loop() {
				binary.BigEndian.PutUint32(out, uint32(n))
				if _, err := x.Write(out); err != nil {
					b.Fatal(err)
				}
			}
			x.Close()
			<-done
			y.Close()
		})
	}
}

// BenchmarkRoundTrip sends a message each way. The answer is polled for, or received by the passive
// goroutine. For comparison, a goroutine echoes over plain TCP.
func BenchmarkRoundTrip(b *testing.B) {
	for _, n := range benchSizes {
		frame := make([]byte, n)
		b.Run("polled/"+strconv.Itoa(n), func(b *testing.B) {
			p, q := kinds[0].connect(b)
			var got atomic.Int64
			count := func([]byte) { got.Add(1) }
			p.got, q.got = count, count
			p.c.Start(nil)
			q.c.Start(nil)
			b.SetBytes(int64(2 * n))
			b.ReportAllocs()
			want := int64(0)
			for b.Loop() {
				for _, dir := range [2][2]*lengthFramed{{p, q}, {q, p}} {
					dir[0].post(frame)
					dir[0].c.Kick()
					want++
					for got.Load() < want {
						dir[1].c.Poll()
						dir[0].c.Poll()
					}
				}
			}
		})
		b.Run("passive/"+strconv.Itoa(n), func(b *testing.B) {
			p, q := kinds[0].connect(b)
			back := make(chan struct{}, 1)
			p.got = func([]byte) { back <- struct{}{} }
			q.got = func([]byte) { q.post(frame); q.c.Kick() }
			p.c.Start(nil)
			q.c.Start(nil)
			b.SetBytes(int64(2 * n))
			b.ReportAllocs()
			for b.Loop() {
				p.post(frame)
				p.c.Kick()
				<-back
			}
		})
		b.Run("tcp/"+strconv.Itoa(n), func(b *testing.B) {
			x, y := testkit.TCPPair(b)
			go echo(y, n)
			b.SetBytes(int64(2 * n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.Write(frame); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(x, frame); err != nil {
					b.Fatal(err)
				}
			}
			x.Close()
		})
	}
}

func echo(c net.Conn, n int) {
	defer c.Close()
	buf := make([]byte, n)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

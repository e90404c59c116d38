package vitcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"

	"viaduct/vi"
)

var benchSizes = []int{64, 4 << 10, 64 << 10, 1 << 20}

// A pump posts copies of a descriptor, so that a send queue is always busy.
type pump struct {
	t    testing.TB
	v    *vi.VI
	free []*vi.Descriptor
	out  int
}

func newPump(t testing.TB, v *vi.VI, depth int, build func() *vi.Descriptor) *pump {
	p := &pump{t: t, v: v}
	for range depth {
		p.free = append(p.free, build())
	}
	return p
}

// post posts n descriptors with one doorbell. It first reaps completed descriptors until there is
// room.
func (p *pump) post(n int) {
	for len(p.free) < n {
		p.reap()
	}
	ds := p.free[len(p.free)-n:]
	if _, err := p.v.PostSends(ds); err != nil {
		p.t.Fatal(err)
	}
	p.free = p.free[:len(p.free)-n]
	p.out += n
}

// reap waits for a completed descriptor and reaps all completed descriptors.
func (p *pump) reap() {
	for got := false; !got; {
		for {
			d, err := p.v.SendDone()
			if errors.Is(err, vi.ErrNotDone) || errors.Is(err, vi.ErrQueueEmpty) {
				break
			}
			if err != nil {
				p.t.Fatal(err)
			}
			p.free = append(p.free, d)
			p.out--
			got = true
		}
		if !got {
			runtime.Gosched()
		}
	}
}

func (p *pump) drain() {
	for p.out > 0 {
		p.reap()
	}
}

// batchFor returns the number of messages of size bytes posted with one doorbell.
func batchFor(size int) int { return max(1, min(16, 256<<10/size)) }

func BenchmarkWrite(b *testing.B) { benchRDMA(b, false) }
func BenchmarkRead(b *testing.B)  { benchRDMA(b, true) }

func benchRDMA(b *testing.B, read bool) {
	for _, level := range []vi.Reliability{vi.ReliableDelivery, vi.ReliableReception} {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("%v/%d", level, size), func(b *testing.B) {
				p := connectPair(b, Config{Congestion: "reno"}, withLevel(reliableAll, level))
				ra, _ := register(b, p.na, size, vi.MemAttributes{})
				rb, _ := register(b, p.nb, size, allRights)
				n := batchFor(size)
				pump := newPump(b, p.a, 4*n, func() *vi.Descriptor {
					if read {
						return vi.NewRDMARead(rb.Remote(0), segment(ra, 0, size))
					}
					return vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, size))
				})
				b.SetBytes(int64(size * n))
				b.ReportAllocs()
				for b.Loop() {
					pump.post(n)
				}
				pump.drain()
				b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
}

func BenchmarkSend(b *testing.B) {
	for _, level := range []vi.Reliability{vi.ReliableDelivery, vi.ReliableReception} {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("%v/%d", level, size), func(b *testing.B) {
				p := connectPair(b, Config{Congestion: "reno"}, withLevel(reliableAll, level))
				ra, _ := register(b, p.na, size, vi.MemAttributes{})
				rb, _ := register(b, p.nb, size, allRights)
				stop := make(chan struct{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range 64 {
						p.b.PostRecv(vi.NewRecv(segment(rb, 0, size)))
					}
					for {
						d, err := p.b.RecvDone()
						if err == nil {
							p.b.PostRecv(d)
							continue
						}
						select {
						case <-stop:
							return
						default:
							runtime.Gosched()
						}
					}
				}()
				n := batchFor(size)
				pump := newPump(b, p.a, 4*n, func() *vi.Descriptor { return vi.NewSend(segment(ra, 0, size)) })
				b.SetBytes(int64(size * n))
				b.ReportAllocs()
				for b.Loop() {
					pump.post(n)
				}
				pump.drain()
				b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "msg/s")
				close(stop)
				<-done
			})
		}
	}
}

// BenchmarkPingPong measures round trips of two polling consumers.
func BenchmarkPingPong(b *testing.B) {
	for _, level := range []vi.Reliability{vi.ReliableDelivery, vi.ReliableReception} {
		for _, size := range benchSizes[:3] {
			b.Run(fmt.Sprintf("%v/%d", level, size), func(b *testing.B) {
				p := connectPair(b, Config{Congestion: "reno"}, withLevel(reliableAll, level))
				ra, _ := register(b, p.na, 2*size, vi.MemAttributes{})
				rb, _ := register(b, p.nb, 2*size, vi.MemAttributes{})
				side := func(v *vi.VI, r *vi.Region) func(first bool) error {
					s, d := vi.NewSend(segment(r, 0, size)), vi.NewRecv(segment(r, size, size))
					spin := func(f func() (*vi.Descriptor, error)) error {
						for {
							if _, err := f(); !errors.Is(err, vi.ErrNotDone) {
								return err
							}
						}
					}
					v.PostRecv(d)
					return func(first bool) error {
						if !first {
							if err := spin(v.RecvDone); err != nil {
								return err
							}
							v.PostRecv(d)
						}
						v.PostSend(s)
						if first {
							if err := spin(v.RecvDone); err != nil {
								return err
							}
							v.PostRecv(d)
						}
						return spin(v.SendDone)
					}
				}
				a, e := side(p.a, ra), side(p.b, rb)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for e(false) == nil {
					}
				}()
				b.ReportAllocs()
				for b.Loop() {
					if err := a(true); err != nil {
						b.Fatal(err)
					}
				}
				p.a.Disconnect()
				<-done
			})
		}
	}
}

// BenchmarkOneWay measures the processor time of an 8-byte message at both ends together. One
// goroutine runs both ends, so no goroutine waits and no cache line moves between processors.
func BenchmarkOneWay(b *testing.B) {
	p := connectPair(b, Config{Congestion: "reno"}, withLevel(reliableAll, vi.ReliableDelivery))
	ra, _ := register(b, p.na, 8, vi.MemAttributes{})
	rb, _ := register(b, p.nb, 8, vi.MemAttributes{})
	s := vi.NewSend(segment(ra, 0, 8))
	for range 16 {
		p.b.PostRecv(vi.NewRecv(segment(rb, 0, 8)))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := p.a.PostSend(s); err != nil {
			b.Fatal(err)
		}
		d, err := p.b.RecvDone()
		for err == vi.ErrNotDone {
			d, err = p.b.RecvDone()
		}
		if err != nil {
			b.Fatal(err)
		}
		p.b.PostRecv(d)
		for err = vi.ErrNotDone; err == vi.ErrNotDone; { // the timer may hold the send role at this moment
			_, err = p.a.SendDone()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTCP is the baseline for the other benchmarks: plain TCP with the same sizes, and with a
// write per message or per 16 small messages.
func BenchmarkTCP(b *testing.B) {
	pair := func(b *testing.B) (c, s net.Conn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(b, err)
		defer l.Close()
		c, err = net.Dial("tcp", l.Addr().String())
		must(b, err)
		s, err = l.Accept()
		must(b, err)
		cfg := Config{Congestion: "reno"}
		must(b, cfg.check())
		must(b, cfg.tune(c))
		must(b, cfg.tune(s))
		b.Cleanup(func() { c.Close(); s.Close() })
		return c, s
	}
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("stream/%d", size), func(b *testing.B) {
			c, s := pair(b)
			go io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{s}, make([]byte, 256<<10))
			n := batchFor(size)
			buf := make([]byte, size*n)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "msg/s")
		})
	}
	for _, size := range benchSizes[:3] {
		b.Run(fmt.Sprintf("pingpong/%d", size), func(b *testing.B) {
			c, s := pair(b)
			go func() {
				buf := make([]byte, size)
				for {
					if readSpinning(s, buf) != nil {
						return
					}
					if _, err := s.Write(buf); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, size)
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
				if err := readSpinning(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

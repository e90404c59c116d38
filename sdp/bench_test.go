package sdp

import (
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// tcpPair returns the two ends of a TCP connection over loopback.
func tcpPair(b testing.TB) (c, s net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ch := make(chan net.Conn, 1)
	go func() {
		s, _ := l.Accept()
		ch <- s
	}()
	c, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	return c, <-ch
}

var benchVariants = []struct {
	name string
	opt  *Options // nil for plain TCP
}{
	{"tcp", nil},
	{"sdp", &Options{NoCRC: true}},
	{"sdp-crc", &Options{}},
	{"sdp-bcopy", &Options{NoCRC: true, SendThreshold: -1}},
	{"sdp-combined", &Options{NoCRC: true, SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 32 << 10, RecvThreshold: 32 << 10}},
	{"sdp-pipelined", &Options{NoCRC: true, SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 32 << 10, RecvThreshold: 32 << 10}},
}

var benchSet = flag.String("sdp.set", "", "settings of the SDP benchmarks, NAME=VALUE separated by commas")

func benchPair(b *testing.B, opt *Options) (c, s net.Conn) {
	if opt == nil {
		return tcpPair(b)
	}
	o := *opt
	set := map[string]string{}
	for pair := range strings.SplitSeq(*benchSet, ",") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			set[k] = v
		}
	}
	if err := o.Set(set); err != nil {
		b.Fatal(err)
	}
	return pair(b, o, o)
}

// BenchmarkStream sends a stream one way, with plain TCP for comparison.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for _, v := range benchVariants {
			b.Run(fmt.Sprintf("size=%d/%s", size, v.name), func(b *testing.B) {
				c, s := benchPair(b, v.opt)
				done := make(chan int64)
				go func() {
					buf := make([]byte, max(size, 64<<10))
					var n int64
					for {
						k, err := s.Read(buf)
						n += int64(k)
						if err != nil {
							done <- n
							return
						}
					}
				}()
				p := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				var n int64
				for b.Loop() {
					k, err := c.Write(p)
					n += int64(k)
					if err != nil {
						b.Fatal(err)
					}
				}
				c.(interface{ CloseWrite() error }).CloseWrite()
				if got := <-done; got != n {
					b.Errorf("%d bytes of %d", got, n)
				}
				closeBench(b, c, s)
			})
		}
	}
}

func closeBench(b *testing.B, c, s net.Conn) {
	if x, ok := c.(*Conn); ok {
		shut(b, x, s.(*Conn))
		return
	}
	c.Close()
	s.Close()
}

// BenchmarkRoundTrip sends a message and waits for its return.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		for _, v := range benchVariants {
			b.Run(fmt.Sprintf("size=%d/%s", size, v.name), func(b *testing.B) {
				c, s := benchPair(b, v.opt)
				go func() {
					buf := make([]byte, size)
					for {
						if _, err := io.ReadFull(s, buf); err != nil {
							return
						}
						if _, err := s.Write(buf); err != nil {
							return
						}
					}
				}()
				p := make([]byte, size)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Write(p); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(c, p); err != nil {
						b.Fatal(err)
					}
				}
				c.Close()
				closeBench(b, c, s)
			})
		}
	}
}

// BenchmarkSetup makes and ends connections.
func BenchmarkSetup(b *testing.B) {
	b.Run("tcp", func(b *testing.B) {
		for b.Loop() {
			c, s := tcpPair(b)
			c.Close()
			s.Close()
		}
	})
	b.Run("sdp", func(b *testing.B) {
		l, err := Listen("127.0.0.1:0", nil)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		for b.Loop() {
			c, s := pairOn(b, l, &Dialer{})
			c.Close()
			s.Close()
		}
	})
}

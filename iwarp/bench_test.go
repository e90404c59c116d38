package iwarp

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// Each benchmark has plain TCP as its baseline: the same bytes over the same kind of loopback
// connection, in the same process.
//
//	go test -bench . -benchmem ./iwarp
var benchSizes = []int{64, 4 << 10, 64 << 10, 1 << 20}

var framings = []struct {
	name string
	crc  bool
	fpdu int
}{
	{"crc/fpdu=64K", true, 64766}, {"crc/fpdu=1460", true, 1454},
	{"nocrc/fpdu=64K", false, 64766}, {"nocrc/fpdu=1460", false, 1454},
}

func benchPair(b *testing.B, crc bool, fpdu int) (x, y *QueuePair) {
	cfg := func() *Config {
		return &Config{Device: NewDevice(DeviceConfig{NoCRC: !crc}), Interop: Interop{FPDUSize: fpdu},
			Congestion: congestion(), SendDepth: 256, RecvDepth: 256}
	}
	return connect(b, cfg(), cfg())
}

// outstanding returns the number of messages of n bytes that may be under way.
func outstanding(n int) int { return max(4, min(128, (1<<20)/n)) }

func BenchmarkTCPStream(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, y := testkit.TCPPair(b)
			defer y.Close()
			tune(x, y)
			done := make(chan int64, 1)
			go func() {
				buf, total := make([]byte, 256<<10), int64(0)
				for {
					k, err := y.Read(buf)
					total += int64(k)
					if err != nil {
						done <- total
						return
					}
				}
			}()
			buf := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			x.Close()
			<-done
		})
	}
}

func BenchmarkWrite(b *testing.B) { benchOneSided(b, OpWrite) }
func BenchmarkRead(b *testing.B)  { benchOneSided(b, OpRead) }

func benchOneSided(b *testing.B, op Op) {
	for _, f := range framings {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", f.name, n), func(b *testing.B) {
				x, y := benchPair(b, f.crc, f.fpdu)
				local, _ := x.Register(make([]byte, n), LocalOnly)
				remote, _ := y.Register(make([]byte, n), RemoteWrite|RemoteRead)
				wr := SendWR{Op: op, SG: []SGE{local.SGE(0, n)}, Remote: RemoteAddr{STag: remote.STag()}}
				depth := outstanding(n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				inFlight := 0
				for b.Loop() {
					wr.More = inFlight%16 != 15 && inFlight < depth-1
					if err := x.Post(wr); err != nil {
						b.Fatal(err)
					}
					if inFlight++; inFlight == depth {
						for inFlight > depth/2 {
							waitOK(b, x.SendCQ())
							inFlight--
						}
					}
				}
				x.Flush()
				for ; inFlight > 0; inFlight-- {
					waitOK(b, x.SendCQ())
				}
				// The answer to a Read shows that all Writes have arrived.
				x.Post(SendWR{Op: OpRead, SG: []SGE{local.SGE(0, 1)}, Remote: RemoteAddr{STag: remote.STag()}})
				waitOK(b, x.SendCQ())
			})
		}
	}
}

func BenchmarkSend(b *testing.B) {
	for _, f := range framings {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", f.name, n), func(b *testing.B) {
				x, y := benchPair(b, f.crc, f.fpdu)
				depth := outstanding(n)
				sink := make([]byte, n)
				for range depth {
					y.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})
				}
				src := make([]byte, n)
				credits := make(chan int, depth)
				stop := make(chan struct{})
				go func() {
					defer close(stop)
					for {
						c, err := y.RecvCQ().Wait(b.Context())
						if err != nil || c.Status != StatusOK {
							return
						}
						y.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})
						credits <- 1
					}
				}()
				b.SetBytes(int64(n))
				b.ReportAllocs()
				left := depth
				for b.Loop() {
					if left == 0 {
						x.Flush()
						left += <-credits
					}
					left--
					if err := x.Post(SendWR{SG: []SGE{Buf(src)}, Unsignaled: true, More: left%16 != 0}); err != nil {
						b.Fatal(err)
					}
				}
				x.Flush()
				for ; left < depth; left++ {
					<-credits
				}
				b.StopTimer()
				y.Abort()
				<-stop
			})
		}
	}
}

// BenchmarkLatency measures a round trip of a waiting consumer. Both ends are in one process. The
// gain of polling shows only with two processes.
func BenchmarkLatency(b *testing.B) {
	b.Run("tcp/8", func(b *testing.B) {
		x, y := testkit.TCPPair(b)
		tune(x, y)
		go io.Copy(y, y)
		buf := make([]byte, 8)
		for b.Loop() {
			x.Write(buf)
			io.ReadFull(x, buf)
		}
		x.Close()
	})
	for _, crc := range []bool{true, false} {
		for _, n := range []int{8, 64 << 10} {
			b.Run(fmt.Sprintf("send/crc=%t/%d", crc, n), func(b *testing.B) {
				x, y := benchPair(b, crc, 64766)
				bufs := [2][]byte{make([]byte, n), make([]byte, n)}
				stop := make(chan struct{})
				y.PostRecv(RecvWR{SG: []SGE{Buf(bufs[1])}})
				go func() {
					defer close(stop)
					for {
						if c, err := y.RecvCQ().Wait(b.Context()); err != nil || c.Status != StatusOK {
							return
						}
						y.PostRecv(RecvWR{SG: []SGE{Buf(bufs[1])}})
						y.Post(SendWR{SG: []SGE{Buf(bufs[1])}, Unsignaled: true})
					}
				}()
				b.ReportAllocs()
				for b.Loop() {
					x.PostRecv(RecvWR{SG: []SGE{Buf(bufs[0])}})
					x.Post(SendWR{SG: []SGE{Buf(bufs[0])}, Unsignaled: true})
					waitOK(b, x.RecvCQ())
				}
				b.StopTimer()
				y.Abort()
				<-stop
			})
		}
	}
}

// BenchmarkOneWay measures the processor time a message of 8 bytes takes at both ends. One
// goroutine is both ends, so nothing waits, and no cache line moves from one processor to another.
func BenchmarkOneWay(b *testing.B) {
	x, y := benchPair(b, false, 64766)
	xr, _ := x.Register(make([]byte, 8), LocalOnly)
	yr, _ := y.Register(make([]byte, 8), LocalOnly)
	from, to := []SGE{xr.SGE(0, 8)}, []SGE{yr.SGE(0, 8)}
	b.ReportAllocs()
	for b.Loop() {
		y.PostRecv(RecvWR{SG: to})
		if err := x.Post(SendWR{SG: from, Unsignaled: true}); err != nil {
			b.Fatal(err)
		}
		for {
			if _, ok := y.RecvCQ().Poll(); ok {
				break
			}
		}
	}
}

// waitOK waits for a successful completion without a time limit, which costs more than a message.
func waitOK(b *testing.B, q *CompletionQueue) {
	c, err := q.Wait(b.Context())
	if err != nil || c.Status != StatusOK {
		b.Fatal(c, err, c.QP.Err())
	}
}

// congestion returns the congestion control of all compared connections. It is set because the
// default of a system may be tuned for long paths. It is "", the default, if "reno" cannot be set.
var congestion = sync.OnceValue(func() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return ""
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return ""
	}
	defer c.Close()
	if sock.Tune(c, sock.Tuning{Congestion: "reno"}) != nil {
		return ""
	}
	return "reno"
})

func tune(cs ...net.Conn) {
	for _, c := range cs {
		sock.Tune(c, sock.Tuning{Congestion: congestion()})
	}
}

package sock

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/samehost"
)

// BenchmarkSetUp makes connections one after the other, sends a byte each way and closes them.
// cpu-us/op is the processor time of both ends, in this process and in the kernel.
func BenchmarkSetUp(b *testing.B) {
	for _, policy := range []samehost.Policy{samehost.Off, samehost.Require} {
		b.Run(policy.String(), func(b *testing.B) {
			l := ownListener(b, "127.0.0.1:0", Tuning{SameHost: policy})
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						var one [1]byte
						if _, err := io.ReadFull(c, one[:]); err == nil {
							c.Write(one[:])
							c.Read(one[:])
						}
					}()
				}
			}()
			before := processorTime(b)
			for b.Loop() {
				c, err := Dial(b.Context(), new(net.Dialer), "tcp", l.Addr().String())
				if err == nil {
					err = ShareMemory(b.Context(), c, policy, "")
				}
				if err != nil {
					b.Fatal(err)
				}
				one := []byte{1}
				c.Write(one)
				if _, err := c.Read(one); err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(time.Microsecond)/float64(b.N), "cpu-us/op")
		})
	}
}

// processorTime returns the processor time this process has used.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

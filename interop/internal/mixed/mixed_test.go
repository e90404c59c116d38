package mixed

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/samehost"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// small sends 300 KB or more each way, however slow the machine is: the faults of the tests are at
// 200 KB at the latest.
var small = Plan{Seed: 1, For: 300 * time.Millisecond, Least: 100, MaxBytes: 20_000, Window: 4}

// pair runs a plan over loopback and returns the tallies of both ends.
func pair(t *testing.T, transport string, p Plan, wrap func(net.Conn) net.Conn) (ends [2]Tally, errs [2]error) {
	t.Helper()
	node, err := Open(transport, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	dials, err := Open(transport, Settings{WrapConn: wrap})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	var once sync.Once
	served := make(chan struct{})
	at, wait, err := node.Listen(accepting, "127.0.0.1:0", p, func(c Conn) {
		ends[1], errs[1] = c.Run(ctx)
		once.Do(func() { close(served) })
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := dials.Dial(ctx, at, p)
	if err != nil {
		t.Fatal(err)
	}
	ends[0], errs[0] = c.Run(ctx)
	select {
	case <-served:
	case <-time.After(testkit.Patience):
		t.Fatal("the listening end had no connection")
	}
	stop()
	wait()
	for _, n := range []Node{node, dials} {
		if n.Regions() != 0 {
			t.Errorf("%d regions are left", n.Regions())
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	return ends, errs
}

func TestTransports(t *testing.T) {
	for _, transport := range Transports() {
		t.Run(transport, func(t *testing.T) {
			shared := transport != "tcp" && runtime.GOOS == "linux" && samehost.Policy(0) == samehost.Auto
			ends, errs := pair(t, transport, small, nil)
			// A dialer uses TCP if a busy machine makes the listener late.
			for end := time.Now().Add(testkit.Patience); shared && !ends[0].SharedMemory && time.Now().Before(end); {
				ends, errs = pair(t, transport, small, nil)
			}
			for i, e := range ends {
				if errs[i] != nil {
					t.Errorf("end %d: %v", i, errs[i])
				}
				if e.SharedMemory != shared {
					t.Errorf("end %d: through shared memory %t, want %t", i, e.SharedMemory, shared)
				}
				if !e.Orderly || e.Digest == "" || e.Sends == 0 || e.ReceivedBytes == 0 {
					t.Errorf("end %d: %+v", i, e)
				}
				if transport != "tcp" && transport != "sdp" && (e.Writes == 0 || e.Reads == 0 || e.Posted != e.Completed) {
					t.Errorf("end %d: %+v", i, e)
				}
			}
			t.Logf("%+v", ends[0])
		})
	}
}

// A cut is a connection that resets after a number of bytes.
type cut struct {
	net.Conn
	left int
}

func (c *cut) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// TestCut: a cut connection ends at both ends with an error other than a broken promise, and every
// posted request completes.
func TestCut(t *testing.T) {
	for _, transport := range Transports()[1:] {
		for _, after := range []int{3000, 100_000} {
			t.Run(transport, func(t *testing.T) {
				ends, errs := pair(t, transport, small, func(c net.Conn) net.Conn { return &cut{c, after} })
				for i, e := range ends {
					if errs[i] == nil || errors.Is(errs[i], ErrBroken) || errors.Is(errs[i], context.DeadlineExceeded) {
						t.Errorf("end %d: %v", i, errs[i])
					}
					if e.Orderly || e.Posted != e.Completed {
						t.Errorf("end %d: %+v", i, e)
					}
				}
			})
		}
	}
}

// A flip is a connection that inverts one bit in each of two of the read bytes: one after a number
// of bytes, and one 8 bytes later. No checksum covers the time stamp of FCIP, which is 8 bytes
// long, so that at most one of the two bytes is in a time stamp.
type flip struct {
	net.Conn
	left int
}

func (c *flip) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for _, at := range []int{c.left, c.left + 8} {
		if at >= 0 && at < n {
			b[at] ^= 4
		}
	}
	c.left -= n
	return n, err
}

// TestFlip: MPA's CRC (for iWARP and SDP) and the CRC of Fibre Channel frames detect damage that
// TCP's checksum misses: the connection ends, and no wrong byte is delivered.
func TestFlip(t *testing.T) {
	for _, transport := range []string{"sdp", "iwarp", "fcvi"} {
		for _, behind := range []int{50_000, 123_457, 200_001} {
			t.Run(transport, func(t *testing.T) {
				ends, errs := pair(t, transport, small, func(c net.Conn) net.Conn { return &flip{c, behind} })
				switch {
				case errors.Is(errs[0], ErrBroken) || errors.Is(errs[1], ErrBroken):
					t.Errorf("wrong bytes, or a completion too few: %v, %v", errs[0], errs[1])
				case errs[0] == nil || errs[1] == nil || ends[0].Orderly:
					t.Errorf("not noticed: %v, %v", errs[0], errs[1])
				}
			})
		}
	}
}

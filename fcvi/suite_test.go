package fcvi

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/testkit"
	"viaduct/internal/vitest"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// TestVI_SuiteFCIP runs the suite for VI providers over FCIP links. The suite's error matrix, data
// and state families cover these rows too: [FCVI-3-8] [FCVI-3-9] [FCVI-3-11] [FCVI-4-2]
// [FCVI-5.2.2-4] [FCVI-5.2.2-5] [FCVI-5.2.2-7] [FCVI-5.2.3-1] [FCVI-5.2.3-2] [FCVI-5.2.3-4]
// [FCVI-5.2.4-4] [FCVI-5.3.4-11] [FCVI-5.3.3-5] [FCVI-5.3.5-7] [FCVI-5.9.7-6] [FCVI-7.3-7]
// [FCVI-F-2]
func TestVI_SuiteFCIP(t *testing.T) {
	vitest.Run(t, vitest.Harness{
		Open: func(_ int, c *vi.Config) (*vi.NIC, error) {
			p, err := New(Config{Listen: "127.0.0.1:0", Logger: testLogger})
			if err != nil {
				return nil, err
			}
			return vi.Open(p, "", c)
		},
		Address: func(n *vi.NIC, d []byte) vi.Address {
			return vi.Address{Host: n.Query().LocalAddress, Discriminator: d}
		},
		Unreachable: func() vi.Address {
			return vi.IPAddress(netip.MustParseAddrPort("127.0.0.1:1"), "x")
		},
		Faults: vitest.Faults{Cut: cutLink},
	})
}

var nextHost atomic.Uint32

// noisyNetwork runs a simulated fabric in real time until the test ends. A common factor scales all
// timers. [FCVI-8.3-5]
func noisyNetwork(t *testing.T, outOfOrder bool, noise fabric.Noise, scale time.Duration) Config {
	return seededNetwork(t, 1, outOfOrder, noise, scale)
}

func seededNetwork(t *testing.T, seed uint64, outOfOrder bool, noise fabric.Noise, scale time.Duration) Config {
	n := fabric.NewNet(seed)
	sw := fabric.NewSwitch(fabric.SwitchConfig{Name: fc.NodeName(0x020000002001), Domain: 1, OutOfOrder: outOfOrder,
		EDTOV: 20 * time.Millisecond * scale, RATOV: 100 * time.Millisecond * scale})
	n.SetNoise(noise)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.Serve(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return Config{network: &inProcess{n, sw}, EDTOV: 20 * time.Millisecond * scale,
		RATOV:  100 * time.Millisecond * scale,
		Logger: testLogger, ULPTimeout: testkit.Patience} // long, because a slow machine must not look like a dead peer
}

// netHarness omits vitest's flow control family, like the harness over FCIP. FC-VI has no credits:
// a message is sent and completes whether or not a receive is posted. If both VIs request flow
// control, the message waits at the other port. TestHold covers flow control.
func netHarness(cfg Config) vitest.Harness {
	return vitest.Harness{
		Open: func(_ int, c *vi.Config) (*vi.NIC, error) {
			p, err := New(cfg)
			if err != nil {
				return nil, err
			}
			i := nextHost.Add(1)
			return vi.Open(p, fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), c)
		},
		Address: func(n *vi.NIC, d []byte) vi.Address {
			return vi.Address{Host: n.Query().LocalAddress, Discriminator: d}
		},
		Unreachable: func() vi.Address {
			return vi.IPAddress(netip.MustParseAddrPort("203.0.113.9:0"), "x")
		},
		Scale: 3,
	}
}

// machineOf returns the endpoint and station of a connected VI.
func machineOf(v *vi.VI) (found *conn, at *station) {
	d := v.NIC().Device().(*device)
	d.mu.Lock()
	stations := []*station{d.home}
	for _, x := range d.away {
		<-x.done
		stations = append(stations, x.s)
	}
	d.mu.Unlock()
	for _, s := range stations {
		if s == nil {
			continue
		}
		s.do(func(fc.Time) {
			for _, c := range s.p.handles.all() {
				if up, ok := c.up.(*viConsumer); ok && up.ep.VI() == v {
					found, at = c, s
				}
			}
		})
	}
	return found, at
}

// cutLink resets the FCIP link of a VI.
func cutLink(v *vi.VI) {
	c, s := machineOf(v)
	switch o := s.out.(type) {
	case *linkOutlet:
		o.l.Abort(net.ErrClosed)
	case *localOutlet:
		o.l.Link(c.remote.Addr).Abort(net.ErrClosed)
	}
}

// fabricFaults injects faults into the link between a VI's port and a simulated fabric. The fabric
// drops damaged frames, as every port does.
func fabricFaults(n *fabric.Net) vitest.Faults {
	// next adds a fault for a frame of the next message.
	next := func(v *vi.VI, do fabric.Action, last bool) {
		c, _ := machineOf(v)
		handle := c.rHandle
		done := make(chan struct{})
		n.Do(func() {
			n.AddFault(&fabric.Fault{Nth: 1, Do: do, Match: func(f *fc.Frame) bool {
				h, _, err := iu.ParseHeader(f.Opt)
				return f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() && err == nil && h.Handle == handle &&
					(h.Op == iu.SendRqst || h.Op == iu.WriteRqst) && (!last || f.Last())
			}})
			close(done)
		})
		<-done
	}
	return vitest.Faults{
		Dropped:  true,
		Corrupt:  func(v *vi.VI) { next(v, fabric.Corrupt, false) },
		Truncate: func(v *vi.VI) { next(v, fabric.Drop, true) },
		Cut: func(v *vi.VI) {
			_, s := machineOf(v)
			end := s.out.(*netOutlet).out.(*fabric.End)
			n.Do(func() { n.SetLink(end, false) })
		},
	}
}

// virtual makes the suite run each test of h in virtual time, where no machine is late, on the
// fabric of own, which runs until its t ends. The caller must call oneProcessor first.
func virtual(h vitest.Harness, own func(t *testing.T) Config) vitest.Harness {
	h.Around = func(t *testing.T, test func(*testing.T, vitest.Harness)) {
		synctest.Test(t, func(t *testing.T) {
			cfg, h := own(t), h
			of := netHarness(cfg)
			h.Open, h.Address, h.Unreachable = of.Open, of.Address, of.Unreachable
			if h.Faults.Dropped {
				h.Faults = fabricFaults(cfg.network.(*inProcess).n)
			}
			test(t, h)
		})
	}
	return h
}

// oneProcessor makes consumers sleep at once until t ends. A consumer that polls first does not let
// virtual time go on.
func oneProcessor(t *testing.T) { t.Cleanup(attend.AssumeProcessors(1)) }

// TestVI_SuiteFaults runs the tests with injected faults, over ordered and unordered fabrics, with
// short timers and in virtual time.
func TestVI_SuiteFaults(t *testing.T) {
	oneProcessor(t)
	for _, order := range []string{"in order", "out of order"} {
		t.Run(order, func(t *testing.T) {
			h := vitest.Harness{Scale: 3, Unordered: order != "in order", Faults: fabricFaults(nil),
				Only: []string{"ErrorMatrix", "CorruptUnreliable", "Cut"}}
			vitest.Run(t, virtual(h, func(t *testing.T) Config {
				cfg := seededNetwork(t, 1, order != "in order", fabric.Noise{}, 3)
				cfg.ULPTimeout = time.Second
				return cfg
			}))
		})
	}
}

// TestVI_SuiteFabric runs the suite over an ordered in-process fabric, at all three levels.
// [FCVI-5.3.2-7]
func TestVI_SuiteFabric(t *testing.T) {
	vitest.Run(t, netHarness(noisyNetwork(t, false, fabric.Noise{}, 10)))
}

// TestVI_SuiteOutOfOrder runs the suite over a fabric that duplicates and reorders frames. It loses
// no frame, and a message whose frames are late for less than 20 s is not lost, so a slow machine
// can't break a connection. TestLossyTraffic covers losses.
func TestVI_SuiteOutOfOrder(t *testing.T) {
	if !raceEnabled {
		testkit.Long(t, "10 s")
	}
	noise := fabric.Noise{Reorder: 0.05, Duplicate: 0.01, MaxDelay: 30 * time.Microsecond}
	h := netHarness(noisyNetwork(t, true, noise, 1000))
	h.Unordered, h.Unreachable = true, nil
	vitest.Run(t, h)
	// An address that nobody has is tried for three E_D_TOV. They are short here, so frames of messages
	// are in order.
	noise.Only = func(f *fc.Frame) bool { return f.Type != fc.TypeFCVI }
	h = netHarness(noisyNetwork(t, true, noise, 40))
	h.Unordered, h.Only = true, []string{"ConnectFailures"}
	vitest.Run(t, h)
}

// TestVI_SuiteLossy runs the reliable levels over fabrics that lose 1% of all frames, and duplicate
// and reorder others, in virtual time. In class 2 lost frames are sent again. In class 3 losses
// break connections. Every break is reported, no data is wrong, and a test whose connection broke
// passes when it is repeated, or in class 2.
func TestVI_SuiteLossy(t *testing.T) {
	if !raceEnabled {
		testkit.Long(t, "10 s")
	}
	oneProcessor(t)
	var tally vitest.Tally
	recovering := vitest.Tally{Shared: &tally} // in class 2
	for _, level := range []vi.Reliability{vi.ReliableReception, vi.ReliableDelivery, vi.UnreliableDelivery} {
		for _, class := range []int{2, 3} {
			t.Run(fmt.Sprintf("class %d", class), func(t *testing.T) {
				h := vitest.Harness{Levels: level, Unordered: true, Lossy: true, Scale: 1,
					Tally: &vitest.Tally{Tries: 2, Shared: &tally}}
				if class == 2 {
					h.Tally.Shared = &recovering
					h.Scale = 5 // longer time limits, because a message that is sent again arrives late
				}
				vitest.Run(t, virtual(h, func(t *testing.T) Config { return lossyConfig(t, class) }))
			})
		}
	}
	tally.Check(t)
	recovering.Rare(t, 1)
}

// lossyConfig returns a Config for a fabric with losses, which depend on the name of the test.
func lossyConfig(t *testing.T, class int) Config {
	scale := time.Duration(1)
	if class == 2 {
		scale = 4
	}
	cfg := seededNetwork(t, uint64(crc32.ChecksumIEEE([]byte(t.Name()))), true, lossy, scale)
	if cfg.Class2 = class == 2; !cfg.Class2 {
		cfg.ULPTimeout = 500 * time.Millisecond // short, because answers are often lost
	}
	return cfg
}

// lossy has the highest fault rates Fibre Channel is expected to tolerate. Logins have no faults,
// because logins are not tested here, and some would wait for R_A_TOV.
var lossy = fabric.Noise{Loss: 0.01, Reorder: 0.05, Duplicate: 0.01, MaxDelay: 30 * time.Microsecond,
	Only: func(f *fc.Frame) bool { return f.Type != fc.TypeELS && f.Type != fc.TypeCT }}

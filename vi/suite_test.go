package vi_test

import (
	"sync/atomic"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/internal/vitest"
	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var nodes = [...]string{"mem0", "mem1"}

func harness(network *memvi.Network) vitest.Harness {
	return vitest.Harness{
		Open: func(side int, cfg *vi.Config) (*vi.NIC, error) {
			return vi.Open(network, nodes[side], cfg)
		},
		Address: func(n *vi.NIC, discriminator []byte) vi.Address {
			return vi.Address{Host: n.Query().LocalAddress, Discriminator: discriminator}
		},
		Unreachable: func() vi.Address { return vi.Address{Host: []byte{1, 2, 3, 4}} },
		FlowControl: true,
		Faults: vitest.Faults{
			Cut: memvi.Cut, Corrupt: memvi.CorruptNext, Truncate: memvi.TruncateNext,
		},
	}
}

// TestSuite runs the provider-independent suite with the reference provider, as a test of the
// suite, the provider and package vi.
func TestSuite(t *testing.T) { vitest.Run(t, harness(memvi.New())) }

// TestSuiteLossy runs the suite over a network with lost messages at Unreliable Delivery.
func TestSuiteLossy(t *testing.T) {
	network := memvi.New()
	var n atomic.Uint32
	network.Limits = func(a *vi.NICAttributes) {
		a.ReliabilityLevels, a.RDMAReadSupport = vi.UnreliableDelivery, 0
	}
	network.Lose = func() bool { return n.Add(1)%3 == 0 }
	h := harness(network)
	h.Lossy = true
	vitest.Run(t, h)
}

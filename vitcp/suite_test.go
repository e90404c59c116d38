package vitcp

import (
	"net/netip"
	"testing"

	"viaduct/internal/vitest"
	"viaduct/vi"
)

// TestVI_Suite runs the suite for VI providers, including the error matrix. [VIT-2.2.1-1]
func TestVI_Suite(t *testing.T) {
	vitest.Run(t, suiteHarness(t, Config{}))
}

// TestVI_SuitePortable runs the suite over streams without a descriptor and without gather writes,
// like TLS.
func TestVI_SuitePortable(t *testing.T) {
	vitest.Run(t, suiteHarness(t, Config{WrapConn: hideDescriptor}))
}

func suiteHarness(t *testing.T, cfg Config) vitest.Harness {
	cfg.DrainTimeout = patience // a slow machine must not lose the data of completed sends
	return vitest.Harness{
		Open: func(_ int, c *vi.Config) (*vi.NIC, error) {
			return vi.Open(openProvider(t, cfg), "127.0.0.1", c)
		},
		Address: func(n *vi.NIC, d []byte) vi.Address {
			return vi.Address{Host: n.Query().LocalAddress, Discriminator: d}
		},
		Unreachable: func() vi.Address {
			return vi.IPAddress(netip.MustParseAddrPort("224.0.0.1:3936"), "x")
		},
		FlowControl: true,
		Faults:      vitest.Faults{Cut: cutFor(cfg)},
	}
}

func cutFor(cfg Config) func(*vi.VI) {
	if cfg.WrapConn != nil {
		return nil
	}
	return cut
}

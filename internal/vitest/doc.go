// Package vitest is the test suite for every VI provider: it checks the promises of package vi. A
// provider's tests call [Run] with a [Harness] to open the provider's NICs.
//
//	func TestVI(t *testing.T) {
//		network := memvi.New()
//		vitest.Run(t, vitest.Harness{
//			Open: func(side int, cfg *vi.Config) (*vi.NIC, error) {
//				return vi.Open(network, [...]string{"mem0", "mem1"}[side], cfg)
//			},
//			Address: func(n *vi.NIC, discriminator []byte) vi.Address {
//				return vi.Address{Host: n.Query().LocalAddress, Discriminator: discriminator}
//			},
//			FlowControl: true,
//		})
//	}
//
// Tests are named after lines of the requirement matrix and cite the rows. Package memvi is the
// provider for testing the suite itself.
package vitest

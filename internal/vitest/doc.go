// Package vitest tests a VI provider: it exercises what package vi means over
// any of them. A provider's tests call [Run] with a [Harness] that opens its
// NICs.
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
// Tests are named after the line of the requirement matrix they serve and cite its
// rows. Package memvi is the provider that the suite itself is proved with.
package vitest

package fcvi

import (
	"testing"
	"time"

	"viaduct/fc/fabric"
	"viaduct/fcvi/iu"
)

// TestLoginUnderNoise brings ports up, and connects, on fabrics that lose,
// double and reorder frames of every kind: it takes longer, but it ends well.
func TestLoginUnderNoise(t *testing.T) {
	for seed := range uint64(60) {
		s := newSimNoise(t, simConfig{seed: seed}, fabric.Noise{Loss: 0.03, Duplicate: 0.05, Reorder: 0.1, MaxDelay: 50 * time.Microsecond})
		a, b := s.fake(0, iu.ReliableReception), s.fake(1, iu.ReliableReception)
		s.serve(b, "disc")
		s.dial(a, b, "disc", iu.ClientServer)
		if !s.net.RunUntil(20*time.Minute, func() bool { return len(a.result) > 0 }) {
			t.Fatalf("seed %d: no result; a %v b state %v; ports %v %v, topology %v", seed, a.c.state, b.result, s.ports[0].np.State(), s.ports[1].np.State(), s.ports[0].np.Topology())
		}
		if a.result[0] == iu.Confirmed && (b.c == nil || b.c.state != stConnected && !b.c.gone && b.c.state != stResp1) {
			t.Errorf("seed %d: client %v, server %v", seed, a.c.state, b.result)
		}
		if a.result[0] != iu.Confirmed {
			t.Logf("seed %d: %v", seed, a.result[0])
		}
	}
}

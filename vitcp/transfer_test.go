package vitcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"viaduct/vi"
)

var levels = []vi.Reliability{vi.UnreliableDelivery, vi.ReliableDelivery, vi.ReliableReception}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// Two VIs over loopback send messages of many lengths at each level. The messages are gathered and
// scattered, with and without immediate data. [VIT-2.2.2.1-4]
func TestTransfer_Send(t *testing.T) {
	for _, level := range levels {
		for _, flow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/flow=%v", level, flow), func(t *testing.T) {
				attrs := withLevel(reliableAll, level)
				attrs.FlowControl = flow
				p := connectPair(t, Config{}, attrs)
				ra, ba := register(t, p.na, 300000, vi.MemAttributes{})
				rb, bb := register(t, p.nb, 300000, vi.MemAttributes{})
				for i, n := range []int{0, 1, 63, 1024, 1025, 65511, 65512, 65535, 200001, 300000} {
					fill(ba, uint64(i))
					clear(bb)
					rd := vi.NewRecv(segment(rb, 0, 7), segment(rb, 7, 0), segment(rb, 7, len(bb)-7))
					must(t, p.b.PostRecv(rd))
					sd := vi.NewSend(segment(ra, 0, n/3), segment(ra, n/3, n-n/3))
					if i%2 == 1 {
						sd.WithImmediate(uint32(i) << 28)
					}
					must(t, p.a.PostSend(sd))
					got, err := waitRecv(t, p.b)
					if err != nil || got != rd || int(got.Length) != n || !bytes.Equal(bb[:n], ba[:n]) {
						t.Fatalf("length %d: got %d, %v", n, got.Length, err)
					}
					if imm := got.Status()&vi.StatusImmediate != 0; imm != (i%2 == 1) ||
						imm && got.ImmediateData != uint32(i)<<28 {
						t.Errorf("immediate %v, %#x", imm, got.ImmediateData)
					}
					if got, err := waitSend(t, p.a); got != sd || err != nil || int(got.Length) != n {
						t.Fatalf("send: %v, %v", got.Status(), err)
					}
				}
				p.na.noAsync(t)
				p.nb.noAsync(t)
			})
		}
	}
}

// Two VIs write and read many lengths, at each level that supports the operation. [VIT-2.2.2.1-4]
func TestTransfer_RDMA(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			p := connectPair(t, Config{}, withLevel(reliableAll, level))
			ra, ba := register(t, p.na, 1<<20, vi.MemAttributes{})
			rb, bb := register(t, p.nb, 1<<20, allRights)
			for i, n := range []int{0, 1, 64, 1024, 1025, 65495, 65496, 200001, 1 << 20} {
				fill(ba, uint64(i))
				clear(bb)
				must(t, p.b.PostRecv(vi.NewRecv()))
				must(t, p.a.PostSend(vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, n/2), segment(ra, n/2, n-n/2)).WithImmediate(uint32(n))))
				got, err := waitRecv(t, p.b)
				if err != nil || got.Status()&vi.StatusOpMask != vi.StatusOpRemoteRDMAWrite ||
					got.ImmediateData != uint32(n) || int(got.Length) != n {
					t.Fatalf("length %d: %v, %v", n, got.Status(), err)
				}
				if !bytes.Equal(ba[:n], bb[:n]) || n < len(bb) && bb[n] != 0 {
					t.Fatalf("length %d: memory differs", n)
				}
				if _, err := waitSend(t, p.a); err != nil {
					t.Fatal(err)
				}
				if level == vi.UnreliableDelivery {
					continue
				}
				clear(ba)
				must(t, p.a.PostSend(vi.NewRDMARead(rb.Remote(0), segment(ra, 0, n/3), segment(ra, n/3, n-n/3))))
				if _, err := waitSend(t, p.a); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(ba[:n], bb[:n]) {
					t.Fatalf("length %d: what was read differs", n)
				}
			}
			p.na.noAsync(t)
			p.nb.noAsync(t)
		})
	}
}

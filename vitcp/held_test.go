package vitcp

import (
	"bytes"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// TestHeldReceives: each of several messages that arrive together goes to its own descriptor,
// whatever memory the descriptor has and whatever message came before.
func TestHeldReceives(t *testing.T) {
	for name, policy := range paths {
		for _, level := range levels {
			p := connectPair(t, Config{SameHost: policy}, withLevel(reliableAll, level))
			ra, ba := register(t, p.na, 4096, vi.MemAttributes{})
			fill(ba, 1)
			rb, bb := register(t, p.nb, 4096, allRights)
			guarded, gb := register(t, p.nb, 4096, vi.MemAttributes{Guarded: true})
			other, ob := register(t, p.nb, 4096, vi.MemAttributes{})
			recvs := []*vi.Descriptor{
				vi.NewRecv(segment(rb, 0, 100)),
				vi.NewRecv(segment(rb, 200, 10), segment(rb, 300, 90)),
				vi.NewRecv(segment(guarded, 0, 100)),
				vi.NewRecv(),
				vi.NewRecv(segment(rb, 400, 100)),
				vi.NewRecv(segment(other, 0, 0), segment(other, 0, 100)),
				vi.NewRecv(segment(other, 500, 100)), // consumed by an RDMA Write
				vi.NewRecv(segment(other, 200, 5), segment(other, 300, 95)),
			}
			if _, err := p.b.PostRecvs(recvs); err != nil {
				t.Fatal(err)
			}
			l := p.a.Link().(*link)
			testkit.Eventually(t, "credits", func() bool { return l.flow.credits.available() == len(recvs) })
			var sends []*vi.Descriptor
			for i := range recvs {
				switch i {
				case 3:
					sends = append(sends, vi.NewSend())
				case 6:
					sends = append(sends, vi.NewRDMAWrite(rb.Remote(1000), segment(ra, 50*i, 50)).WithImmediate(6))
				default:
					sends = append(sends, vi.NewSend(segment(ra, 50*i, 50)))
				}
			}
			if _, err := p.a.PostSends(sends); err != nil {
				t.Fatal(err)
			}
			for i := range recvs {
				if d, err := waitRecv(t, p.b); d != recvs[i] || err != nil {
					t.Fatalf("%s, %v, receive %d: %v", name, level, i, err)
				}
			}
			piece := func(i int) []byte { return ba[50*i:][:50] }
			for i, got := range [][]byte{
				bb[:50], append(bytes.Clone(bb[200:210]), bb[300:340]...), gb[:50], piece(3), bb[400:450],
				ob[:50], bb[1000:1050], append(bytes.Clone(ob[200:205]), ob[300:345]...),
			} {
				if !bytes.Equal(got, piece(i)) {
					t.Errorf("%s, %v: message %d is not where it belongs", name, level, i)
				}
			}
			if !bytes.Equal(ob[500:600], make([]byte, 100)) || !bytes.Equal(bb[50:100], make([]byte, 50)) {
				t.Errorf("%s, %v: memory was written to that no message was for", name, level)
			}
			p.na.noAsync(t)
			p.nb.noAsync(t)
		}
	}
}

// TestNoPinStays: the memory of a completed receive can be deregistered. This also holds if the
// receive completed with the end of a long message that was read into place.
func TestNoPinStays(t *testing.T) {
	for name, policy := range paths {
		p := connectPair(t, Config{SameHost: policy}, withLevel(reliableAll, vi.ReliableDelivery))
		ra, _ := register(t, p.na, 1<<20, vi.MemAttributes{})
		for _, n := range []int{8, 5000, 100_000, 1 << 20} {
			for _, write := range []bool{false, true} {
				rb, _ := register(t, p.nb, 1<<20, allRights)
				own, _ := register(t, p.nb, 64, vi.MemAttributes{})
				d := vi.NewSend(segment(ra, 0, n))
				if write {
					must(t, p.b.PostRecv(vi.NewRecv(segment(own, 0, 64))))
					d = vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, n)).WithImmediate(1)
				} else {
					must(t, p.b.PostRecv(vi.NewRecv(segment(rb, 0, n))))
				}
				must(t, p.a.PostSend(d))
				if _, err := waitRecv(t, p.b); err != nil {
					t.Fatalf("%s, %d bytes, write %t: %v", name, n, write, err)
				}
				gone := make(chan error, 2)
				go func() { gone <- p.nb.DeregisterMem(own); gone <- p.nb.DeregisterMem(rb) }()
				for range 2 {
					must(t, testkit.Await(t, "a region that is deregistered", gone))
				}
				waitSend(t, p.a)
			}
		}
	}
}

package vitcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"viaduct/internal/frameio"
	"viaduct/internal/testkit"
	"viaduct/samehost"
	"viaduct/vi"
)

// paths are the paths of a message to a VI on the same host.
var paths = map[string]samehost.Policy{"shared memory": samehost.Require, "TCP": samehost.Off}

// TestDirect: a message of a single short segment is posted, begun and sent in one step if no
// message is in progress. All other messages take the queue and the batch.
func TestDirect(t *testing.T) {
	const short = frameio.MaxHeader - 40
	for name, policy := range paths {
		for _, level := range levels {
			p := connectPair(t, Config{SameHost: policy}, withLevel(reliableAll, level))
			l := p.a.Link().(*link)
			if !l.c.InPlace() {
				t.Skip("SKIPPED: there is no fast path on this system")
			}
			ra, ba := register(t, p.na, 4096, vi.MemAttributes{})
			guarded, gb := register(t, p.na, 4096, vi.MemAttributes{Guarded: true})
			rb, bb := register(t, p.nb, 4096, allRights)
			for i, c := range []struct {
				what   string
				d      *vi.Descriptor
				direct bool
				from   []byte
			}{
				{"a Send", vi.NewSend(segment(ra, 0, 8)), true, ba[:8]},
				{"nothing", vi.NewSend(), true, nil},
				{"an empty segment", vi.NewSend(segment(ra, 0, 0)), true, nil},
				{"immediate data", vi.NewSend(segment(ra, 5, 100)).WithImmediate(7), true, ba[5:105]},
				{"as long as can be", vi.NewSend(segment(ra, 0, short)), true, ba[:short]},
				{"a byte more", vi.NewSend(segment(ra, 0, short+1)), false, ba[:short+1]},
				{"two segments", vi.NewSend(segment(ra, 0, 8), segment(ra, 8, 8)), false, ba[:16]},
				{"memory that may fault", vi.NewSend(segment(guarded, 0, 100)), true, gb[:100]},
				{"a Write", vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, 64)).WithImmediate(9), true, ba[:64]},
				{"a Send again", vi.NewSend(segment(ra, 9, 9)), true, ba[9:18]},
			} {
				what := fmt.Sprintf("%s, %v, %s", name, level, c.what)
				fill(ba, uint64(i))
				fill(gb, uint64(i))
				clear(bb)
				must(t, p.b.PostRecv(vi.NewRecv(segment(rb, 0, len(bb)))))
				testkit.Eventually(t, "a credit", func() bool { return l.flow.credits.available() > 0 })
				if got := l.SendOne(c.d); got != c.direct {
					t.Errorf("%s: posted directly: %t", what, got)
				}
				if !c.direct {
					must(t, p.a.PostSend(c.d))
				}
				if d, err := waitSend(t, p.a); d != c.d || err != nil {
					t.Errorf("%s: sent: %v", what, err)
				}
				d, err := waitRecv(t, p.b)
				if err != nil || int(d.Length) != len(c.from) || !bytes.Equal(bb[:len(c.from)], c.from) {
					t.Errorf("%s: %d bytes, %v", what, d.Length, err)
				}
				if imm := c.d.Control&vi.Immediate != 0; imm != (d.Status()&vi.StatusImmediate != 0) ||
					imm && d.ImmediateData != c.d.ImmediateData {
					t.Errorf("%s: immediate data %d, %v", what, d.ImmediateData, d.Status())
				}
			}
			p.na.noAsync(t)
			p.nb.noAsync(t)
		}
	}
}

// TestDirectNot: a message does not overtake the queue if it must wait, or follows a waiting
// message.
func TestDirectNot(t *testing.T) {
	p := connectPair(t, Config{}, withLevel(reliableAll, vi.ReliableDelivery))
	l := p.a.Link().(*link)
	if !l.c.InPlace() {
		t.Skip("SKIPPED: there is no fast path on this system")
	}
	ra, _ := register(t, p.na, 4096, vi.MemAttributes{})
	rb, _ := register(t, p.nb, 4096, allRights)
	if l.SendOne(vi.NewSend(segment(ra, 0, 8))) {
		t.Error("sent without a credit")
	}
	must(t, p.a.PostSend(vi.NewSend(segment(ra, 0, 8))))
	if l.SendOne(vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, 8))) {
		t.Error("a Write that needs no credit was sent before a Send that waits for one")
	}
	must(t, p.b.PostRecv(vi.NewRecv(segment(rb, 0, 8))))
	if _, err := waitSend(t, p.a); err != nil {
		t.Error(err)
	}
	if l.SendOne(vi.NewRDMARead(rb.Remote(0), segment(ra, 0, 8))) {
		t.Error("a Read")
	}
	must(t, p.a.Disconnect())
	if l.SendOne(vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, 8))) {
		t.Error("sent behind the end")
	}
}

// TestDirectInError: a descriptor with an error ends the connection, just as it does in the queue.
func TestDirectInError(t *testing.T) {
	for _, c := range []struct {
		what string
		d    func(*vi.Region) *vi.Descriptor
		want vi.Status
	}{
		{"memory that is not registered", func(r *vi.Region) *vi.Descriptor {
			s := segment(r, 0, 8)
			s.Handle++
			return vi.NewSend(s)
		}, vi.StatusProtectionError},
		{"memory behind the region", func(r *vi.Region) *vi.Descriptor {
			s := segment(r, 0, 8)
			s.Address += uint64(r.Len())
			return vi.NewSend(s)
		}, vi.StatusProtectionError},
		{"another length", func(r *vi.Region) *vi.Descriptor {
			d := vi.NewSend(segment(r, 0, 8))
			d.Length = 7
			return d
		}, vi.StatusLengthError},
		{"reserved bits", func(r *vi.Region) *vi.Descriptor {
			d := vi.NewSend(segment(r, 0, 8))
			d.Control |= 1 << 15
			return d
		}, vi.StatusFormatError},
	} {
		p := connectPair(t, Config{}, withLevel(reliableAll, vi.ReliableDelivery))
		ra, _ := register(t, p.na, 64, vi.MemAttributes{})
		rb, _ := register(t, p.nb, 64, vi.MemAttributes{})
		must(t, p.b.PostRecv(vi.NewRecv(segment(rb, 0, 64))))
		testkit.Eventually(t, "a credit", func() bool { return p.a.Link().(*link).flow.credits.available() > 0 })
		d := c.d(ra)
		must(t, p.a.PostSend(d))
		if got, _ := waitSend(t, p.a); got != d || got.Status()&c.want == 0 {
			t.Errorf("%s: %v", c.what, got.Status())
		}
		waitState(t, p.a, vi.Error)
		waitState(t, p.b, vi.Error)
		if got, _ := waitRecv(t, p.b); got.Status()&vi.StatusFlushed == 0 {
			t.Errorf("%s: the peer has received something: %v", c.what, got.Status())
		}
	}
}

// TestDirectAmong: messages of all kinds arrive and complete in posting order, although some of
// them bypass the queue, several goroutines post, and credits are scarce.
func TestDirectAmong(t *testing.T) {
	const each, posters = 3000, 2
	for name, policy := range paths {
		t.Run(name, func(t *testing.T) {
			p := connectPair(t, Config{SameHost: policy}, withLevel(reliableAll, vi.ReliableReception))
			ra, ba := register(t, p.na, 4096, vi.MemAttributes{})
			for i := range ba {
				ba[i] = byte(i)
			}
			rb, bb := register(t, p.nb, 4096, allRights)
			done := make(chan error, posters)
			for k := range posters {
				go func() {
					r := rand.New(rand.NewPCG(uint64(k), 1))
					for i := range each {
						n := r.IntN(32)
						d := vi.NewSend(segment(ra, n, n))
						switch r.IntN(8) {
						case 0:
							d = vi.NewSend(segment(ra, n, n), segment(ra, 2*n, 2000))
						case 1:
							d = vi.NewSend(segment(ra, n, 2000))
						}
						d.WithImmediate(uint32(k<<24 | i))
						for err := p.a.PostSend(d); err != nil; err = p.a.PostSend(d) {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			go func() {
				for range each * posters {
					p.a.SendWait(testContext(t))
				}
			}()
			for range 8 {
				must(t, p.b.PostRecv(vi.NewRecv(segment(rb, 0, len(bb)))))
			}
			var next [posters]int
			for range each * posters {
				d, err := waitRecv(t, p.b)
				if err != nil {
					t.Fatal(err)
				}
				k, i := d.ImmediateData>>24, int(d.ImmediateData&0xffffff)
				if i != next[k] {
					t.Fatalf("message %d of poster %d in place of %d", i, k, next[k])
				}
				next[k]++
				must(t, p.b.PostRecv(d))
			}
			for range posters {
				must(t, <-done)
			}
		})
	}
}

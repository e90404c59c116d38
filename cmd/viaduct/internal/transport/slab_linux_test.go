package transport

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"viaduct/cmd/viaduct/internal/msg"
)

// resident returns how many bytes of memory the process has.
func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return n * os.Getpagesize()
}

// TestReceiveMemory: connections with only short messages use little memory, although long messages
// are accepted. Several waves of connections use no more.
func TestReceiveMemory(t *testing.T) {
	const waves, conns, most = 3, 40, raceMemory * 64 << 20 // 16 x 1 MiB at each end would be 1280 MiB
	for _, scheme := range []string{"vitcp", "iwarp"} {
		t.Run(scheme, func(t *testing.T) {
			o := testOptions(t)
			disc := map[string]string{"vitcp": "/echo"}[scheme]
			u, tr := parse(t, scheme+"://127.0.0.1:0"+disc)
			l, err := tr.ListenMsg(u, o)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			u, _ = parse(t, u.WithPort(l.Addr()).String())
			var wg sync.WaitGroup
			defer wg.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			wg.Go(func() {
				for {
					c, err := l.Accept(ctx)
					if err != nil {
						return
					}
					wg.Go(func() {
						defer c.Close()
						for {
							m, err := c.Recv(ctx)
							if err != nil || c.Send(ctx, m) != nil {
								return
							}
						}
					})
				}
			})
			before := resident(t)
			for wave := range waves {
				var cs []msg.Conn
				for range conns {
					c, err := tr.DialMsg(ctx, u, o)
					if err != nil {
						t.Fatal(err)
					}
					cs = append(cs, c)
					for i := range 20 { // each receive once
						want := bytes.Repeat([]byte{byte(i)}, 1000)
						if err := c.Send(ctx, msg.Message{Data: want}); err != nil {
							t.Fatal(err)
						}
						if m, err := c.Recv(ctx); err != nil || !bytes.Equal(m.Data, want) {
							t.Fatal(len(m.Data), err)
						}
					}
				}
				if grown := resident(t) - before; grown > most {
					t.Fatalf("wave %d: %d connections take %d MiB", wave, conns, grown>>20)
				}
				for _, c := range cs {
					c.Close()
				}
			}
		})
	}
}

// TestSlabs: a slab keeps the bytes of posted receives. A slab frees the memory of long messages
// when all slabs together exceed slabBudget, and all memory when put back.
func TestSlabs(t *testing.T) {
	var p slabPool
	const size, count = 1 << 20, 4
	s, err := p.get(size, count)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		copy(s.at(i), bytes.Repeat([]byte{byte(i + 1)}, size))
		s.filled(i, size)
	}
	if n := p.dirty.Load(); n != size*count {
		t.Errorf("%d bytes are held", n)
	}
	s.repost(0) // within the budget
	if s.at(0)[size-1] != 1 {
		t.Error("given back too early")
	}
	p.dirty.Add(slabBudget)
	s.repost(1)
	if b := s.at(1); b[0] != 2 || b[slabKeep-1] != 2 || b[slabKeep] != 0 || b[size-1] != 0 {
		t.Error("not given back, or too much of it")
	}
	if s.at(2)[0] != 3 || s.at(2)[size-1] != 3 {
		t.Error("the receive behind it was given back too")
	}
	if n := p.dirty.Load() - slabBudget; n != size*(count-1)+slabKeep {
		t.Errorf("%d bytes are held", n)
	}
	s.put()
	if n := p.dirty.Load() - slabBudget; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	again, err := p.get(size, count)
	if err != nil {
		t.Fatal(err)
	}
	if &again.mem[0] != &s.mem[0] || again.mem[0] != 0 || again.mem[len(again.mem)-1] != 0 {
		t.Error("the memory is not used again, or is not clean")
	}
	copy(again.at(0), "new")
	again.filled(0, size)
	s.filled(1, size) // late calls for the former connection have no effect
	s.repost(0)
	s.put()
	if n := p.dirty.Load() - slabBudget; n != size || again.mem[0] != 'n' {
		t.Errorf("%d bytes are held, %q", n, again.mem[:3])
	}
}

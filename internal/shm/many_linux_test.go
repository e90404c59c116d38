package shm

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestThousandRings: 1000 connections do not take 1000 large rings. Busy connections have large
// rings, within the limit and only while they are busy. The others take only the pages that their
// few bytes touch.
func TestThousandRings(t *testing.T) {
	const conns, busy = 1000, 200
	before := Used()
	SetLimit(before + conns*first(DefaultRing)*4) // for both ends, and as much again for growth
	defer SetLimit(0)
	type connection struct {
		m, o *Memory
		fd   int
		p    *Producer
		q    *Consumer
	}
	list := make([]connection, conns)
	for i := range list {
		c := &list[i]
		var err error
		if c.m, c.fd, err = Create(DefaultRing); err != nil {
			t.Fatal(err)
		}
		if c.o, err = Open(c.fd, c.m.Ring()); err != nil {
			t.Fatal(err)
		}
		_, c.p = c.m.Ends(true)
		c.q, _ = c.o.Ends(false)
		c.p.Wake, c.q.Wake = func() {}, func() {}
	}
	defer func() {
		for _, c := range list {
			c.m.Close()
			c.o.Close()
			unix.Close(c.fd)
		}
		if Used() != before {
			t.Errorf("%d bytes are accounted for after the end", Used()-before)
		}
	}()
	state := func() (large int, memory int64) {
		for _, c := range list {
			if c.p.ring > FirstRing {
				large++
			}
			memory += resident(c.fd)
		}
		return large, memory
	}
	b := make([]byte, DefaultRing)
	pass := func(c *connection, n int) {
		for n > 0 {
			c.p.grow.since = time.Now() // makes the ring grow on slow machines too
			k, err := c.p.Write(b[:min(n, len(b))])
			if err != nil && err != ErrWouldBlock {
				t.Fatal(err)
			}
			n -= k
			for _, err = c.q.Read(b); err == nil; _, err = c.q.Read(b) {
			}
		}
	}
	for i := range list {
		pass(&list[i], 1000)
	}
	if large, memory := state(); large > 0 || memory > conns*32<<10 {
		t.Errorf("%d large rings, %d bytes of memory for a message by each", large, memory)
	}
	for i := range busy {
		pass(&list[i], 8*FirstRing)
	}
	large, memory := state()
	if large == 0 || large > busy {
		t.Errorf("%d large rings where %d connections are busy", large, busy)
	}
	if used, most := Used()-before, conns*first(DefaultRing)*4; used > most || memory > most/2 {
		t.Errorf("%d bytes are accounted for and %d used, of %d", used, memory, most)
	}
	t.Logf("%d large rings, %d MiB", large, memory>>20)
	shrinkCalm()
	shrinkCalm()
	if large, after := state(); large > 0 || Used() != before+2*conns*first(DefaultRing) ||
		after > busy*2*FirstRing+conns*32<<10 {
		t.Errorf("calm: %d large rings, %d bytes more are accounted for, %d of memory", large, Used()-before, after)
	}
}

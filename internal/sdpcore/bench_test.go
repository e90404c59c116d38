package sdpcore

import (
	"testing"

	"viaduct/internal/wire/sdpwire"
)

// benchEnd is one of two machines that exchange messages without a network.
type benchEnd struct {
	m    *Machine
	peer *benchEnd
	free [][]Action // memory for the actions of events, which may cause further events
	id   uint64
	stag uint32
}

func benchEnds(change func(*Params)) (a, b *benchEnd) {
	p := Params{RecvBufs: 16, RecvSize: 1000, PeerBufs: 16, PeerSize: 1000, MaxAdverts: 4,
		PeerMaxAdverts: 4, ORD: 4, SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: Infinite}
	change(&p)
	a, b = &benchEnd{m: New(p)}, &benchEnd{}
	p.Role = Accepting
	b.m = New(p)
	a.peer, b.peer = b, a
	return a, b
}

// run performs actions: it passes messages to the peer, and completes RDMA Reads at once. Then it
// keeps the memory of acts for room.
func (e *benchEnd) run(acts []Action) {
	for i := range acts {
		a := &acts[i]
		switch a.Op {
		case OpSend:
			if a.Adv != 0 {
				e.stag++
				a.Msg.STag, a.Msg.VA = e.stag, 0x10000
				e.m.Bind(a.Adv, e.stag)
			}
			msg := a.Msg
			e.peer.run(e.peer.m.Receive(0, &msg, a.STag, a.Invalidate, e.peer.room()))
		case OpRDMARead:
			e.run(e.m.ReadDone(0, e.room()))
		}
	}
	e.free = append(e.free, acts[:0])
}

// room returns memory for the actions of an event.
func (e *benchEnd) room() []Action {
	if n := len(e.free); n > 0 {
		r := e.free[n-1]
		e.free = e.free[:n-1]
		return r
	}
	return make([]Action, 0, 64)
}

func (e *benchEnd) write(n int) {
	e.id++
	e.run(e.m.Write(0, e.id, n, false, e.room()))
}

func (e *benchEnd) read(n int) {
	e.id++
	e.run(e.m.Read(0, e.id, n, false, e.room()))
}

// BenchmarkMachine measures one transfer, from the Write to the end of the peer's Read, by each
// mechanism.
func BenchmarkMachine(b *testing.B) {
	check := func(b *testing.B, ends ...*benchEnd) {
		for _, e := range ends {
			if e.m.Err() != nil || e.m.SendQueue() != 0 {
				b.Fatal(e.m.String())
			}
		}
	}
	b.Run("straight", func(b *testing.B) {
		x, y := benchEnds(func(*Params) {})
		var msgs [3]sdpwire.Message
		for b.Loop() {
			if x.m.Straight(0, 100, msgs[:]) != 1 {
				b.Fatal(x.m.String())
			}
			y.run(y.m.Receive(0, &msgs[0], 0, false, y.room()))
			y.read(100)
		}
		check(b, x, y)
	})
	for _, c := range []struct {
		name   string
		n      int
		change func(*Params)
	}{
		{"Bcopy", 100, func(*Params) {}},
		{"Bcopy of 5 messages", 4500, func(*Params) {}},
		{"Read Zcopy", 5000, func(p *Params) { p.SendThreshold = 2000 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			x, y := benchEnds(c.change)
			for b.Loop() {
				y.read(c.n)
				x.write(c.n)
				for y.m.Held() > 0 {
					y.read(c.n)
				}
			}
			check(b, x, y)
		})
	}
}

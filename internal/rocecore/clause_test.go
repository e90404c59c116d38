package rocecore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/wire/ib"
)

// connection returns a connection of MTU 256 whose host has one region of 4096 bytes. The first PSN
// of the peer is 100, the connection's own first PSN is 200. change may modify the parameters, or
// is nil.
func connection(change func(*Config, *SendConfig)) (*Connection, *fakeHost) {
	h := &fakeHost{mem: make([]byte, 4096), rights: RemoteRead | RemoteWrite | RemoteAtomic}
	for i := range h.mem {
		h.mem[i] = byte(i)
	}
	cfg := Config{Transport: ib.RC, MTU: 256, PeerQPN: 7, PSN: 100, Access: h.rights, MaxServed: 2, RNRTimer: 12}
	send := SendConfig{PSN: 200, MaxReads: 2, Timeout: 8 * time.Millisecond, Retries: 2, RNRRetry: 2}
	if change != nil {
		change(&cfg, &send)
	}
	c := New(h, cfg)
	c.StartSending(send)
	return c, h
}

func packet(op ib.Opcode, psn ib.PSN, payload int) *ib.Packet {
	p := &ib.Packet{BTH: ib.BTH{Opcode: op, PKey: ib.DefaultPKey, QPN: 9, AckReq: true, PSN: psn},
		Payload: make([]byte, payload)}
	for i := range p.Payload {
		p.Payload[i] = 0xee
	}
	p.RETH = ib.RETH{VA: base, RKey: key, Length: uint32(payload)}
	p.Atomic = ib.AtomicETH{VA: base, RKey: key, SwapAdd: 1}
	p.Inv = key
	return p
}

func (h *fakeHost) post(id uint64, n int) {
	h.receives = append(h.receives, Receive{ID: id, Buf: make(slice, n)})
}

// answers describes the responses that c sends, separated by semicolons.
func answers(t *testing.T, c *Connection) (s string) {
	t.Helper()
	for _, p := range packets(t, 0, c, 200) {
		s += fmt.Sprintf("%v %d", p.Opcode, p.PSN)
		if p.Opcode == ib.Acknowledge {
			s = s[:len(s)-len(fmt.Sprintf("%v %d", p.Opcode, p.PSN))] + fmt.Sprintf("%v %d", p.AETH.Syndrome, p.PSN)
		}
		s += "; "
	}
	return s
}

// TestROCE_RESP checks the answers of a responder to packets, one case a line.
func TestROCE_RESP(t *testing.T) {
	with := func(p *ib.Packet, f func(*ib.Packet)) *ib.Packet { f(p); return p }
	unasked := func(p *ib.Packet) *ib.Packet { p.AckReq = false; return p }
	for _, c := range []struct {
		row, name string
		change    func(*Config, *SendConfig)
		receives  []int
		in        []*ib.Packet
		want      string
		touched   int    // number of writes to the region
		got       string // statuses of the completed receives
	}{
		{row: "ROCE-RESP-1", name: "send", receives: []int{10, 10}, in: []*ib.Packet{packet(ib.SendOnly, 100, 5)}, want: "ACK 100; ", got: "[ok 5]"},
		{row: "ROCE-RESP-2", name: "gap", receives: []int{10, 10}, in: []*ib.Packet{packet(ib.SendOnly, 102, 5), packet(ib.SendOnly, 103, 5)}, want: "NAK PSN sequence error 100; ", got: "[]"},
		{row: "ROCE-RESP-2", name: "gap twice", receives: []int{10, 10}, in: []*ib.Packet{packet(ib.SendOnly, 101, 5), packet(ib.SendOnly, 100, 5), packet(ib.SendOnly, 103, 1)}, want: "NAK PSN sequence error 100; ACK 100; NAK PSN sequence error 101; ", got: "[ok 5]"},
		{row: "ROCE-RESP-14", name: "packet that ends a gap, without a request for an acknowledgement", receives: []int{10, 10},
			in:   []*ib.Packet{unasked(packet(ib.SendOnly, 101, 5)), unasked(packet(ib.SendOnly, 100, 5)), unasked(packet(ib.SendOnly, 101, 5))},
			want: "NAK PSN sequence error 100; ACK 100; ", got: "[ok 5 ok 5]"},
		{row: "ROCE-RESP-3", name: "send again", receives: []int{10, 10}, in: []*ib.Packet{packet(ib.SendOnly, 100, 5), packet(ib.SendOnly, 101, 5), packet(ib.SendOnly, 100, 5)}, want: "ACK 101; ", got: "[ok 5 ok 5]"},
		{row: "ROCE-RESP-3", name: "write again", in: []*ib.Packet{packet(ib.WriteOnly, 100, 8), packet(ib.WriteOnly, 100, 8)}, want: "ACK 100; ", touched: 1, got: "[]"},
		{row: "ROCE-RESP-3", name: "write again after a NAK", in: []*ib.Packet{packet(ib.WriteOnly, 100, 8), packet(ib.WriteOnly, 102, 8), packet(ib.WriteOnly, 100, 8)},
			want: "ACK 100; NAK PSN sequence error 101; ACK 100; ", touched: 1, got: "[]"},
		{row: "ROCE-RESP-4", name: "again, and then what the peer may ask beyond it", change: func(c *Config, _ *SendConfig) { c.MaxServed = 1 }, in: []*ib.Packet{
			packet(ib.ReadRequest, 100, 0), packet(ib.ReadRequest, 100, 0), packet(ib.FetchAdd, 101, 0),
			packet(ib.FetchAdd, 102, 0)},
			want: "RC Atomic Acknowledge 102; ", touched: 2, got: "[]"},
		//
		{row: "ROCE-RESP-4", name: "rest of a read", in: []*ib.Packet{
			with(packet(ib.ReadRequest, 100, 0), func(p *ib.Packet) { p.RETH.Length = 600 }),
			packet(ib.WriteOnly, 103, 8),
			with(packet(ib.ReadRequest, 101, 0), func(p *ib.Packet) { p.RETH.VA, p.RETH.Length = base+256, 600-256 })},
			want: "RC RDMA Read Response Middle 101; RC RDMA Read Response Last 102; ACK 103; ", touched: 1, got: "[]"},
		{row: "ROCE-RESP-4", name: "more than the rest", in: []*ib.Packet{
			with(packet(ib.ReadRequest, 100, 0), func(p *ib.Packet) { p.RETH.Length = 10 }),
			with(packet(ib.ReadRequest, 100, 0), func(p *ib.Packet) { p.RETH.Length = 11 })},
			want: "RC RDMA Read Response Only 100; ", got: "[]"},
		{row: "ROCE-RESP-5", name: "atomic again", in: []*ib.Packet{packet(ib.FetchAdd, 100, 0), packet(ib.FetchAdd, 100, 0)}, want: "RC Atomic Acknowledge 100; ", touched: 1, got: "[]"},
		{row: "ROCE-RESP-6", name: "forgotten", in: []*ib.Packet{packet(ib.FetchAdd, 100, 0), packet(ib.FetchAdd, 101, 0), packet(ib.FetchAdd, 102, 0), packet(ib.FetchAdd, 100, 0)},
			want: "RC Atomic Acknowledge 101; RC Atomic Acknowledge 102; ", touched: 3, got: "[]"},
		{row: "ROCE-RESP-7", name: "middle without first", receives: []int{999}, in: []*ib.Packet{packet(ib.SendMiddle, 100, 256)}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-RESP-7", name: "write within a send", receives: []int{999}, in: []*ib.Packet{packet(ib.SendFirst, 100, 256), packet(ib.WriteLast, 101, 5)}, want: "ACK 100; NAK invalid request 101; ", got: "[remote invalid request 0]"},
		{row: "ROCE-RESP-8", name: "short first", receives: []int{999}, in: []*ib.Packet{packet(ib.SendFirst, 100, 255)}, want: "NAK invalid request 100; ", got: "[remote invalid request 0]"},
		{row: "ROCE-RESP-8", name: "empty last", receives: []int{999}, in: []*ib.Packet{packet(ib.SendFirst, 100, 256), packet(ib.SendLast, 101, 0)}, want: "ACK 100; NAK invalid request 101; ", got: "[remote invalid request 0]"},
		{row: "ROCE-RESP-8", name: "long only", receives: []int{999}, in: []*ib.Packet{packet(ib.SendOnly, 100, 257)}, want: "NAK invalid request 100; ", got: "[remote invalid request 0]"},
		{row: "ROCE-RESP-8", name: "write shorter than its header says", in: []*ib.Packet{with(packet(ib.WriteOnly, 100, 8), func(p *ib.Packet) { p.RETH.Length = 9 })}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-RESP-8", name: "write longer than its header says", in: []*ib.Packet{with(packet(ib.WriteOnly, 100, 8), func(p *ib.Packet) { p.RETH.Length = 7 })}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-RESP-9", name: "no receive", in: []*ib.Packet{packet(ib.SendOnly, 100, 5), packet(ib.SendOnly, 101, 5)}, want: "RNR NAK 640µs 100; ", got: "[]"},
		{row: "ROCE-RESP-9", name: "no receive for a write", in: []*ib.Packet{packet(ib.WriteOnlyImm, 100, 5)}, want: "RNR NAK 640µs 100; ", got: "[]"},
		{row: "ROCE-RESP-10", name: "key", in: []*ib.Packet{with(packet(ib.WriteOnly, 100, 8), func(p *ib.Packet) { p.RETH.RKey++ })}, want: "NAK remote access error 100; ", got: "[]"},
		{row: "ROCE-RESP-10", name: "bounds", in: []*ib.Packet{with(packet(ib.WriteFirst, 100, 256), func(p *ib.Packet) { p.RETH.Length = 4097 })}, want: "NAK remote access error 100; ", got: "[]"},
		{row: "ROCE-RESP-10", name: "bounds that wrap", in: []*ib.Packet{with(packet(ib.WriteOnly, 100, 8), func(p *ib.Packet) { p.RETH.VA = 1<<64 - 1 })}, want: "NAK remote access error 100; ", got: "[]"},
		{row: "ROCE-RESP-10", name: "bounds of a read", in: []*ib.Packet{with(packet(ib.ReadRequest, 100, 0), func(p *ib.Packet) { p.RETH.Length = 1 << 31 })}, want: "NAK remote access error 100; ", got: "[]"},
		{row: "ROCE-RESP-10", name: "right of the queue pair", change: func(c *Config, _ *SendConfig) { c.Access = RemoteRead }, in: []*ib.Packet{packet(ib.WriteOnly, 100, 8)}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-RESP-11", name: "nothing", in: []*ib.Packet{with(packet(ib.WriteOnly, 100, 0), func(p *ib.Packet) { p.RETH.RKey = 0 }), with(packet(ib.ReadRequest, 101, 0), func(p *ib.Packet) { p.RETH.RKey = 0 })},
			want: "ACK 100; RC RDMA Read Response Only 101; ", got: "[]"},
		{row: "ROCE-RESP-12", name: "long message", receives: []int{300}, in: []*ib.Packet{packet(ib.SendFirst, 100, 256), packet(ib.SendLast, 101, 50)}, want: "ACK 100; NAK invalid request 101; ", got: "[local length error 0]"},
		{row: "ROCE-RESP-14", name: "not asked for", receives: []int{10}, in: []*ib.Packet{unasked(packet(ib.SendOnly, 100, 5))}, want: "", got: "[ok 5]"},
		{row: "ROCE-RESP-16", name: "after a NAK", receives: []int{10}, in: []*ib.Packet{packet(ib.SendLast, 100, 5), packet(ib.SendOnly, 100, 5)}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-RESP-17", name: "misaligned", in: []*ib.Packet{with(packet(ib.FetchAdd, 100, 0), func(p *ib.Packet) { p.Atomic.VA += 4 })}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-RESP-17", name: "key", in: []*ib.Packet{with(packet(ib.CompareSwap, 100, 0), func(p *ib.Packet) { p.Atomic.RKey++ })}, want: "NAK remote access error 100; ", got: "[]"},
		{row: "ROCE-RESP-18", name: "immediate data", receives: []int{0}, in: []*ib.Packet{packet(ib.WriteOnlyImm, 100, 200)}, want: "ACK 100; ", touched: 1, got: "[ok 200]"},
		{row: "ROCE-RESP-19", name: "invalidate", receives: []int{10, 10}, in: []*ib.Packet{packet(ib.SendOnlyInv, 100, 5), packet(ib.WriteOnly, 101, 8)}, want: "ACK 100; NAK remote access error 101; ", got: "[ok 5]"},
		//
		{row: "ROCE-RESP-19", name: "invalidate nothing", receives: []int{10, 10}, in: []*ib.Packet{with(packet(ib.SendOnlyInv, 100, 5), func(p *ib.Packet) { p.Inv++ })}, want: "NAK remote access error 100; ", got: "[remote invalid request 0]"},
		{row: "ROCE-RESP-20", name: "none", change: func(c *Config, _ *SendConfig) { c.MaxServed = 0 }, in: []*ib.Packet{packet(ib.ReadRequest, 100, 0)}, want: "NAK invalid request 100; ", got: "[]"},
		{row: "ROCE-BTH-4", name: "partition", receives: []int{10}, in: []*ib.Packet{with(packet(ib.SendOnly, 100, 5), func(p *ib.Packet) { p.PKey = 0x8001 })}, want: "", got: "[]"},
		{row: "ROCE-OP-3", name: "transport", receives: []int{10}, in: []*ib.Packet{packet(ib.SendOnly.On(ib.UC), 100, 5)}, want: "", got: "[]"},
	} {
		t.Run(c.row+" "+c.name, func(t *testing.T) {
			conn, h := connection(c.change)
			for i, n := range c.receives {
				h.post(uint64(i), n)
			}
			before := bytes.Clone(h.mem)
			for _, p := range c.in {
				conn.Receive(0, p)
			}
			if s := answers(t, conn); s != c.want {
				t.Errorf("answered %q, not %q", s, c.want)
			}
			if h.touched != c.touched || (c.touched == 0) != bytes.Equal(before, h.mem) {
				t.Errorf("touched %d times, not %d", h.touched, c.touched)
			}
			var got []any
			for _, g := range h.got {
				got = append(got, g.a.Status, g.a.Len)
			}
			if s := fmt.Sprint(got); s != c.got {
				t.Errorf("received %s, not %s", s, c.got)
			}
		})
	}
	t.Run("ROCE-RESP-13", func(t *testing.T) {
		c, h := connection(nil)
		h.post(0, 999)
		var msns []uint32
		for _, p := range []*ib.Packet{packet(ib.SendFirst, 100, 256), packet(ib.SendLast, 101, 1), packet(ib.ReadRequest, 102, 0), packet(ib.FetchAdd, 103, 0)} {
			c.Receive(0, p)
			for _, a := range packets(t, 0, c, 9) {
				msns = append(msns, a.AETH.MSN)
			}
		}
		if fmt.Sprint(msns) != "[0 1 2 3]" {
			t.Error(msns)
		}
	})
	t.Run("ROCE-RESP-15 the same requests again and again", func(t *testing.T) { // [ROCE-NET-8]
		c, _ := connection(nil)
		long := packet(ib.ReadRequest, 101, 0)
		long.RETH.Length = 600
		for range 1000 { // while nothing is sent
			for _, p := range []*ib.Packet{packet(ib.WriteOnly, 100, 8), long, packet(ib.FetchAdd, 104, 0)} {
				c.Receive(0, p)
			}
		}
		if n := c.resp.responses.len(); n > 4 {
			t.Errorf("%d responses wait to be sent", n)
		}
	})
	t.Run("ROCE-RESP-10 memory that goes", func(t *testing.T) {
		c, h := connection(nil)
		p := packet(ib.ReadRequest, 100, 0)
		p.RETH.Length = 600
		c.Receive(0, p)
		packets(t, 0, c, 1)
		h.rights = 0
		if s := answers(t, c); s != "NAK remote access error 101; " || !c.Failed() {
			t.Error(s)
		}
	})
}

func ack(s ib.Syndrome, psn ib.PSN) *ib.Packet {
	return &ib.Packet{BTH: ib.BTH{Opcode: ib.Acknowledge, PKey: ib.DefaultPKey, PSN: psn}, AETH: ib.AETH{Syndrome: s}}
}

func send(id uint64, n int) *Request { return &Request{ID: id, Buf: make(slice, n)} }

func read(id uint64, n int) *Request {
	return &Request{ID: id, Op: Read, Buf: make(slice, n), Remote: Place{base, key}}
}

// sent describes the requests that c sends, at most limit.
func sent(t *testing.T, now Time, c *Connection, limit int) (s string) {
	t.Helper()
	for _, p := range packets(t, now, c, limit) {
		s += fmt.Sprintf("%v %d", p.Opcode.String()[3:], p.PSN)
		if p.Opcode.Kind() == ib.Read {
			s += fmt.Sprintf(" +%d,%d", p.RETH.VA-base, p.RETH.Length)
		}
		if p.AckReq {
			s += " A"
		}
		if p.Solicited {
			s += " S"
		}
		s += "; "
	}
	return s
}

func (h *fakeHost) statuses() (s string) {
	for _, d := range h.done {
		s += fmt.Sprintf("%d %v; ", d.id, d.c.Status)
	}
	return s
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, not %q", what, got, want)
	}
}

func TestROCE_REQ(t *testing.T) {
	t.Run("ROCE-REQ-1", func(t *testing.T) { // [ROCE-REQ-2] [ROCE-REQ-3]
		for n, want := range map[int]string{0: "RDMA Write Only 200 A; ", 256: "RDMA Write Only 200 A; ", 257: "RDMA Write First 200; RDMA Write Last 201 A; ", 768: "RDMA Write First 200; RDMA Write Middle 201; RDMA Write Last 202 A; "} {
			c, _ := connection(nil)
			r := &Request{Op: Write, Buf: make(slice, n), Remote: Place{base + 5, key}}
			c.Post(r)
			ps := packets(t, 0, c, 9)
			if p := ps[0]; p.RETH != (ib.RETH{VA: base + 5, RKey: key, Length: uint32(n)}) || p.QPN != 7 {
				t.Errorf("%+v", p)
			}
			c, _ = connection(nil)
			c.Post(r)
			expect(t, fmt.Sprint(n), sent(t, 0, c, 9), want)
		}
	})
	t.Run("ROCE-REQ-2", func(t *testing.T) {
		c, _ := connection(func(_ *Config, s *SendConfig) { s.PSN = 0xffffff })
		c.Post(read(0, 600))
		c.Post(send(1, 1))
		expect(t, "read", sent(t, 0, c, 9), "RDMA Read Request 16777215 +0,600 A; Send Only 2 A; ")
	})
	t.Run("ROCE-REQ-4", func(t *testing.T) { // the last packet of a full window requests an acknowledgement
		c, _ := connection(func(_ *Config, s *SendConfig) { s.Window = 3 })
		c.Post(send(0, 256*5))
		expect(t, "window of 3", sent(t, 0, c, 9), "Send First 200 A; Send Middle 201 A; Send Middle 202 A; ")
		c.Receive(0, ack(ib.ACK, 201))
		expect(t, "two more", sent(t, 0, c, 9), "Send Middle 203 A; Send Last 204 A; ")
	})
	t.Run("ROCE-REQ-5", func(t *testing.T) {
		c, _ := connection(nil)
		c.Post(send(0, 256*500))
		if n := len(packets(t, 0, c, 1000)); n != 128 {
			t.Errorf("%d packets", n)
		}
	})
	t.Run("ROCE-REQ-6", func(t *testing.T) {
		c, _ := connection(nil)
		for i := range 3 {
			c.Post(read(uint64(i), 1))
		}
		expect(t, "two", sent(t, 0, c, 9), "RDMA Read Request 200 +0,1 A; RDMA Read Request 201 +0,1 A; ")
		c.Receive(0, &ib.Packet{BTH: ib.BTH{Opcode: ib.ReadResponseOnly, PKey: ib.DefaultPKey, PSN: 200},
			AETH: ib.AETH{Syndrome: ib.ACK}, Payload: []byte{1}})
		expect(t, "the third", sent(t, 0, c, 9), "RDMA Read Request 202 +0,1 A; ")
	})
	t.Run("ROCE-REQ-7", func(t *testing.T) {
		c, _ := connection(nil)
		c.Post(read(0, 1))
		c.Post(&Request{ID: 1, Fence: true})
		expect(t, "held", sent(t, 0, c, 9), "RDMA Read Request 200 +0,1 A; ")
		c.Receive(0, &ib.Packet{BTH: ib.BTH{Opcode: ib.ReadResponseOnly, PKey: ib.DefaultPKey, PSN: 200},
			AETH: ib.AETH{Syndrome: ib.ACK}, Payload: []byte{1}})
		expect(t, "free", sent(t, 0, c, 9), "Send Only 201 A; ")
	})
	t.Run("ROCE-REQ-8", func(t *testing.T) {
		c, _ := connection(nil)
		for _, r := range []*Request{{Op: Send}, {Op: Write}, {Op: Write, HasImm: true}} {
			r.Solicited = true
			c.Post(r)
		}
		expect(t, "solicited", sent(t, 0, c, 9),
			"Send Only 200 A S; RDMA Write Only 201 A; RDMA Write Only with Immediate 202 A S; ")
	})
	t.Run("ROCE-REQ-9", func(t *testing.T) { // a timeout of 8 ms, two retransmissions, failure after 24 ms
		for name, r := range map[string]*Request{"send": send(0, 600), "read": read(0, 600)} {
			c, h := connection(nil)
			c.Post(r)
			c.Post(send(1, 1))
			var now Time
			times := ""
			for len(h.failed) == 0 {
				if s := sent(t, now, c, 99); s != "" {
					times += fmt.Sprint(now, " ")
				}
				at, ok := c.Deadline()
				if !ok || at <= now && now > 0 {
					t.Fatalf("%s: at %v the deadline is %v", name, now, at)
				}
				now = at
				c.Tick(now)
			}
			if now != 24*time.Millisecond || times != "0s 8ms 16ms " {
				t.Errorf("%s: at %v, sent at %s", name, now, times)
			}
			expect(t, name, h.statuses(), "0 retry exceeded; 1 flushed; ")
		}
		c, _ := connection(func(_ *Config, s *SendConfig) { s.Timeout = 0 })
		c.Post(send(0, 1))
		sent(t, 0, c, 9)
		for now := Time(0); now < time.Hour; {
			at, ok := c.Deadline()
			if !ok || c.Failed() {
				t.Fatal("no end of a wait for ever")
			}
			now = at
			c.Tick(now)
		}
	})
	t.Run("ROCE-REQ-10", func(t *testing.T) {
		c, h := connection(nil)
		c.Post(send(0, 256*9))
		now := Time(0)
		for i := range 8 {
			sent(t, now, c, 1)
			now += 8 * time.Millisecond
			c.Tick(now)
			sent(t, now, c, 1)
			c.Receive(now, ack(ib.ACK, ib.PSN(200+i)))
		}
		if len(h.failed) > 0 {
			t.Error(h.failed)
		}
	})
	t.Run("ROCE-REQ-11", func(t *testing.T) {
		c, h := connection(nil)
		for i := range 4 {
			c.Post(send(uint64(i), 1))
		}
		sent(t, 0, c, 9)
		c.Receive(0, ack(ib.NAKSequence, 202))
		c.Receive(0, ack(ib.NAKSequence, 202)) // a NAK that the network duplicated
		expect(t, "done", h.statuses(), "0 ok; 1 ok; ")
		expect(t, "again", sent(t, 0, c, 9), "Send Only 202 A; Send Only 203 A; ")
	})
	t.Run("ROCE-REQ-12", func(t *testing.T) {
		c, h := connection(nil)
		c.Post(send(0, 1))
		now := Time(0)
		for range 2 {
			expect(t, "sent", sent(t, now, c, 9), "Send Only 200 A; ")
			c.Receive(now, ack(ib.RNR(12), 200))
			expect(t, "waits", sent(t, now, c, 9), "")
			at, ok := c.Deadline()
			if !ok || at != now+640*time.Microsecond {
				t.Errorf("until %v, not %v", at, now+640*time.Microsecond)
			}
			c.Tick(at - 1)
			expect(t, "too soon", sent(t, at-1, c, 9), "")
			now = at
			c.Tick(now)
		}
		sent(t, now, c, 9)
		c.Receive(now, ack(ib.RNR(12), 200))
		expect(t, "end", h.statuses(), "0 RNR retry exceeded; ")
		c, h = connection(func(_ *Config, s *SendConfig) { s.RNRRetry = RNRForever })
		c.Post(send(0, 1))
		for range 1000 {
			sent(t, now, c, 9)
			c.Receive(now, ack(ib.RNR(12), 200))
			now, _ = c.Deadline()
			c.Tick(now)
		}
		expect(t, "for ever", h.statuses(), "")
	})
	t.Run("ROCE-REQ-13", func(t *testing.T) {
		for s, want := range map[ib.Syndrome]string{ib.NAKInvalidRequest: "remote invalid request", ib.NAKRemoteAccess: "remote access error", ib.NAKRemoteOp: "remote operation error"} {
			c, h := connection(nil)
			for i := range 3 {
				c.Post(send(uint64(i), 1))
			}
			sent(t, 0, c, 9)
			c.Receive(0, ack(s, 201))
			expect(t, want, h.statuses(), "0 ok; 1 "+want+"; 2 flushed; ")
			c.Post(send(3, 1))
			expect(t, "after", h.statuses(), "0 ok; 1 "+want+"; 2 flushed; 3 flushed; ")
		}
	})
	t.Run("ROCE-REQ-14", func(t *testing.T) {
		c, _ := connection(nil)
		c.Post(read(0, 600))
		sent(t, 0, c, 9)
		c.Receive(0, answer(ib.ReadResponseFirst, 200, 256))
		c.Tick(time.Hour)
		expect(t, "rest", sent(t, time.Hour, c, 9), "RDMA Read Request 201 +256,344 A; ")
	})
	t.Run("ROCE-REQ-16", func(t *testing.T) {
		c, _ := connection(nil)
		c.Post(send(0, 256*1000))
		sent(t, 0, c, 500)
		c.Receive(0, ack(ib.NAKSequence, 210))
		if n := len(packets(t, 0, c, 500)); n != 64 {
			t.Errorf("%d packets after a loss", n)
		}
		c.Receive(0, ack(ib.NAKSequence, 220)) // a loss in the same window
		if n := len(packets(t, 0, c, 500)); n != 64 {
			t.Errorf("%d packets after two losses of one window", n)
		}
	})
	t.Run("probe", func(t *testing.T) { // a probe reveals the loss of the last packet long before the timeout
		c, _ := connection(func(_ *Config, s *SendConfig) { s.Timeout = time.Second })
		c.Post(send(0, 1))
		sent(t, 0, c, 9)
		c.Receive(300*time.Microsecond, ack(ib.ACK, 200))
		c.Post(send(1, 1))
		sent(t, time.Millisecond, c, 9)
		at, ok := c.Deadline()
		if !ok || at > 4*time.Millisecond {
			t.Fatalf("probe at %v", at)
		}
		c.Tick(at)
		expect(t, "probe", sent(t, at, c, 9), "Send Only 201 A; ")
	})
	t.Run("local memory", func(t *testing.T) {
		c, h := connection(nil)
		c.Post(send(0, 1))
		c.Post(&Request{ID: 1, Buf: gone(5)})
		c.Post(send(2, 1))
		expect(t, "sent", sent(t, 0, c, 9), "Send Only 200 A; ")
		expect(t, "not yet", h.statuses(), "")
		c.Receive(0, ack(ib.ACK, 200))
		expect(t, "done", h.statuses(), "0 ok; 1 local protection error; 2 flushed; ")
	})
}

func answer(op ib.Opcode, psn ib.PSN, n int) *ib.Packet {
	return &ib.Packet{BTH: ib.BTH{Opcode: op, PKey: ib.DefaultPKey, PSN: psn},
		AETH: ib.AETH{Syndrome: ib.ACK}, Payload: make([]byte, n), AtomicAck: 77}
}

func TestROCE_COMP(t *testing.T) {
	t.Run("ROCE-COMP-1", func(t *testing.T) {
		c, h := connection(nil)
		for i := range 3 {
			c.Post(send(uint64(i), 300))
		}
		sent(t, 0, c, 9)
		c.Receive(0, ack(0, 204)) // first packet of the third request; its credits are ignored
		expect(t, "done", h.statuses(), "0 ok; 1 ok; ")
	})
	t.Run("ROCE-COMP-2", func(t *testing.T) {
		c, h := connection(nil)
		c.Post(read(0, 1))
		c.Post(send(1, 1))
		sent(t, 0, c, 9)
		c.Receive(0, ack(ib.ACK, 201))
		expect(t, "done", h.statuses(), "")
		expect(t, "again", sent(t, 0, c, 9), "RDMA Read Request 200 +0,1 A; Send Only 201 A; ")
	})
	t.Run("ROCE-COMP-3", func(t *testing.T) {
		c, h := connection(nil)
		c.Post(send(0, 1))
		c.Post(send(1, 1))
		packets(t, 0, c, 1)
		for _, psn := range []ib.PSN{199, 201, 0, 0x800000, 0xffffff} {
			for _, s := range []ib.Syndrome{ib.ACK, ib.NAKRemoteAccess, ib.NAKSequence, ib.RNR(1), 0x7f} {
				c.Receive(0, ack(s, psn))
			}
			c.Receive(0, answer(ib.ReadResponseOnly, psn, 8))
			c.Receive(0, answer(ib.AtomicAcknowledge, psn, 0))
		}
		expect(t, "done", h.statuses(), "")
		expect(t, "the rest", sent(t, 0, c, 9), "Send Only 201 A; ")
	})
	t.Run("ROCE-COMP-4", func(t *testing.T) {
		for name, bad := range map[string]*ib.Packet{
			"short": answer(ib.ReadResponseFirst, 200, 255), "long": answer(ib.ReadResponseFirst, 200, 257), "only": answer(ib.ReadResponseOnly, 200, 256),
			"middle": answer(ib.ReadResponseMiddle, 200, 256), "last": answer(ib.ReadResponseLast, 200, 256), "atomic": answer(ib.AtomicAcknowledge, 200, 0),
		} {
			c, h := connection(nil)
			c.Post(read(0, 600))
			sent(t, 0, c, 9)
			c.Receive(0, bad)
			expect(t, name, h.statuses(), "0 bad response; ")
		}
		c, h := connection(nil)
		c.Post(read(0, 600))
		sent(t, 0, c, 9)
		c.Receive(0, answer(ib.ReadResponseMiddle, 201, 256)) // the first packet was lost
		expect(t, "again", sent(t, 0, c, 9), "RDMA Read Request 200 +0,600 A; ")
		for i, op := range []ib.Opcode{ib.ReadResponseFirst, ib.ReadResponseMiddle, ib.ReadResponseLast} {
			c.Receive(0, answer(op, ib.PSN(200+i), min(256, 600-256*i)))
		}
		expect(t, "done", h.statuses(), "0 ok; ")
	})
	t.Run("ROCE-COMP-5", func(t *testing.T) {
		c, h := connection(nil)
		b := make(slice, 8)
		c.Post(&Request{Op: CompareSwap, Buf: b, Remote: Place{base, key}})
		expect(t, "sent", sent(t, 0, c, 9), "Compare and Swap 200 A; ")
		c.Receive(0, answer(ib.AtomicAcknowledge, 200, 0))
		if len(h.done) != 1 || h.done[0].c.Value != 77 || b[0]+b[7] != 77 {
			t.Errorf("%+v, %v", h.done, b)
		}
	})
	t.Run("ROCE-COMP-6", func(t *testing.T) {
		c, h := connection(nil)
		c.Post(send(0, 1))
		c.Post(read(1, 1))
		sent(t, 0, c, 9)
		c.Receive(0, answer(ib.ReadResponseOnly, 201, 1))
		expect(t, "done", h.statuses(), "0 ok; 1 ok; ")
	})
}

func TestROCE_UC(t *testing.T) {
	uc := func(c *Config, _ *SendConfig) { c.Transport = ib.UC }
	p := func(op ib.Opcode, psn ib.PSN, n int) *ib.Packet { return packet(op.On(ib.UC), psn, n) }
	t.Run("ROCE-UC-5", func(t *testing.T) {
		for name, bad := range map[string]*ib.Packet{"no receive": p(ib.SendOnly, 100, 5), "key": p(ib.WriteOnly, 100, 8), "length": p(ib.SendFirst, 100, 5)} {
			c, h := connection(uc)
			if name != "no receive" {
				h.post(0, 999)
			}
			if name == "key" {
				bad.RETH.RKey++
			}
			c.Receive(0, bad)
			if h.post(1, 999); answers(t, c) != "" || len(h.got) != 0 || h.touched != 0 || c.Failed() {
				t.Errorf("%s: %+v", name, h)
			}
			c.Receive(0, p(ib.SendOnly, 101, 5))
			if len(h.got) != 1 || h.got[0].a.Len != 5 {
				t.Errorf("%s: the next is not received: %+v", name, h.got)
			}
		}
	})
	t.Run("ROCE-UC-2", func(t *testing.T) { // [ROCE-UC-3]
		c, h := connection(uc)
		h.post(0, 999)
		c.Receive(0, p(ib.SendFirst, 100, 256))
		c.Receive(0, p(ib.SendLast, 102, 9)) // packet 101 was lost
		c.Receive(0, p(ib.SendLast, 103, 9))
		c.Receive(0, p(ib.SendFirst, 500, 256))
		c.Receive(0, p(ib.SendLast, 501, 4))
		if len(h.got) != 1 || h.got[0].id != 0 || h.got[0].a.Len != 260 {
			t.Errorf("%+v", h.got)
		}
	})
	t.Run("ROCE-UC-4", func(t *testing.T) {
		c, h := connection(uc)
		c.Post(send(0, 300))
		expect(t, "none", h.statuses(), "")
		expect(t, "sent", sent(t, 0, c, 9), "Send First 200; Send Last 201; ") // [ROCE-UC-1]
		expect(t, "done", h.statuses(), "0 ok; ")
		if _, ok := c.Deadline(); ok {
			t.Error("something is due")
		}
	})
}

func TestROCE_UD(t *testing.T) {
	from, to := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	grh := &ib.GRH{Source: from, Destination: to, HopLimit: 64}
	datagram := func() (*Datagram, *fakeHost) {
		h := &fakeHost{}
		return NewDatagram(h, DatagramConfig{MTU: 1024, QPN: 9, QKey: 0x1111, PSN: 5}), h
	}
	good := func() *ib.Packet {
		p := packet(ib.SendOnlyImm.On(ib.UD), 44, 5)
		p.DETH, p.Imm, p.Solicited = ib.DETH{QKey: 0x1111, SourceQPN: 33}, ib.ImmDt{1, 2, 3, 4}, true
		return p
	}
	t.Run("ROCE-UD-1", func(t *testing.T) {
		d, h := datagram()
		d.Post(&Request{ID: 3, Buf: slice("hello"), To: Destination{Addr: to, QPN: 12, QKey: 0x2222}})
		var out Output
		d.Transmit(&out, 9)
		b, dest := out.Packet(0)
		p, err := ib.Parse(b[:len(b)-ib.ICRCLen])
		if err != nil || dest != to || p.Opcode != ib.SendOnly.On(ib.UD) || p.QPN != 12 ||
			p.DETH != (ib.DETH{QKey: 0x2222, SourceQPN: 9}) || string(p.Payload) != "hello" || p.PSN != 5 {
			t.Errorf("%+v, %v, %v", p, dest, err)
		}
		expect(t, "done", h.statuses(), "3 ok; ")
	})
	t.Run("ROCE-UD-2", func(t *testing.T) {
		for name, change := range map[string]func(*ib.Packet){
			"queue key": func(p *ib.Packet) { p.DETH.QKey++ }, "partition": func(p *ib.Packet) { p.PKey = 0x8001 },
			"transport": func(p *ib.Packet) { p.Opcode = ib.SendOnly }, "MTU": func(p *ib.Packet) { p.Payload = make([]byte, 1028) },
		} {
			d, h := datagram()
			h.post(0, 999)
			p := good()
			change(p)
			if d.Receive(p, grh); len(h.got) != 0 || len(h.receives) != 1 {
				t.Errorf("%s: %+v", name, h)
			}
		}
	})
	t.Run("ROCE-UD-3", func(t *testing.T) { // [ROCE-UD-5]
		d, h := datagram()
		h.post(0, 45)
		d.Receive(good(), grh)
		g := h.got[0]
		if g.a != (Arrival{Len: 45, HasImm: true, Imm: ib.ImmDt{1, 2, 3, 4}, Solicited: true, Source: 33}) ||
			!bytes.Equal(g.data[40:], good().Payload) {
			t.Errorf("%+v", g)
		}
		if got, _, err := ib.ParseGRH(g.data); err != nil || got != *grh {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("ROCE-UD-4", func(t *testing.T) {
		d, h := datagram()
		d.Receive(good(), grh)
		h.post(0, 44)
		d.Receive(good(), grh)
		if len(h.got) != 1 || h.got[0].a.Status != LocalLength {
			t.Errorf("%+v", h.got)
		}
	})
	t.Run("end", func(t *testing.T) {
		d, h := datagram()
		d.Post(send(0, 1))
		d.Fail()
		d.Post(send(1, 1))
		expect(t, "done", h.statuses(), "0 flushed; 1 flushed; ")
	})
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{0: 0, 1: 8192 * time.Nanosecond, 14: 67108864 * time.Nanosecond, 31: 4096 << 31} {
		if d := AckTimeout(code); d != want {
			t.Errorf("%d: %v", code, d)
		}
	}
	for n, ok := range map[int]bool{256: true, 1024: true, 4096: true, 128: false, 8192: false, 1000: false, 0: false} { // [ROCE-NET-6]
		if ValidMTU(n) != ok {
			t.Errorf("%d", n)
		}
	}
}

// FuzzResponder passes packets the input describes to a connection with requests in progress.
func FuzzResponder(f *testing.F) {
	f.Add([]byte{0, 5, 0, 5, 4, 1, 1, 0})
	r := rand.New(rand.NewPCG(1, 1))
	for range 5 {
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, h := connection(nil)
		for i := range 4 {
			h.post(uint64(i), 600)
			c.Post(send(uint64(i), 300))
			c.Post(read(uint64(i), 300))
		}
		now := Time(0)
		for len(b) >= 4 && !c.Failed() {
			now += time.Duration(b[3]) * 50 * time.Microsecond
			p := packet(ib.Opcode(b[0]), ib.PSN(98+int(b[1]&15)), []int{0, 1, 44, 255, 256, 257}[b[2]%6])
			if !p.Opcode.Assigned() {
				b = b[4:]
				continue
			}
			if !p.Opcode.Kind().Request() {
				p.PSN = ib.PSN(198 + int(b[1]&31))
				p.AETH.Syndrome = ib.Syndrome(b[2])
			}
			p.RETH.Length = uint32(b[1]>>4) * 256 * uint32(b[2]>>7) // zero or several packets
			if b[1]&16 == 0 {
				p.RETH.Length = uint32(len(p.Payload))
			}
			if b[3]&1 != 0 {
				p.RETH.VA += uint64(b[2]) * 16
			}
			c.Receive(now, p)
			c.Tick(now)
			packets(t, now, c, int(b[3]>>5))
			if n := c.resp.responses.len(); n > 2*len(c.resp.served)+3 {
				t.Fatalf("%d responses", n)
			}
			b = b[4:]
		}
		c.Fail()
		packets(t, now, c, 50)
		if len(h.done) != 8 {
			t.Fatalf("%d of 8 requests came back", len(h.done))
		}
		for i, d := range h.done {
			if d.id != uint64(i/2) {
				t.Fatalf("request %d came back as %d", d.id, i)
			}
		}
		if len(h.failed) != 1 {
			t.Fatal(h.failed)
		}
	})
}

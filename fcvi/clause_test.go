package fcvi

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A sent is an FC-VI frame a port has sent.
type sent struct {
	f    fc.Frame
	h    iu.Header
	from fc.Addr
	data []byte
}

// record returns a slice to which every FC-VI frame that an N_Port sends from now on is appended.
func (s *sim) record() *[]sent {
	var all []sent
	s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		if !from.Faulty || f.Type != fc.TypeFCVI || !f.RCtl.IsDeviceData() {
			return
		}
		h, _, err := iu.ParseHeader(f.Opt)
		if err != nil {
			s.t.Errorf("unreadable header %x", f.Opt)
		}
		all = append(all, sent{f: *f, h: h, from: f.SID, data: bytes.Clone(f.Payload)})
	})
	return &all
}

func ops(all []sent) string {
	var b strings.Builder
	for _, x := range all {
		fmt.Fprintf(&b, "%v ", x.h.Op)
	}
	return strings.TrimSpace(b.String())
}

// inject sends a frame no machine would send, from port i to the other port.
func (s *sim) inject(i int, h iu.Header, payload []byte, change func(f *fc.Frame)) {
	p := s.ports[i]
	r := p.np.RemoteByName(s.ports[1-i].np.Name())
	f := fc.Frame{Payload: payload, Header: fc.Header{RCtl: fc.RCtl(p.cfg.codec.RCtl(h.Op)),
		Type: fc.TypeFCVI, DFCtl: p.cfg.codec.DFCtl(h.Op),
		FCtl:  fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq | fc.FCtlRelOffset,
		SeqID: r.NextSeqID(), OXID: 0x7777, RXID: fc.Unassigned}}
	f.Opt = h.Append(nil)
	if change != nil {
		change(&f)
	}
	p.np.Send(s.net.Now(), r, fc.Class3, true, &f)
	s.net.Run(time.Millisecond)
}

// TestFCVI_5_3_2 checks the handshake on the wire. [FCVI-5.3.2-9] [FCVI-5.3.2-10] [FCVI-6.8-2]
// [FCVI-6.10-1] [FCVI-6.11-1] [FCVI-F-1] [FCVI-5.3.2-1] [FCVI-5.3.2-2] [FCVI-5.3.2-3] [FCVI-5.1-7]
// [FCVI-5.1-8] [FCVI-5.8-1] [FCVI-5.8-2] [FCVI-5.8-5] [FCVI-5.2.1-9]
func TestFCVI_5_3_2(t *testing.T) {
	s := newSim(t, simConfig{seed: 3, order: true})
	all := s.record()
	a, b := s.connect(iu.ReliableReception)
	if got := ops(*all); got != "CONNECT_RQST CONNECT_RESP1 CONNECT_RESP2 CONNECT_RESP3" {
		t.Fatal(got)
	}
	for i, want := range []struct {
		fctl   fc.FCtl
		handle uint32
		reason iu.Reason
		cnt    uint16
		from   *simPort
	}{{0x290000, 0, iu.Accepted, 0, s.ports[0]}, {0x890000, a.c.handle, iu.Accepted, 0, s.ports[1]},
		{0x090000, b.c.handle, iu.Confirmed, 1, s.ports[0]}, {0x980000, a.c.handle, iu.Confirmed, 1, s.ports[1]}} {
		x := (*all)[i]
		if x.f.FCtl != want.fctl || x.h.Handle != want.handle || x.h.Status().Reason != want.reason ||
			x.f.SeqCnt != want.cnt ||
			x.f.OXID != (*all)[0].f.OXID || x.h.Total != (*all)[0].h.Total || x.h.MsgID != 1 ||
			x.from != want.from.np.ID() || x.f.CSCtl != 0 || x.f.Param != 0 {
			t.Errorf("%v: %v %v", x.h.Op, x.f.String(), x.h)
		}
		if !x.f.SOF.First() || !x.f.Last() {
			t.Errorf("%v is no Sequence: %v", x.h.Op, x.f.String())
		}
		if (x.f.RXID == fc.Unassigned) != (i == 0) {
			t.Errorf("%v: RX_ID %04x", x.h.Op, x.f.RXID)
		}
	}
	for i, p := range s.ports {
		if p.stats.SentIUs != 2 || p.stats.Aborts != 0 || p.stats.Connected != 1 {
			t.Errorf("port %d: %d IUs, %d ABTS", i, p.stats.SentIUs, p.stats.Aborts)
		}
	}
	q, _, err := iu.ParseConnectRqst((*all)[0].data)
	if err != nil || q.Handle != a.c.handle || q.InitialMsgID != a.c.initTx || q.Timeout != iu.NoTimeout { // [FCVI-6.8-3]
		t.Errorf("%+v, %v", q, err)
	}

	t.Run("FCVI-5.3.2-5", func(t *testing.T) {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.dial(a, b, "absent", iu.ClientServer)
		s.net.Run(100 * time.Millisecond)
		if len(a.result) != 1 || a.result[0] != iu.NoMatch || !a.c.gone {
			t.Errorf("%v", a.result)
		}
	})
	t.Run("FCVI-5.3.2-6", func(t *testing.T) {
		s := newSim(t, simConfig{seed: 1, order: true, linger: 10 * time.Second})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.dial(a, b, "late", iu.ClientServer)
		s.net.Run(5 * time.Second)
		s.serve(b, "late")
		s.net.Run(time.Second)
		if len(a.result) != 1 || a.result[0] != iu.Confirmed {
			t.Errorf("%v", a.result)
		}
	})
	t.Run("FCVI-5.3.2-7", func(t *testing.T) {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		all := s.record()
		b.p.addWait(0, &wait{disc: []byte("x"), match: func(c *conn) { c.reject(s.net.Now(), iu.ULPReject) }})
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(time.Second)
		last := (*all)[len(*all)-1]
		if len(a.result) != 1 || a.result[0] != iu.ULPReject || last.f.FCtl != 0x980000 || len(last.data) != 0 {
			t.Errorf("%v, %v", a.result, last.h)
		}
	})
	t.Run("FCVI-5.3.2-4", func(t *testing.T) { // a message arrives instead of RESP3
		s := newSim(t, simConfig{seed: 1, order: true})
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp3), Do: fabric.Drop, Nth: 1})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		r := a.postRecv(10)
		s.serve(b, "x")
		s.dial(a, b, "x", iu.ClientServer)
		s.net.RunUntil(time.Second, func() bool { return len(b.result) > 0 })
		b.post(vi.OpSendReceive, []byte("hi"))
		s.net.Run(10 * time.Millisecond)
		if a.c.state != stConnected || !r.done || s.ports[0].stats.Retries != 0 || s.ports[0].stats.Aborts != 0 {
			t.Errorf("client %v, received %v", a.c.state, r.done)
		}
	})
	t.Run("FCVI-8.5-2", func(t *testing.T) { // no Exchange is free for the request [FCVI-5.3.2-1]
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.serve(b, "x")
		for ok := true; ok; {
			_, ok = a.p.oxids.alloc(nil)
		}
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(time.Second)
		if len(a.result) != 1 || a.result[0] != iu.NoResources {
			t.Errorf("%v", a.result)
		}
	})
	// These attributes do not match. [FCVI-7.3-3] [FCVI-7.3-4] [FCVI-7.3-6] [FCVI-7.3-8]
	// [FCVI-7.3-5]
	for _, v := range []struct {
		name   string
		a, b   iu.Attributes
		reason iu.Reason
		mts    uint32
	}{
		{"levels", iu.Attributes{Reliability: iu.Unreliable, MaxTransfer: 9}, iu.Attributes{Reliability: iu.ReliableDelivery, MaxTransfer: 9}, iu.InvalidReliability, 0},
		{"qos", iu.Attributes{Reliability: 2, MaxTransfer: 9, QoS: iu.QoS{Class: 2}}, iu.Attributes{Reliability: 2, MaxTransfer: 9, QoS: iu.QoS{Class: 3}}, iu.InvalidQoS, 0},
		{"one qos", iu.Attributes{Reliability: 2, MaxTransfer: 9, QoS: iu.QoS{Class: 2}}, iu.Attributes{Reliability: 2, MaxTransfer: 5}, iu.Accepted, 5},
		{"read at UD", iu.Attributes{Reliability: 1, MaxTransfer: 9, Read: true}, iu.Attributes{Reliability: 1, MaxTransfer: 9}, iu.InvalidRDMARead, 0},
		{"no window", iu.Attributes{Reliability: 4, MaxTransfer: 9, MaxUnacked: 1}, iu.Attributes{Reliability: 4, MaxTransfer: 9}, iu.InvalidReliability, 0},
		{"no window of ours", iu.Attributes{Reliability: 4, MaxTransfer: 9}, iu.Attributes{Reliability: 4, MaxTransfer: 9, MaxUnacked: 1}, iu.InvalidReliability, 0},
		{"least window", iu.Attributes{Reliability: 4, MaxTransfer: 9, MaxUnacked: 1}, iu.Attributes{Reliability: 4, MaxTransfer: 9, MaxUnacked: 1}, iu.Accepted, 9},
		{"no window where none is needed", iu.Attributes{Reliability: 2, MaxTransfer: 9, MaxUnacked: 1}, iu.Attributes{Reliability: 2, MaxTransfer: 9}, iu.Accepted, 9},
		{"nothing", iu.Attributes{Reliability: 2}, iu.Attributes{Reliability: 2, MaxTransfer: 5}, iu.InvalidMTS, 0},
	} {
		for _, side := range []string{"own first", "peer's first"} {
			if mts, r := matchAttributes(&v.a, &v.b); r != v.reason || mts != v.mts {
				t.Errorf("%s, %s: %v, %d", v.name, side, r, mts)
			}
			v.a, v.b = v.b, v.a
		}
	}
}

// TestFCVI_A runs the cases of annex A with several intervals between the two requests, without
// faults and with each IU lost or duplicated. [FCVI-5.3.3-4] [FCVI-5.3.4-2] [FCVI-5.3.4-3]
// [FCVI-5.3.4-4] [FCVI-5.3.4-6] [FCVI-5.3.4-7] [FCVI-A-7]
func TestFCVI_A(t *testing.T) {
	run := func(t *testing.T, delta time.Duration, order bool, faults ...*fabric.Fault) string {
		s := newSim(t, simConfig{seed: 1, order: order})
		for _, f := range faults {
			s.net.AddFault(f)
		}
		all := s.record()
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		first, second := a, b
		if delta < 0 {
			first, second, delta = b, a, -delta
		}
		first.p.connectPeer(s, first, second)
		s.net.Run(delta)
		second.p.connectPeer(s, second, first)
		if !s.net.RunUntil(9*time.Minute, func() bool { return len(a.result) > 0 && len(b.result) > 0 }) {
			t.Fatalf("%v: %v %v, states %v %v: %s", delta, a.result, b.result, a.c.state, b.c.state, ops(*all))
		}
		s.net.Run(time.Minute)
		switch { // [FCVI-A-8] [FCVI-5.3.4-1]
		case a.result[0] != iu.Confirmed || b.result[0] != iu.Confirmed,
			a.c.state != stConnected || b.c.state != stConnected,
			a.c.rHandle != b.c.handle || b.c.rHandle != a.c.handle, a.c.responder == b.c.responder,
			a.c.connID() != b.c.connID():
			t.Errorf("%v: %v %v, %v %v: %s", delta, a.result, b.result, a.c.state, b.c.state, ops(*all))
		}
		// The connection carries messages.
		s.net.ClearFaults()
		ra, rb := a.postRecv(10), b.postRecv(10)
		a.post(vi.OpSendReceive, []byte("a"))
		b.post(vi.OpSendReceive, []byte("b"))
		s.net.Run(time.Second)
		if !ra.done || !rb.done {
			t.Errorf("%v: nothing passes", delta)
		}
		var seen []string
		for _, x := range *all {
			if x.h.Op <= iu.ConnectResp3 && x.h.Op >= iu.ConnectRqst {
				side := "a"
				if x.from != s.ports[0].np.ID() {
					side = "b"
				}
				seen = append(seen, fmt.Sprintf("%s:%v/%v", side, x.h.Op, x.h.Status().Reason))
			}
		}
		return strings.Join(seen, " ")
	}
	// Port b has the higher name, so its request wins.
	t.Run("FCVI-A-1", func(t *testing.T) { // both requests cross
		got := run(t, 0, true)
		for _, want := range []string{"a:CONNECT_RQST", "b:CONNECT_RQST", "b:CONNECT_RESP1/PEER_YIELD", "a:CONNECT_RESP1/ACCEPTED", "b:CONNECT_RESP2/CONFIRMED", "a:CONNECT_RESP3/CONFIRMED"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s without %s", got, want)
			}
		}
	})
	t.Run("FCVI-A-2", func(t *testing.T) { // the winner's request arrives first [FCVI-5.3.3-1] [FCVI-5.3.3-2]
		if got := run(t, -time.Second, true); strings.Contains(got, "a:CONNECT_RQST") ||
			!strings.Contains(got, "a:CONNECT_RESP1/PENDING") {
			t.Error(got)
		}
	})
	t.Run("FCVI-A-3", func(t *testing.T) { // the loser's request arrives first, so no tie-break is needed
		if got := run(t, time.Second, true); strings.Contains(got, "b:CONNECT_RQST") ||
			strings.Contains(got, "PEER_YIELD") {
			t.Error(got)
		}
	})
	from := func(id fc.Addr) func(*fc.Frame) bool {
		return func(f *fc.Frame) bool { return opcode(iu.ConnectRqst)(f) && f.SID == id }
	}
	t.Run("FCVI-A-4", func(t *testing.T) { // the loser's request is lost
		run(t, 0, true, &fabric.Fault{Match: from(0x010100), Do: fabric.Drop, Nth: 1})
	})
	t.Run("FCVI-A-5", func(t *testing.T) { // the winner's request is lost
		run(t, 0, true, &fabric.Fault{Match: from(0x010200), Do: fabric.Drop, Nth: 1})
	})
	t.Run("FCVI-A-6", func(t *testing.T) { // PEER_YIELD overtakes the winner's request
		run(t, 0, false, &fabric.Fault{Match: from(0x010200), Do: fabric.Delay, Late: time.Second, Nth: 1})
	})
	t.Run("FCVI-A-8", func(t *testing.T) {
		step := 3
		if raceEnabled {
			step = 20
		}
		for d := -60; d <= 60; d += step {
			delta := time.Duration(d) * time.Microsecond
			run(t, delta, true)
			for k := 1; k <= 7; k++ {
				for _, do := range []fabric.Action{fabric.Drop, fabric.Duplicate, fabric.Delay} {
					for _, late := range []time.Duration{30 * time.Microsecond, 12 * time.Second} {
						run(t, delta, false, &fabric.Fault{Match: fabric.OfType(fc.TypeFCVI),
							Do: do, Late: late, Nth: k})
					}
				}
			}
		}
	})
}

// TestFCVI_B runs the table of annex B, each row with each column. [FCVI-B-1] [FCVI-B-2] [FCVI-B-3]
// [FCVI-B-4] [FCVI-B-5] [FCVI-8.4-2] [FCVI-8.4-3] [FCVI-8.4-4] [FCVI-8.4-5] [FCVI-8.4-6]
// [FCVI-8.4-16] [FCVI-3-3] [FCVI-3-4]
func TestFCVI_B(t *testing.T) {
	// The port sends M1, M2, M3 and M4. M2 has three frames.
	frame := func(msg, part int) func(*fc.Frame) bool { // matches frame part of message msg; part 0 means all frames
		var first iu.MsgID
		return func(f *fc.Frame) bool {
			if !opcode(iu.SendRqst)(f) {
				return false
			}
			h, _, _ := iu.ParseHeader(f.Opt)
			if first == 0 {
				first = h.MsgID
			}
			return int(h.MsgID-first)+1 == msg && (part == 0 || int(f.Param)/2096+1 == part)
		}
	}
	broken := []string{"1"}
	for _, v := range []struct {
		row    string
		fault  fabric.Fault
		ud     []string // messages delivered at Unreliable Delivery
		rd     []string
		reason iu.Reason
	}{
		{"whole", fabric.Fault{Match: frame(2, 0), Do: fabric.Drop}, []string{"1", "3", "4"}, broken, iu.MsgLost},
		{"tail", fabric.Fault{Match: frame(2, 3), Do: fabric.Drop}, []string{"1", "3", "4"}, broken, iu.FrameLost},
		{"middle", fabric.Fault{Match: frame(2, 2), Do: fabric.Drop}, []string{"1", "3", "4"}, broken, iu.FrameLost},
		{"late duplicate", fabric.Fault{Match: frame(1, 0), Do: fabric.Duplicate, Late: 20 * time.Millisecond}, []string{"1", "2", "3", "4"}, []string{"1", "2", "3", "4"}, 0},
		{"corrupt", fabric.Fault{Match: frame(2, 1), Do: fabric.Corrupt}, []string{"1", "3", "4"}, broken, 0}, // [FCVI-8.4-8] [FCVI-3-1]
	} {
		for _, order := range []bool{true, false} {
			for _, level := range levels {
				t.Run(fmt.Sprintf("%s, in order %v, %v", v.row, order, level), func(t *testing.T) {
					s := newSim(t, simConfig{seed: 1, order: order})
					all := s.record()
					f := v.fault
					switch v.row {
					case "whole":
						f.Match = frame(2, 0)
					case "tail":
						f.Match = frame(2, 3)
					case "middle":
						f.Match = frame(2, 2)
					case "late duplicate":
						f.Match = frame(1, 0)
					case "corrupt":
						f.Match = frame(2, 1)
					}
					s.net.AddFault(&f)
					a, b := s.connect(level)
					for range 6 {
						b.postRecv(8000)
					}
					for i, n := range []int{10, 6000, 20, 30} {
						a.post(vi.OpSendReceive, bytes.Repeat([]byte{byte('1' + i)}, n))
						s.net.Run(time.Millisecond)
					}
					s.net.Run(20 * time.Second)
					var got []string
					for _, r := range b.recvs {
						if r.done && r.d.Status == 0 {
							got = append(got, string(r.buf[:1]))
						}
					}
					want, lost := v.ud, level == iu.Unreliable || v.row == "late duplicate"
					if level != iu.Unreliable {
						want = v.rd
					}
					if !slices.Equal(got, want) {
						t.Errorf("delivered %v, want %v", got, want)
					}
					if (b.c.state == stConnected) != lost || (b.broke == 0) != lost || (a.broke == 0) != lost {
						t.Errorf("states %v %v, broken %d %d", a.c.state, b.c.state, a.broke, b.broke)
					}
					if lost && level == iu.Unreliable && b.recvN != len(want) { // [FCVI-B-5]
						t.Errorf("%d receives were used for %d messages", b.recvN, len(want))
					}
					if !lost && v.reason != 0 {
						i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.DisconnectRqst })
						if i < 0 || (*all)[i].h.Status().Reason != v.reason ||
							(*all)[i].h.Flags&(iu.FlagErr|iu.FlagMsgID) != iu.FlagErr|iu.FlagMsgID ||
							(*all)[i].h.MsgID != a.c.initTx+1 {
							t.Errorf("told by %v", (*all)[max(i, 0)].h)
						}
					}
				})
			}
		}
	}
}

// TestHostileFrames: a frame no correct peer sends is dropped or answered, is counted, and harms no
// connection. [FCVI-6.12-2]
func TestHostileFrames(t *testing.T) {
	for _, level := range levels {
		s := newSim(t, simConfig{seed: 9, order: true})
		a, b := s.connect(level)
		all := s.record()
		rr := iu.Flags(0)
		if level == iu.ReliableReception {
			rr = iu.FlagRR
		}
		next := a.c.tx.nextID
		good := iu.Header{Handle: b.c.handle, Op: iu.SendRqst, MsgID: next, Flags: rr}
		st := &s.ports[1].stats
		// An unknown handle is reported once. [FCVI-8.2-3]
		bad := good
		bad.Handle = 0x00FFF123
		for range 3 {
			s.inject(0, bad, nil, nil)
		}
		if st.UnknownHandle != 3 || strings.Count(ops(*all), "DISCONNECT_RQST") != 1 {
			t.Errorf("unknown handle: %d, %s", st.UnknownHandle, ops(*all))
		}
		// A frame with another R_CTL is only counted. [FCVI-5.1-5] [FCVI-5.1-6] [FCVI-5.2.1-8]
		r := b.postRecv(100)
		if level == iu.Unreliable { // [FCVI-5.2.4-6]
			read := good
			read.Op, read.Flags, read.RmtHandle, read.RmtVA, read.Total = iu.ReadRqst, iu.FlagRspRqd, 7, 1000, 4
			s.inject(0, read, nil, nil)
			if st.Malformed != 1 || strings.Contains(ops(*all), "READ_RESP") {
				t.Errorf("a Read at Unreliable Delivery: %s", ops(*all))
			}
		}
		good.Flags |= 0x40 // a reserved bit, which is ignored [FCVI-5.9.4-1]
		s.inject(0, good, []byte("data"),
			func(f *fc.Frame) { f.RCtl, f.FCtl = fc.RCtlSolData, f.FCtl&^fc.FCtlFirstSeq })
		if st.RCtlMismatch != 1 || !r.done || string(r.buf[:4]) != "data" {
			t.Errorf("R_CTL: %+v, delivered %v", st.RCtlMismatch, r.done)
		}
		// A copy of the frame is late. A frame claiming to belong to the current message, but
		// different from the message, is a synonym. [FCVI-5.6-1] [FCVI-5.6-2] [FCVI-5.9.1-5]
		// [FCVI-5.5-3] [FCVI-4-3]
		s.inject(0, good, []byte("data"), nil)
		good.MsgID++
		more := func(f *fc.Frame) { f.FCtl &^= fc.FCtlEndSeq | fc.FCtlLastSeq; f.SeqID = 77 }
		r = b.postRecv(100)
		s.inject(0, good, []byte("1234"), more)
		other := good
		other.Param = 5
		s.inject(0, other, []byte("5678"), func(f *fc.Frame) { more(f); f.Param = 4 })
		s.inject(0, good, []byte("5678"), func(f *fc.Frame) { more(f); f.Param, f.OXID = 4, 0x1111 })
		s.inject(0, good, []byte("abcd"), func(f *fc.Frame) { f.SeqID, f.Param = 77, 4 })
		if st.LateFrames != 1 || st.Synonyms != 2 || !r.done || string(r.buf[:8]) != "1234abcd" {
			t.Errorf("late %d, synonyms %d, got %q", st.LateFrames, st.Synonyms, r.buf[:8])
		}
		// A frame from a third port with a valid handle is only counted. [FCVI-4-1]
		if b.c.remote != nil {
			c := b.c.remote
			b.c.remote = &fc.Remote{}
			good.MsgID++
			s.inject(0, good, nil, nil)
			b.c.remote = c
			good.MsgID--
			if st.WrongSource != 1 {
				t.Errorf("wrong source: %d", st.WrongSource)
			}
		}
		if b.c.state != stConnected {
			t.Fatalf("%v: state %v", level, b.c.state)
		}
		// A response to a request completed long ago is ignored.
		s.inject(1, iu.Header{Handle: a.c.handle, Op: iu.SendResp, MsgID: a.c.tx.nextID - 1}, nil, nil)
		if a.c.state != stConnected {
			t.Errorf("an old response: state %v", a.c.state)
		}
		// A frame with a header of the wrong size or an unknown opcode is dropped, and at the
		// reliable levels it ends the connection. [FCVI-6.1-3] [FCVI-5.9.3-3]
		good.MsgID++
		s.inject(0, good, []byte("x"), func(f *fc.Frame) { f.Opt = append(f.Opt, make([]byte, 16)...); f.DFCtl = 2 })
		s.inject(0, iu.Header{Handle: b.c.handle, Op: 0x55, MsgID: good.MsgID}, nil,
			func(f *fc.Frame) { f.Opt, f.DFCtl = f.Opt[:16], 1 })
		if st.Malformed == 0 || (level == iu.Unreliable) != (b.c.state == stConnected) ||
			level == iu.Unreliable && st.BadOpcode != 1 {
			t.Errorf("%v: malformed %d, opcodes %d, state %v", level, st.Malformed, st.BadOpcode, b.c.state)
		}
	}
	// Each request below breaks a rule, or names memory the peer may not access. [FCVI-6.1-4]
	// [FCVI-5.2.3-3] [FCVI-5.9.8-2] [FCVI-6.4-1] [FCVI-5.2.4-2]
	for name, v := range map[string]struct {
		h      iu.Header
		data   []byte
		reason iu.Reason
		async  []vi.ErrorCode
	}{
		"unknown region":  {iu.Header{Op: iu.WriteRqst, RmtHandle: 9, RmtVA: 1000, Total: 4}, []byte("evil"), iu.RDMAWriteProt, []vi.ErrorCode{vi.ErrorRDMAWProt}},
		"past the end":    {iu.Header{Op: iu.WriteRqst, RmtHandle: 7, RmtVA: 1000 + 1<<16 - 3, Total: 4}, []byte("evil"), iu.RDMAWriteProt, []vi.ErrorCode{vi.ErrorRDMAWProt}},
		"wrap":            {iu.Header{Op: iu.WriteRqst, RmtHandle: 7, RmtVA: 1<<64 - 2, Total: 4}, []byte("evil"), iu.RDMAWriteProt, []vi.ErrorCode{vi.ErrorRDMAWProt}},
		"more than told":  {iu.Header{Op: iu.WriteRqst, RmtHandle: 7, RmtVA: 1000, Total: 3}, []byte("evil"), iu.Protocol, nil},
		"less than told":  {iu.Header{Op: iu.WriteRqst, RmtHandle: 7, RmtVA: 1000, Total: 9}, []byte("evil"), iu.Protocol, nil},
		"too long":        {iu.Header{Op: iu.WriteRqst, RmtHandle: 7, RmtVA: 1000, Total: 1 << 30}, []byte("evil"), iu.TooLong, nil},
		"no receive":      {iu.Header{Op: iu.SendRqst}, []byte("evil"), iu.NoRecvDesc, []vi.ErrorCode{vi.ErrorRecvQEmpty}},
		"read elsewhere":  {iu.Header{Op: iu.ReadRqst, Flags: iu.FlagRspRqd, RmtHandle: 7, RmtVA: 0, Total: 4}, nil, iu.RDMAReadProt, []vi.ErrorCode{vi.ErrorRDMARProt}},
		"read with data":  {iu.Header{Op: iu.ReadRqst, Flags: iu.FlagRspRqd, RmtHandle: 7, RmtVA: 1000, Total: 4}, []byte("evil"), iu.Protocol, nil},
		"the other level": {iu.Header{Op: iu.SendRqst, Flags: iu.FlagRR}, []byte("evil"), iu.Protocol, nil}, // [FCVI-5.9.4-5]
	} {
		s := newSim(t, simConfig{seed: 9, order: true})
		a, b := s.connect(iu.ReliableDelivery)
		all := s.record()
		v.h.Handle, v.h.MsgID = b.c.handle, a.c.tx.nextID
		a.c.tx.nextID++
		s.inject(0, v.h, v.data, nil)
		s.net.Run(20 * time.Second)
		if bytes.Contains(b.mem, []byte("evil")) || !slices.Equal(b.asyncs, v.async) || b.broke != 1 {
			t.Errorf("%s: asynchronous errors %v, broken %d", name, b.asyncs, b.broke)
		}
		i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.DisconnectRqst || x.h.Op == iu.ReadResp })
		if i < 0 || (*all)[i].h.Status().Reason != v.reason || (*all)[i].h.Flags&iu.FlagErr == 0 { // [FCVI-5.2.2-8] [FCVI-5.2.4-5]
			t.Errorf("%s: %s", name, ops(*all))
		}
	}
}

// TestForgedFARP: a reply without a request, or with contradictory claims, has no effect.
// [FCVI-7.5-5]
func TestForgedFARP(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, p2p: false, loop: true})
	a, b := s.ports[0].np, s.ports[1].np
	var found []fc.Addr
	want := fc.FARPIP(addrOf(77))
	a.FARP(s.net.Now(), fc.FARPMatchIP, fc.FARP{RespIP: want}, fc.FARPInitReply, func(_ fc.Time, f fc.FARP, err error) {
		if err == nil {
			found = append(found, f.RespID)
		}
	})
	good := fc.FARP{Cmd: fc.ELSFARPReply, Match: fc.FARPMatchIP, Flags: fc.FARPInitReply,
		ReqID: a.ID(), RespID: b.ID(), ReqPortName: a.Name(), ReqNode: a.Node(),
		RespPortName: b.Name(), RespNode: b.Node(), ReqIP: a.IPForms()[0], RespIP: want}
	for _, forge := range []func(f *fc.FARP){
		func(f *fc.FARP) { f.RespID++ }, func(f *fc.FARP) { f.RespIP[15]++ }, func(f *fc.FARP) { f.Match = 1 },
		func(f *fc.FARP) { f.ReqPortName++ }, func(f *fc.FARP) { f.ReqIP[3]++ },
		func(f *fc.FARP) { f.RespPortName = 0 },
	} {
		x := good
		forge(&x)
		b.ELS(s.net.Now(), a.ID(), x.Append(nil), func(_ fc.Time, _ []byte, err error) {
			if err == nil {
				t.Errorf("%+v was accepted", x)
			}
		})
		s.net.Run(10 * time.Millisecond)
	}
	if len(found) != 0 || a.Stats().FARPForged != 6 {
		t.Errorf("found %v, forged %d", found, a.Stats().FARPForged)
	}
	b.ELS(s.net.Now(), a.ID(), good.Append(nil), func(fc.Time, []byte, error) {})
	s.net.Run(10 * time.Millisecond)
	if !slices.Equal(found, []fc.Addr{b.ID()}) {
		t.Errorf("the good reply: %v", found)
	}
}

// TestFCVI_7_7 checks the effect of link events on connections. [FCVI-7.7-1] [FCVI-7.7-2]
// [FCVI-7.7-3] [FCVI-7.7-5] [FCVI-7.7-6] [FCVI-7.7-8]
func TestFCVI_7_7(t *testing.T) {
	for _, v := range []struct {
		name  string
		cfg   simConfig
		event func(s *sim)
		lives bool
	}{
		{"FCVI-7.7-1 link reset", simConfig{order: true}, func(s *sim) { s.ports[0].np.LinkUp(s.net.Now(), fc.LinkInfo{Verified: true}) }, true},
		{"FCVI-7.7-2 point-to-point", simConfig{p2p: true}, func(s *sim) { s.net.Initialize(s.ports[0].end) }, false},
		{"FCVI-7.7-3 private loop, LIP", simConfig{loop: true}, func(s *sim) { s.net.Initialize(s.ports[0].end) }, true},
		{"FCVI-7.7-3 private loop, other AL_PA", simConfig{loop: true}, func(s *sim) { s.ports[0].end.SetALPA(0x27); s.net.Initialize(s.ports[0].end) }, false},
		{"FCVI-7.7-5 fabric, NOS", simConfig{order: true}, func(s *sim) { s.net.Initialize(s.ports[0].end) }, true},
		{"fabric, link gone", simConfig{order: true}, func(s *sim) { s.net.SetLink(s.ports[0].end, false) }, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			v.cfg.seed = 1
			s := newSim(t, v.cfg)
			a, b := s.connect(iu.ReliableDelivery)
			v.event(s)
			s.net.Run(time.Minute)
			if lives := a.c.state == stConnected && b.c.state == stConnected; lives != v.lives ||
				v.lives != (a.broke+b.broke == 0) || !v.lives && a.broke+b.broke != 2 {
				t.Fatalf("states %v, %v; broken %d, %d", a.c.state, b.c.state, a.broke, b.broke)
			}
			if v.lives {
				r := b.postRecv(10)
				a.post(vi.OpSendReceive, []byte("still"))
				s.net.Run(time.Second)
				if !r.done {
					t.Error("nothing passes any more")
				}
			}
		})
	}
}

// TestFCVI_5_2_1 checks stream Exchanges. [FCVI-5.2.1-4] [FCVI-5.2.1-5] [FCVI-5.2.1-6]
// [FCVI-5.2.1-7]
func TestFCVI_5_2_1(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, stream: true})
	a, b := s.connect(iu.ReliableDelivery)
	all := s.record()
	for i := range 300 {
		b.postRecv(10)
		a.post(vi.OpSendReceive, []byte{byte(i)})
	}
	s.net.Run(100 * time.Millisecond)
	for i, x := range *all {
		first, last := i == 0 || i == streamLimit, i == streamLimit-1
		if (x.f.FCtl&fc.FCtlFirstSeq != 0) != first || (x.f.FCtl&fc.FCtlLastSeq != 0) != last ||
			(x.h.Flags&iu.FlagLastMsg != 0) != last ||
			int(x.f.SeqCnt) != i%streamLimit || x.f.OXID != (*all)[i/streamLimit*streamLimit].f.OXID {
			t.Fatalf("message %d: %v %v", i, x.f.String(), x.h)
		}
	}
	ox := (*all)[299].f.OXID
	if len(*all) != 300 || ox == (*all)[0].f.OXID {
		t.Fatalf("%d messages", len(*all))
	}
	s.net.Run(2 * time.Second) // longer than E_D_TOV/2
	b.postRecv(10)
	a.post(vi.OpSendReceive, nil)
	s.net.Run(100 * time.Millisecond)
	if (*all)[300].f.OXID == ox {
		t.Error("a stream Exchange goes on after a pause")
	}
}

// TestFCVI_E checks the window at Reliable Reception, CUM responses, and the order of completions
// around an error. [FCVI-E-1] [FCVI-E-2] [FCVI-E-3] [FCVI-3-7] [FCVI-5.2.5-6]
func TestFCVI_E(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableReception)
	s.net.AddFault(&fabric.Fault{Match: opcode(iu.SendResp), Do: fabric.Drop, Nth: 1})
	for range 100 {
		b.postRecv(10)
		a.post(vi.OpSendReceive, []byte("x"))
		if a.c.tx.resp.pending.len() > 16 {
			t.Fatalf("%d unanswered", a.c.tx.resp.pending.len())
		}
	}
	s.net.Run(10 * time.Microsecond)
	if a.sends[0].done {
		t.Error("a send completes without its response")
	}
	s = newSim(t, simConfig{seed: 1, order: true})
	a, b = s.connect(iu.ReliableReception)
	all := s.record()
	for range 50 {
		b.postRecv(10)
	}
	for range 60 {
		a.sends = append(a.sends, &fakeSend{data: []byte("x")})
	}
	a.c.posted(s.net.Now())
	s.net.Run(time.Minute)
	resp, cum := 0, 0
	for _, x := range *all {
		if x.h.Op == iu.SendResp {
			resp++
			if x.h.Flags&iu.FlagCum != 0 {
				cum++
			}
		}
	}
	if resp == 0 || resp > 20 || cum == 0 {
		t.Errorf("%d responses, %d of them cumulative", resp, cum)
	}
	for i, w := range a.sends { // there are 50 receives, so message 51 fails and the later ones are flushed
		if i < 50 && (!w.done || w.status != 0) || i == 50 && w.status&vi.StatusRemoteDescriptor == 0 ||
			i > 50 && w.done {
			t.Errorf("send %d: done %v, %v", i, w.done, w.status)
		}
	}
	if a.broke != 1 || b.broke != 1 {
		t.Errorf("broken %d, %d", a.broke, b.broke)
	}
}

// TestHandles checks the table of handles. [FCVI-4-4] [FCVI-4-5] [FCVI-4-6]
func TestHandles(t *testing.T) {
	var h handleTable
	h.init()
	x, _ := h.alloc(0, &conn{})
	if x == 0 || h.get(x) == nil || h.get(x+1) != nil || h.get(0) != nil {
		t.Fatalf("%08x", x)
	}
	h.release(x, 10)
	y, _ := h.alloc(5, &conn{})
	if y>>genBits == x>>genBits || !h.quarantined(x, 5) || h.quarantined(x, 10) || h.get(x) != nil {
		t.Errorf("%08x after %08x", y, x)
	}
	z, _ := h.alloc(11, &conn{})
	if z>>genBits != x>>genBits || z == x || h.get(x) != nil {
		t.Errorf("%08x after %08x", z, x)
	}
}

// TestFCVI_5_4: exchange ids are used in a cycle, and an open or locked id is skipped. [FCVI-5.4-1]
// [FCVI-5.4-2] [FCVI-5.4-3] [FCVI-5.4-4]
func TestFCVI_5_4(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	p := &s.ports[0].oxids
	first, _ := p.alloc(nil)
	for i := 1; i <= iu.LastOXID; i++ {
		ox, ok := p.alloc(nil)
		if !ok || ox != (first+uint16(i))&iu.LastOXID || ox >= fc.ServiceOXID {
			t.Fatalf("%04x after %d", ox, i)
		}
	}
	if _, ok := p.alloc(nil); ok {
		t.Error("an id that is open")
	}
	p.lock(s.net.Now(), 5)
	p.release(9)
	if ox, ok := p.alloc(nil); !ok || ox != 9 {
		t.Errorf("%04x", ox)
	}
	s.net.Run(s.ports[0].np.RATOV() + time.Second)
	if ox, ok := p.alloc(nil); !ok || ox != 5 {
		t.Errorf("%04x after R_A_TOV", ox)
	}
}

// TestFCVI_8_2 checks which changes of state exist, and which VI state a consumer sees in each
// state. [FCVI-8.2-1]
func TestFCVI_8_2(t *testing.T) {
	want := map[state]string{
		stIdle: "C_RESOLVE C_HELD", stResolve: "IDLE C_RQST C_RESP1",
		stRqst:     "IDLE C_RESOLVE CONCEDED C_RESP1 C_RESP2 CONNECTED",
		stConceded: "IDLE C_RESOLVE C_RQST C_RESP1", stHeld: "IDLE C_RESP1", stResp1: "IDLE C_RESOLVE CONNECTED",
		stResp2: "IDLE C_RESOLVE C_RQST CONNECTED", stConnected: "DISC_SENT ERROR", stDiscSent: "IDLE", stError: "IDLE",
	}
	seen := map[state]vi.State{stIdle: vi.Idle, stHeld: vi.Idle, stConnected: vi.Connected,
		stDiscSent: vi.Error, stError: vi.Error}
	for from := range numStates {
		var to []string
		for s := range numStates {
			if arrows[from][s] {
				to = append(to, s.String())
			}
		}
		if got := strings.Join(to, " "); got != want[from] {
			t.Errorf("from %v to %s, want %s", from, got, want[from])
		}
		v, ok := seen[from]
		if !ok {
			v = vi.ConnectPending
		}
		if from.vi() != v {
			t.Errorf("%v is %v to a consumer", from, from.vi())
		}
	}
}

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

// TestWire checks every frame of a Send, a Write and a Read, at each level and in both classes.
// [FCVI-3-6] [FCVI-5.2.2-1] [FCVI-5.2.5-5] [FCVI-5.7-1] [FCVI-5.8-10] [FCVI-8.4-1] Other rows are
// cited where they are checked.
func TestWire(t *testing.T) {
	for _, level := range levels {
		for _, class := range []fc.Class{fc.Class3, fc.Class2} {
			t.Run(fmt.Sprintf("%v, class %d", level, class), func(t *testing.T) {
				s := newSim(t, simConfig{seed: 1, order: true, class: class, class2: class == fc.Class2, rxSize: 1024})
				a, b := s.connect(level)
				all := s.record()
				b.postRecv(9000)
				b.postRecv(0)
				copy(b.mem, "what is read")
				a.post(vi.OpSendReceive, pattern(2500, 1))
				a.postImm(vi.OpRDMAWrite|vi.Immediate, pattern(1501, 2), 0xABCD)
				b.postRecv(0)
				a.post(vi.OpSendReceive, nil)
				if level != iu.Unreliable {
					a.post(vi.OpRDMARead, make([]byte, 1700))
				}
				s.net.Run(time.Second)
				type msg struct {
					frames []sent
				}
				var order []iu.MsgID
				msgs := map[string]*msg{}
				open := map[bool]string{} // the open sequence of each stream [FCVI-5.2.5-4]
				lastSeq := map[fc.Addr]uint8{}
				for _, x := range *all {
					k := fmt.Sprint(x.h.Op, x.h.MsgID)
					m := msgs[k]
					if m == nil {
						m = &msg{}
						msgs[k] = m
						if x.h.Op.IsRequest() {
							order = append(order, x.h.MsgID)
						}
						if prev, ok := lastSeq[x.from]; ok && x.f.SeqID != prev+1 { // [FCVI-5.5-2] [FCVI-5.5-1]
							t.Errorf("SEQ_ID %d after %d", x.f.SeqID, prev)
						}
						lastSeq[x.from] = x.f.SeqID
					}
					if o := open[x.h.Op.IsRequest()]; o != "" && o != k { // [FCVI-5.2.5-3]
						t.Errorf("%s while %s is open", k, o)
					}
					open[x.h.Op.IsRequest()] = k
					if x.f.Last() {
						open[x.h.Op.IsRequest()] = ""
					}
					m.frames = append(m.frames, x)
				}
				for i, id := range order { // [FCVI-5.9.6-1]
					if id != a.c.initTx+iu.MsgID(i) {
						t.Errorf("message %d has the id %d", i, id)
					}
				}
				oxids := map[uint16]bool{}
				for k, m := range msgs {
					first := m.frames[0]
					o := first.h.Op
					if o.IsRequest() { // [FCVI-5.2.1-1]
						if oxids[first.f.OXID] {
							t.Errorf("%s: an Exchange used twice", k)
						}
						oxids[first.f.OXID] = true
					}
					dest := b.c.handle
					if o.IsResponse() {
						dest = a.c.handle
					}
					total := 0
					for i, x := range m.frames {
						last := i == len(m.frames)-1
						p := (1024 - o.HeaderLen()) &^ 3 // [FCVI-5.7-3]
						switch {
						case x.f.SOF.Class() != class: // [FCVI-5.2.1-10] [FCVI-5.2.1-11]
							t.Errorf("%s: %v", k, x.f.SOF)
						case x.f.SOF.First() != (i == 0), x.f.Last() != last, class == fc.Class3 && (x.f.EOF == fc.EOFt) != last: // [FCVI-5.7-7]
							t.Errorf("%s: frame %d: %v", k, i, x.f.String())
						case x.h != first.h, x.f.OXID != first.f.OXID, x.f.SeqID != first.f.SeqID: // [FCVI-5.9.1-4] [FCFS-2.10-3]
							t.Errorf("%s: frame %d differs: %v", k, i, x.h)
						case int(x.f.SeqCnt) != i, x.f.CSCtl != 0: // [FCVI-5.8-5] [FCVI-5.8-3]
							t.Errorf("%s: frame %d: %v", k, i, x.f.String())
						case len(x.f.Opt) != o.HeaderLen() || fc.OptionalLen(x.f.DFCtl) != o.HeaderLen(): // [FCVI-5.9.1-2] [FCVI-5.8-4]
							t.Errorf("%s: frame %d: DF_CTL %d", k, i, x.f.DFCtl)
						case len(x.data) > p, !last && len(x.data) != p: // [FCVI-5.7-2]
							t.Errorf("%s: frame %d carries %d bytes", k, i, len(x.data))
						case o.HasData() != (x.f.FCtl&fc.FCtlRelOffset != 0), x.f.Param != uint32(total): // [FCVI-5.8-6]
							t.Errorf("%s: frame %d: relative offset %d, want %d", k, i, x.f.Param, total)
						case class == fc.Class2 && x.f.FCtl&fc.FCtlACKForm != fc.FCtlACK1: // [FCVI-5.8-11]
							t.Errorf("%s: F_CTL %06x", k, uint32(x.f.FCtl))
						case o.IsRequest() && x.f.RXID != fc.Unassigned:
							t.Errorf("%s: RX_ID %#x", k, x.f.RXID)
						case x.h.Handle != dest: // [FCVI-5.9.2-1] [FCVI-5.9.2-2]
							t.Errorf("%s: for %08x", k, x.h.Handle)
						case !o.HasData() && len(x.data) > 0: // [FCVI-5.1-3] [FCVI-6.3-1] [FCVI-6.5-1] [FCVI-6.6-1]
							t.Errorf("%s has a payload", k)
						}
						if o.HasData() {
							total += len(x.data)
						}
					}
					fctl := m.frames[len(m.frames)-1].f.FCtl &^ (fc.FCtlACKForm | fc.FCtlFill)
					answered := level == iu.ReliableReception && first.h.Flags&iu.FlagRspRqd != 0
					wantFctl := map[bool]fc.FCtl{true: 0x290008, false: 0x380008}[answered] // [FCVI-5.2.1-2] [FCVI-5.2.1-3]
					rr := level == iu.ReliableReception
					switch o {
					case iu.SendRqst: // [FCVI-6.2-1] [FCVI-5.7-6] [FCVI-5.9.4-5]
						if fctl != wantFctl || (first.h.Flags&iu.FlagRR != 0) != rr ||
							total != 2500 && total != 0 || total == 0 && len(m.frames) != 1 {
							t.Errorf("%s: F_CTL %06x, %d bytes, %v", k, uint32(fctl), total, first.h)
						}
						if !rr && first.h.Flags&iu.FlagRspRqd != 0 { // [FCVI-5.9.4-4]
							t.Errorf("%s asks for a response", k)
						}
					case iu.WriteRqst: // [FCVI-6.4-1] [FCVI-5.9.10-1] [FCVI-5.9.8-1] [FCVI-5.9.7-1] [FCVI-5.9.4-3]
						if fctl != wantFctl || first.h.Total != 1501 || total != 1501 ||
							first.h.RmtVA != 1000 || first.h.RmtHandle != 7 ||
							first.h.Flags&iu.FlagImm == 0 || first.h.Param != 0xABCD {
							t.Errorf("%s: F_CTL %06x, %v", k, uint32(fctl), first.h)
						}
					case iu.ReadRqst: // [FCVI-5.2.4-1]
						if fctl != 0x290000 || first.h.Total != 1700 ||
							first.h.Flags&^iu.FlagRR != iu.FlagRspRqd || first.h.Param != 0 {
							t.Errorf("%s: F_CTL %06x, %v", k, uint32(fctl), first.h)
						}
					case iu.ReadResp: // [FCVI-5.2.4-3] [FCVI-5.9.6-3]
						if fctl != 0x980008 || total != 1700 || len(m.frames) != 2 || first.f.RXID == fc.Unassigned {
							t.Errorf("%s: F_CTL %06x, %d bytes", k, uint32(fctl), total)
						}
					case iu.SendResp, iu.WriteResp: // [FCVI-5.1-9] [FCVI-5.2.2-2] [FCVI-5.2.2-3]
						if !rr || fctl != 0x980000 || first.h.Param != 0 {
							t.Errorf("%s: F_CTL %06x, %v", k, uint32(fctl), first.h)
						}
					}
				}
				for _, w := range a.sends {
					if !w.done || w.status != 0 {
						t.Errorf("%+v", w.status)
					}
				}
			})
		}
	}
}

// TestFCVI_5_3_5 checks the disconnect on the wire, and annex D. [FCVI-5.3.5-1] [FCVI-5.3.5-2]
// [FCVI-5.3.5-3] [FCVI-5.3.5-4] [FCVI-5.3.5-5] [FCVI-6.12-1] [FCVI-6.13-1] [FCVI-4-6]
func TestFCVI_5_3_5(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableDelivery)
	all := s.record()
	ac, bc := a.c, b.c
	ac.disconnect(s.net.Now())
	if ac.state != stDiscSent || ac.up != nil {
		t.Error(ac.state, ac.up)
	}
	s.inject(1, iu.Header{Handle: ac.handle, Op: iu.SendRqst, MsgID: ac.initRx}, nil, nil) // [FCVI-8.2-2]
	if s.ports[0].stats.WrongState+s.ports[0].stats.UnknownHandle == 0 {
		t.Error("a message after the disconnect")
	}
	s.net.Run(time.Second)
	i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.DisconnectRqst })
	q := (*all)[i]
	if q.h.Handle != bc.handle || q.h.RmtHandle != ac.handle || q.h.Total != ac.own.id ||
		q.h.Status().Reason != iu.ULPDisconnect || q.f.FCtl != 0x290000 ||
		q.h.Flags != 0 || q.h.MsgID != 0 { // [FCVI-5.9.6-5]
		t.Errorf("%v %v", q.h, q.f.String())
	}
	j := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.DisconnectResp })
	r := (*all)[j]
	if r.h.Handle != ac.handle || r.h.RmtHandle != bc.handle || r.h.Total != q.h.Total ||
		r.f.FCtl != 0x980000 || r.f.OXID != q.f.OXID || len(r.data) != 0 {
		t.Errorf("%v %v", r.h, r.f.String())
	}
	if b.broke != 1 || !b.order || a.broke != 0 { // [FCVI-5.3.5-6]
		t.Errorf("broken %d, %d", a.broke, b.broke)
	}
	// A second disconnect, for a handle in quarantine, is answered too. [FCVI-8.2-4]
	n := len(*all)
	s.inject(0, q.h, nil, func(f *fc.Frame) { f.FCtl = 0x290000 })
	if got := ops((*all)[n:]); got != "DISCONNECT_RQST DISCONNECT_RESP" {
		t.Error(got)
	}
	n = len(*all)
	s.inject(0, iu.Header{Handle: bc.handle, Op: iu.SendRqst}, nil, nil)
	if got := ops((*all)[n:]); got != "SEND_RQST" {
		t.Errorf("a handle in quarantine: %s", got)
	}
	// Here both ends disconnect at the same time.
	a, b = s.connect(iu.ReliableDelivery)
	a.c.disconnect(s.net.Now())
	b.c.disconnect(s.net.Now())
	s.net.Run(time.Second)
	if !a.c.gone || !b.c.gone || a.broke+b.broke != 0 {
		t.Errorf("crossed: %v %v", a.c.state, b.c.state)
	}
	// The peer does not know the handle in this frame. [FCVI-6.12-2]
	a, b = s.connect(iu.ReliableDelivery)
	h := b.c.handle
	b.c.up = nil
	b.c.setState(stError)
	b.c.setState(stIdle)
	b.c.release(s.net.Now(), -time.Second)
	a.post(vi.OpSendReceive, []byte("lost"))
	s.net.Run(time.Second)
	if a.broke != 1 || !a.c.gone || b.p.handles.get(h) != nil {
		t.Errorf("half open: broken %d, %v", a.broke, a.c.state)
	}
	// Here no answer arrives. [FCVI-8.6-1]
	a, _ = s.connect(iu.ReliableDelivery)
	f := s.net.AddFault(&fabric.Fault{Match: opcode(iu.DisconnectRqst), Do: fabric.Drop})
	a.c.disconnect(s.net.Now())
	s.net.Run(5 * s.ports[0].np.RATOV())
	if f.Done != discTries || !a.c.gone {
		t.Errorf("%d tries, %v", f.Done, a.c.state)
	}
}

// TestFCVI_C checks the set-up rules not proved by a successful set-up. [FCVI-C-8]
func TestFCVI_C(t *testing.T) {
	t.Run("FCVI-C-1", func(t *testing.T) { // the client cancels after RESP2 was sent
		s := newSim(t, simConfig{seed: 1, order: true})
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp3), Do: fabric.Drop})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.serve(b, "x")
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(time.Second)
		if b.c.state != stConnected || a.c.state != stResp2 {
			t.Fatal(a.c.state, b.c.state)
		}
		a.c.abandon(s.net.Now())
		s.net.Run(time.Second)
		if b.broke != 1 || !b.c.gone || !a.c.gone {
			t.Errorf("server %v, broken %d", b.c.state, b.broke)
		}
	})
	t.Run("FCVI-8.5-2", func(t *testing.T) { // the number of retries [FCVI-8.5-3] [FCVI-5.9.6-4]
		s := newSim(t, simConfig{seed: 1, order: true})
		all := s.record()
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectRqst), Do: fabric.Drop})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.serve(b, "x")
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(30 * time.Minute)
		var at []sent
		for _, x := range *all {
			if x.h.Op == iu.ConnectRqst {
				at = append(at, x)
			}
		}
		if len(at) != maxAttempts || a.result[0] != iu.ULPTimeout || s.ports[0].stats.Aborts != maxAttempts {
			t.Fatalf("%d attempts, %v, %d aborts", len(at), a.result, s.ports[0].stats.Aborts)
		}
		for i, x := range at[1:] {
			if x.h.Total != at[0].h.Total || int(x.h.MsgID) != i+2 || x.h.Flags&iu.FlagRetry == 0 ||
				x.f.OXID == at[i].f.OXID || !bytes.Equal(x.data, at[0].data) {
				t.Errorf("attempt %d: %v", i+2, x.h)
			}
		}
	})
	t.Run("FCVI-8.5-4", func(t *testing.T) { // a peer request that gets NO_MATCH is tried again [FCVI-5.3.4-10] [FCVI-5.3.3-3]
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		all := s.record()
		a.p.connectPeer(s, a, b)
		s.net.Run(2 * time.Minute)
		noMatch := 0
		for _, x := range *all {
			if x.h.Op == iu.ConnectResp1 && x.h.Status().Reason == iu.NoMatch {
				noMatch++
			}
		}
		b.p.connectPeer(s, b, a)
		s.net.Run(2 * time.Minute)
		if noMatch < 2 || len(a.result) != 1 || a.result[0] != iu.Confirmed || b.result[0] != iu.Confirmed {
			t.Errorf("%d refusals, then %v %v", noMatch, a.result, b.result)
		}
	})
	t.Run("attributes refused", func(t *testing.T) { // the server refuses
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableReception)
		s.serve(b, "x")
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(time.Second)
		if len(a.result) != 1 || a.result[0] != iu.InvalidReliability ||
			b.result[0] != iu.InvalidReliability || !a.c.gone || !b.c.gone {
			t.Errorf("%v %v", a.result, b.result)
		}
	})
	t.Run("FCVI-C-6", func(t *testing.T) { // copies of the request before and after the answer
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		all := s.record()
		s.dial(a, b, "absent", iu.ClientServer)
		s.net.Run(time.Second)
		q := (*all)[0]
		s.serve(b, "absent") // this wait comes too late for that request
		n := len(*all)
		s.inject(0, q.h, q.data, func(f *fc.Frame) { f.FCtl = 0x290000 })
		if x := (*all)[n+1]; x.h.Status().Reason != iu.NoMatch || s.ports[1].stats.DupRqst != 1 || b.c != nil {
			t.Errorf("%v, %d repeats", x.h, s.ports[1].stats.DupRqst)
		}
	})
	t.Run("FCVI-C-7", func(t *testing.T) {
		s := newSim(t, simConfig{seed: 1, order: true})
		f := s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp2), Do: fabric.Drop, Nth: 1})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		all := s.record()
		s.serve(b, "x")
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(time.Second)
		old := a.c.own
		n := len(*all)
		b.c.sendResp1(s.net.Now(), iu.Accepted) // a repeated RESP1 in C_RESP2 is answered by RESP2
		s.net.Run(time.Millisecond)
		if got := ops((*all)[n:]); f.Done != 1 || got != "CONNECT_RESP1 CONNECT_RESP2 CONNECT_RESP3" {
			t.Error(got)
		}
		// A RESP2 of another attempt is ignored.
		st := s.ports[1].stats.StaleResponses
		s.inject(0, iu.Header{Op: iu.ConnectResp2, Handle: b.c.handle, Flags: iu.FlagPos | 1, MsgID: old.attempt + 5, Total: old.id, Param: iu.Status{Reason: iu.Confirmed}.Param()}, nil, nil)
		if s.ports[1].stats.StaleResponses != st+1 {
			t.Error("an unknown attempt counts")
		}
	})
	t.Run("FCVI-8.3-4", func(t *testing.T) { // PENDING stops T_RQST, but not the consumer's time limit
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		all := s.record()
		b.p.addWait(0, &wait{disc: []byte("x"), match: func(*conn) {}}) // never decides
		s.dial(a, b, "x", iu.ClientServer)
		s.net.Run(25 * time.Second) // beyond T_RQST
		if strings.Count(ops(*all), "CONNECT_RQST") != 1 || len(a.result) != 0 {
			t.Errorf("%s, %v", ops(*all), a.result)
		}
		s.net.Run(20 * time.Second) // longer than FCVI_ULP_TIMEOUT [FCVI-8.3-2]
		if len(a.result) != 1 || a.result[0] != iu.ULPTimeout {
			t.Errorf("%v", a.result)
		}
	})
}

// TestFCVI_8_4 checks the errors the originator of messages detects. [FCVI-8.3-3] [FCVI-8.3-1]
// [FCVI-8.4-12] [FCVI-8.4-14] [FCVI-8.4-9] [FCVI-5.2.4-7]
func TestFCVI_8_4(t *testing.T) {
	told := func(all []sent) iu.Reason {
		for _, x := range all {
			if x.h.Op == iu.DisconnectRqst {
				return x.h.Status().Reason
			}
		}
		return 0
	}
	t.Run("FCVI-8.4-12", func(t *testing.T) {
		for _, op := range []iu.Opcode{iu.SendResp, iu.ReadResp} {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.connect(iu.ReliableReception)
			all := s.record()
			s.net.AddFault(&fabric.Fault{Match: opcode(op), Do: fabric.Drop})
			b.postRecv(10)
			w := a.post(map[iu.Opcode]vi.Control{iu.SendResp: vi.OpSendReceive, iu.ReadResp: vi.OpRDMARead}[op],
				make([]byte, 10))
			s.net.Run(defaultULPTimeout - time.Second)
			if w.done {
				t.Errorf("%v: done too early", op)
			}
			s.net.Run(2 * time.Second)
			if !w.done || w.status&vi.StatusTransportError == 0 || told(*all) != iu.RespTimeout || a.broke != 1 {
				t.Errorf("%v: %v, %v", op, w.status, told(*all))
			}
		}
	})
	t.Run("FCVI-8.4-14", func(t *testing.T) {
		for _, order := range []bool{true, false} {
			s := newSim(t, simConfig{seed: 1, order: order})
			a, b := s.connect(iu.ReliableReception)
			a.c.attrs.Streaming = false // each message requests a response
			all := s.record()
			s.net.AddFault(&fabric.Fault{Match: opcode(iu.SendResp), Do: fabric.Drop, Nth: 1})
			for range 2 {
				b.postRecv(10)
				a.post(vi.OpSendReceive, []byte("x"))
			}
			s.net.Run(time.Second)
			if early := told(*all) != 0; early != order {
				t.Errorf("in order %v: told after a second: %v", order, early)
			}
			s.net.Run(2 * time.Second) // T_GAP
			if told(*all) != iu.MsgLost {
				t.Errorf("in order %v: %v", order, told(*all))
			}
		}
	})
	t.Run("FCVI-8.4-9", func(t *testing.T) {
		for _, level := range levels {
			s := newSim(t, simConfig{seed: 1})
			a, b := s.connect(level)
			all := s.record()
			s.inject(0, iu.Header{Handle: b.c.handle, Op: iu.SendRqst, MsgID: a.c.initTx + window, Flags: map[bool]iu.Flags{true: iu.FlagRR}[level == iu.ReliableReception]}, nil, nil)
			s.net.Run(time.Second)
			if s.ports[1].stats.WindowFull != 1 || (b.c.state == stConnected) != (level == iu.Unreliable) ||
				level != iu.Unreliable && told(*all) != iu.PortResources {
				t.Errorf("%v: %v, %v", level, b.c.state, told(*all))
			}
		}
	})
	t.Run("FCVI-8.4-10", func(t *testing.T) { // a sequence whose last frame is missing [FCFS-2.10-4] [FCFS-2.10-5]
		for _, order := range []bool{true, false} {
			for _, level := range levels {
				s := newSim(t, simConfig{seed: 1, order: order})
				a, b := s.connect(level)
				all := s.record()
				b.postRecv(9000)
				s.net.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return opcode(iu.SendRqst)(f) && f.Last() }, Do: fabric.Drop, Nth: 1})
				a.post(vi.OpSendReceive, pattern(5000, 1))
				limit := fc.DefaultEDTOV
				if order {
					limit = defaultULPTimeout
				}
				s.net.Run(limit - time.Second)
				if b.c.state != stConnected || s.ports[1].stats.Gaps != 0 {
					t.Errorf("in order %v, %v: too early: %v, %v", order, level, b.c.state, told(*all))
				}
				s.net.Run(2 * time.Second)
				if (b.c.state == stConnected) != (level == iu.Unreliable) || s.ports[1].stats.Gaps != 1 {
					t.Errorf("in order %v, %v: %v, %d gaps", order, level, b.c.state, s.ports[1].stats.Gaps)
				}
				// On a path that keeps order the sender may detect the loss first, because the
				// sender waits as long for the answer.
				if why := told(*all); level != iu.Unreliable && why != iu.FrameLost &&
					!(order && level == iu.ReliableReception && why == iu.RespTimeout) {
					t.Errorf("in order %v, %v: told %v", order, level, why)
				}
				if level == iu.Unreliable { // the next message uses the descriptor
					a.post(vi.OpSendReceive, []byte("next"))
					s.net.Run(time.Second)
					if !b.recvs[0].done || string(b.recvs[0].buf[:4]) != "next" {
						t.Error("the next message does not arrive")
					}
				}
			}
		}
	})
	t.Run("FCVI-5.2.4-7", func(t *testing.T) {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.ReliableDelivery)
		f := s.net.AddFault(&fabric.Fault{Match: opcode(iu.ReadResp), Do: fabric.Drop})
		all := s.record()
		for range 10 {
			a.post(vi.OpRDMARead, make([]byte, 10))
		}
		s.net.Run(time.Second)
		if n := strings.Count(ops(*all), "READ_RQST"); n != int(b.attrs().MaxReads) || f.Done != n {
			t.Errorf("%d reads outstanding, %d allowed", n, b.attrs().MaxReads)
		}
	})
	t.Run("FCVI-5.2.2-9", func(t *testing.T) { // the originator does not disconnect after the error
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.ReliableReception)
		all := s.record()
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.SendResp), Do: fabric.Drop})
		w := a.post(vi.OpSendReceive, []byte("no receive"))
		s.net.Run(fc.DefaultRATOV - time.Second)
		if told(*all) != 0 || b.broke != 1 || w.done {
			t.Errorf("%v, %d", told(*all), b.broke)
		}
		s.net.Run(2 * time.Second)
		if told(*all) != iu.NoRecvDesc || w.status&vi.StatusRemoteDescriptor == 0 { // [FCVI-5.9.7-7] [FCVI-5.2.2-6]
			t.Errorf("%v, %v", told(*all), w.status)
		}
	})
}

// TestFCVI_7_4: a name different from the requested name ends the search; addresses are found by
// directory, name and FARP. [FCVI-7.6-3] [FCVI-7.4-1] [FCVI-7.4-3] [FCVI-5.9.7-10]
func TestFCVI_7_4(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a := s.ports[0]
	dial := func(to iu.NetAddress) iu.Reason {
		f := s.fake(0, iu.ReliableDelivery)
		b := s.fake(1, iu.ReliableDelivery)
		s.serve(b, "x")
		f.c = a.connect(s.net.Now(), connectArgs{mode: iu.ClientServer, local: f.net("me"),
			remote: to, attrs: f.attrs(), deadline: fc.Never, up: f, done: f.result1})
		s.net.Run(2 * time.Minute)
		if len(f.result) != 1 {
			t.Fatalf("%v: %v", to, f.result)
		}
		return f.result[0]
	}
	name := s.ports[1].np.Name()
	farps, questions := 0, 0
	s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		switch {
		case from != a.end:
		case f.Type == fc.TypeELS && len(f.Payload) > 0 && fc.CmdOf(f.Payload) == fc.ELSFARPReq:
			farps++
		case f.Type == fc.TypeELS && len(f.Payload) > 0 && fc.CmdOf(f.Payload) == fc.ELSPLOGI && f.DID == 0:
			t.Error("a login with address 0")
		case f.Type == fc.TypeCT && f.RCtl == fc.RCtlUnsolControl:
			questions++
		}
	})
	a.cache = make(map[hostKey]mapping) // the cache has a limit
	for i := range maxCache {
		a.cache[hostKey{len: uint16(i)}] = mapping{}
	}
	if r := dial(iu.NameAddress(uint64(name), []byte("x"))); r != iu.Confirmed || farps != 0 ||
		questions == 0 || len(a.cache) != 1 {
		t.Errorf("by Port_Name: %v, %d FARP requests, %d questions to the name server, %d in the cache",
			r, farps, questions, len(a.cache))
	}
	questions = 0
	if r := dial(iu.NameAddress(uint64(name), []byte("x"))); r != iu.Confirmed || farps != 0 || questions != 0 {
		t.Errorf("from the cache: %v, %d FARP requests, %d questions to the name server", r, farps, questions)
	}
	if r := dial(iu.NameAddress(uint64(name)+1, []byte("x"))); r != notReachable {
		t.Errorf("an unknown name: %v", r)
	}
	if r := dial(iu.IPAddress(addrOf(99), []byte("x"))); r != notReachable {
		t.Errorf("an unknown address: %v", r)
	}
	a.cfg.farpOnly = true // [FCVI-7.5-10]
	clear(a.cache)
	if r := dial(iu.IPAddress(addrOf(2), []byte("x"))); r != iu.Confirmed {
		t.Errorf("by FARP: %v", r)
	}
	if _, ok := a.cache[keyOf(iu.IPAddress(addrOf(2), nil))]; !ok {
		t.Error("not cached")
	}
	if r := dial(iu.IPAddress(addrOf(99), []byte("x"))); r != notReachable { // [FCVI-7.5-10]
		t.Errorf("an unknown address, by FARP: %v", r)
	}
	clear(a.cache)
	farps, questions = 0, 0
	if r := dial(iu.NameAddress(uint64(name), []byte("x"))); r != iu.Confirmed || farps == 0 || questions != 0 {
		t.Errorf("by Port_Name and FARP: %v, %d FARP requests, %d questions to the name server", r, farps, questions)
	}
	a.np.Logout(s.net.Now(), a.np.RemoteByName(name)) // [FCVI-7.4-2]
	if len(a.cache) != 0 {
		t.Error("a mapping outlives its login")
	}
}

// TestFCVI_5_2_5: a disconnect in the middle of a message is handled at once, whatever the
// diagnostic bits are. [FCVI-5.2.5-6] [FCVI-5.9.7-3]
func TestFCVI_5_2_5(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableDelivery)
	b.postRecv(100)
	s.inject(0, iu.Header{Handle: b.c.handle, Op: iu.SendRqst, MsgID: a.c.initTx}, []byte("half"),
		func(f *fc.Frame) { f.FCtl &^= fc.FCtlEndSeq | fc.FCtlLastSeq })
	s.inject(0, iu.Header{Handle: b.c.handle, RmtHandle: a.c.handle, Op: iu.DisconnectRqst, Total: a.c.own.id,
		Param: iu.Status{Reason: iu.ULPDisconnect, Diag: 0xFFFF}.Param()}, nil, nil)
	if b.broke != 1 || !b.order || b.recvs[0].done {
		t.Errorf("broken %d, orderly %v", b.broke, b.order)
	}
}

// TestFCVI_5_9_10 checks the connection ids. [FCVI-5.9.10-2]
func TestFCVI_5_9_10(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, _ := s.connect(iu.ReliableDelivery)
	b, _ := s.connect(iu.ReliableDelivery)
	x, y := a.c.own.id, b.c.own.id
	if x>>16 == y>>16 || uint16(y) != uint16(x)+1 {
		t.Errorf("%08x, then %08x", x, y)
	}
}

// TestFCVI_7_3: a peer may announce a window of zero at levels without responses. Messages are then
// sent one at a time, unblocked by the window.
func TestFCVI_7_3(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableReception)
	a.c.rattrs.MaxUnacked = 0
	for range 5 {
		b.postRecv(10)
		a.post(vi.OpSendReceive, []byte("x"))
		if a.c.tx.resp.pending.len() > 1 {
			t.Fatal("two at once")
		}
	}
	s.net.Run(time.Second)
	for _, w := range a.sends {
		if !w.done || w.status != 0 {
			t.Errorf("%v %v", w.done, w.status)
		}
	}
}

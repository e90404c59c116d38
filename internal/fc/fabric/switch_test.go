package fabric

import (
	"testing"
	"time"

	"viaduct/internal/fc"
)

// A wire records the frames a switch port sends.
type wire struct{ sent []fc.Frame }

func (w *wire) Send(f *fc.Frame) {
	c := *f
	c.Payload = append([]byte(nil), f.Payload...)
	w.sent = append(w.sent, c)
}

// take returns the frames sent since the last call.
func (w *wire) take() []fc.Frame {
	out := w.sent
	w.sent = nil
	return out
}

const (
	switchName = fc.WWN(0x1000_0200_0000_1001)
	fabricName = fc.WWN(0x1000_0200_0000_2002)
)

// attach returns a switch port whose link is up, and the port's wire.
func attach(s *Switch, info fc.LinkInfo) (*SwitchPort, *wire) {
	w := new(wire)
	p := s.NewPort(w)
	p.LinkUp(0, info)
	return p, w
}

func namedSwitch(change func(*SwitchConfig)) *Switch {
	cfg := SwitchConfig{Name: switchName, FabricName: fabricName, Domain: 5, EDTOV: 3 * time.Second,
		RATOV: 12 * time.Second}
	if change != nil {
		change(&cfg)
	}
	return NewSwitch(cfg)
}

// flogi returns the FLOGI of a port offering class 3 only.
func flogi(sid fc.Addr, ox uint16, name fc.WWN) (*fc.Frame, *fc.Login) {
	l := &fc.Login{Cmd: fc.ELSFLOGI, VersionHigh: 0x20, VersionLow: 0x20, RxSize: fc.MaxData,
		PortName: name, NodeName: name + 1<<60}
	l.Class[2].Options = 0x8000
	return &fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: l.Append(nil), Header: fc.Header{
		RCtl: fc.RCtlELSReq, DID: 0xFFFFFE, SID: sid, Type: fc.TypeELS, OXID: ox, RXID: fc.Unassigned,
		FCtl: fc.FCtlFirstSeq | fc.FCtlEndSeq | fc.FCtlSeqInit}}, l
}

// rejection returns the reason and explanation of an LS_RJT.
func rejection(t *testing.T, sent []fc.Frame) (reason, explanation uint8) {
	t.Helper()
	if len(sent) != 1 || len(sent[0].Payload) != 8 || sent[0].Payload[0] != 0x01 {
		t.Fatalf("no LS_RJT: %v", sent)
	}
	return sent[0].Payload[5], sent[0].Payload[6]
}

// TestFLOGI checks a switch's answer to FLOGI: the address as D_ID, and the service parameters in
// the LS_ACC. [FCFS-2.7-3]
func TestFLOGI(t *testing.T) {
	s := namedSwitch(nil)
	_, _ = attach(s, fc.LinkInfo{})
	p, w := attach(s, fc.LinkInfo{})
	f, _ := flogi(0, 0x4321, 0x2001_0200_0000_0001)
	p.Receive(0, f)
	sent := w.take()
	if len(sent) != 1 {
		t.Fatalf("answers: %v", sent)
	}
	a := sent[0]
	if a.DID != 0x050200 || a.SID != 0xFFFFFE || a.OXID != 0x4321 || a.RCtl != fc.RCtlELSReply || a.Type != fc.TypeELS {
		t.Errorf("LS_ACC %v", a.String())
	}
	got, _, err := fc.ParseLogin(a.Payload)
	want := fc.Login{
		Cmd: 0x02, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: 64, Features: 0x1100, RxSize: 2112,
		Word3: 12000, EDTOV: 3000, PortName: 0x1002_0200_0000_1001, NodeName: fabricName,
	}
	want.Class[2] = fc.ClassParams{Options: 0x8000, RxSize: 2112}
	if err != nil || got != want {
		t.Errorf("LS_ACC\n got %+v, %v\nwant %+v", got, err, want)
	}

	for _, c := range []struct {
		name   string
		loop   bool
		isl    bool
		change func(f *fc.Frame, l *fc.Login)
	}{
		{name: "without a Port_Name", change: func(f *fc.Frame, l *fc.Login) { l.PortName = 0; f.Payload = l.Append(nil) }},
		{name: "cut", change: func(f *fc.Frame, l *fc.Login) { f.Payload = f.Payload[:fc.LoginLen-1] }},
		{name: "of frames without data", change: func(f *fc.Frame, l *fc.Login) { l.RxSize = 0; f.Payload = l.Append(nil) }},
		{name: "with an AL_PA and no loop", change: func(f *fc.Frame, l *fc.Login) { f.SID = 0x01 }},
		{name: "at an inter-switch link", isl: true, change: func(*fc.Frame, *fc.Login) {}},
	} {
		s := namedSwitch(nil)
		p, w := attach(s, fc.LinkInfo{})
		if c.isl {
			w = new(wire)
			p = s.NewISL(w)
		}
		f, l := flogi(0, 1, 0x2001_0200_0000_0001)
		c.change(f, l)
		p.flogi(0, f)
		if reason, explanation := rejection(t, w.take()); reason != 0x07 ||
			explanation != 0x00 { // protocol error, no explanation
			t.Errorf("%s: reason %#x, explanation %#x", c.name, reason, explanation)
		}
		if s.Logins() != 0 || s.Stats().Malformed != 1 || s.Stats().Logins != 0 {
			t.Errorf("%s: %d logins, %+v", c.name, s.Logins(), s.Stats())
		}
	}
}

// TestFLOGIClasses: the switch does not grant a class the port does not offer. It promises
// sequential delivery if the port requests it and the switch keeps the order. [FCFS-2.7-3]
// [FCFS-2.9-5]
func TestFLOGIClasses(t *testing.T) {
	for _, outOfOrder := range []bool{false, true} {
		for _, asked := range []uint16{0, 0x8000, 0x8800, 0x0800} {
			for class := range 4 {
				s := namedSwitch(func(c *SwitchConfig) { c.OutOfOrder = outOfOrder })
				p, w := attach(s, fc.LinkInfo{})
				f, l := flogi(0, 1, 0x2001_0200_0000_0001)
				l.Class = [4]fc.ClassParams{}
				l.Class[class].Options = asked
				f.Payload = l.Append(nil)
				p.Receive(0, f)
				got, _, err := fc.ParseLogin(w.take()[0].Payload)
				var want [4]fc.ClassParams
				if asked&0x8000 != 0 && (class == 1 || class == 2) { // entries 1 and 2 are classes 2 and 3
					want[class] = fc.ClassParams{Options: 0x8000, RxSize: 2112}
					if asked == 0x8800 && !outOfOrder {
						want[class].Options = 0x8800
					}
				}
				if err != nil || got.Class != want {
					t.Errorf("options %#x of entry %d, out of order %v: got %+v, %v", asked,
						class, outOfOrder, got.Class, err)
				}
			}
		}
	}
}

// TestFLOGIAgain: two copies of a FLOGI make one login. A new FLOGI replaces the former login and
// removes the login's registrations, and other ports get a report of the end. Without a loop a port
// has one address. [FCFS-2.7-3] [FCFS-3.2-6]
func TestFLOGIAgain(t *testing.T) {
	const one, other = fc.WWN(0x2001_0200_0000_0001), fc.WWN(0x2001_0200_0000_0002)
	for _, c := range []struct {
		name       string
		ox         uint16
		port       fc.WWN
		logins     uint64 // in all
		registered bool   // the directory has a record of the port
		told       uint64
	}{
		{"the same frame", 7, one, 2, true, 0},
		{"a new login", 8, one, 3, false, 0},
		{"another port, other OX_ID", 8, other, 3, false, 1},
		{"another port, same OX_ID", 7, other, 3, false, 1},
	} {
		s := namedSwitch(nil)
		watch, seen := attach(s, fc.LinkInfo{})
		f, _ := flogi(0, 1, 0x2001_0200_0000_0009)
		watch.Receive(0, f)
		watch.logins[0x050100].scr = true // as if the port had sent SCR
		p, w := attach(s, fc.LinkInfo{})
		f, _ = flogi(0, 7, one)
		p.Receive(0, f)
		s.dir.ensure(0x050200).port = one
		s.state.announce(0, 0x050200)
		seen.take()
		w.take()

		f, _ = flogi(0, c.ox, c.port)
		p.Receive(0, f)
		if sent := w.take(); len(sent) != 1 || sent[0].Payload[0] != 0x02 {
			t.Errorf("%s: answered by %v", c.name, sent)
		}
		st := s.Stats()
		if st.Logins != c.logins || s.Logins() != 2 || (s.dir.byID[0x050200] != nil) != c.registered ||
			st.RSCNs != c.told {
			t.Errorf("%s: %d logged in, record %v, %+v", c.name, s.Logins(), s.dir.byID[0x050200], st)
		}
		if gone := s.state.items[itemKey{switchName, itemRecord, 0x050200}]; gone == nil || gone.gone == c.registered {
			t.Errorf("%s: other switches know %+v", c.name, gone)
		}
		sent := seen.take()
		if len(sent) != int(c.told) {
			t.Errorf("%s: told %v", c.name, sent)
		}
		for _, f := range sent { // an RSCN with one page in port address format
			if want := hexBytes(t, "61 04 0008 00 050200"); string(f.Payload) != string(want) || f.SID != 0xFFFFFD {
				t.Errorf("%s: told %x", c.name, f.Payload)
			}
		}
	}

	t.Run("nothing registered", func(t *testing.T) { // other switches get no removal of a record that they never had
		s := namedSwitch(nil)
		p, _ := attach(s, fc.LinkInfo{})
		for ox := range uint16(3) {
			f, _ := flogi(0, ox, one)
			p.Receive(0, f)
		}
		if n := len(s.state.items); n != 0 || s.Stats().Logins != 3 {
			t.Errorf("%d items, %+v", n, s.Stats())
		}
	})
	t.Run("loop", func(t *testing.T) {
		s := namedSwitch(nil)
		p, w := attach(s, fc.LinkInfo{Loop: true})
		for alpa, name := range map[fc.Addr]fc.WWN{0x01: one, 0x02: other} {
			f, _ := flogi(alpa, 1, name)
			p.Receive(0, f)
			if sent := w.take(); len(sent) != 1 || sent[0].DID != 0x050100|alpa || sent[0].Payload[0] != 0x02 {
				t.Errorf("AL_PA %v: %v", alpa, sent)
			}
		}
		if s.Logins() != 2 {
			t.Errorf("%d logged in on the loop", s.Logins())
		}
		p.LinkUp(0, fc.LinkInfo{}) // the link is no longer a loop
		f, _ := flogi(0, 2, one)
		p.Receive(0, f)
		if s.Logins() != 1 || p.logins[0x050100] == nil {
			t.Errorf("%d logged in after the loop", s.Logins())
		}
	})
}

// TestMovedOnLoop: a port returning with another AL_PA of the same loop is logged in twice until
// the former login ends. A login at another port of the switch ends the former login at once.
// [FCFS-3.2-6]
func TestMovedOnLoop(t *testing.T) {
	const name = fc.WWN(0x2001_0200_0000_0001)
	s := namedSwitch(nil)
	p, _ := attach(s, fc.LinkInfo{Loop: true})
	q, _ := attach(s, fc.LinkInfo{})
	for alpa := fc.Addr(1); alpa <= 2; alpa++ {
		f, _ := flogi(alpa, uint16(alpa), name)
		p.Receive(0, f)
		if len(p.logins) != int(alpa) {
			t.Errorf("%d logged in, want %d", len(p.logins), alpa)
		}
	}
	f, _ := flogi(0, 3, name)
	q.Receive(0, f)
	if len(p.logins) != 0 || len(q.logins) != 1 {
		t.Errorf("%d and %d logged in", len(p.logins), len(q.logins))
	}
}

// TestInvalidEOF: a frame ending with EOFni or EOFa is dropped and counted. [FCFS-2.2-3]
func TestInvalidEOF(t *testing.T) {
	for _, c := range []struct {
		eof     fc.EOF
		dropped bool
	}{{fc.EOFt, false}, {fc.EOFn, false}, {fc.EOFni, true}, {fc.EOFa, true}} {
		s := namedSwitch(nil)
		p, w := attach(s, fc.LinkInfo{})
		f, _ := flogi(0, 1, 0x2001_0200_0000_0001)
		f.EOF = c.eof
		p.Receive(0, f)
		if n := s.Stats().BadEOF; (n == 1) != c.dropped || (len(w.take()) == 0) != c.dropped {
			t.Errorf("%v: %d counted", c.eof, n)
		}
	}
}

// TestDirectoryWithoutLogin: a port that sends a request to the directory server before a PLOGI
// gets a LOGO. The request is counted as bad. [FCFS-2.11-3]
func TestDirectoryWithoutLogin(t *testing.T) {
	s := namedSwitch(nil)
	p, w := attach(s, fc.LinkInfo{})
	f, _ := flogi(0, 1, 0x2001_0200_0000_0001)
	p.Receive(0, f)
	w.take()
	p.Receive(0, &fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: hexBytes(t, "01 000000 fc 02 00 00 0112 0000 00000000 00 050100"), Header: fc.Header{
		RCtl: fc.RCtlUnsolControl, DID: 0xFFFFFC, SID: 0x050100, Type: fc.TypeCT, OXID: 2, RXID: fc.Unassigned,
		FCtl: fc.FCtlFirstSeq | fc.FCtlEndSeq | fc.FCtlSeqInit}})
	sent := w.take()
	if len(sent) != 1 || sent[0].SID != 0xFFFFFC || sent[0].DID != 0x050100 || sent[0].Payload[0] != 0x05 {
		t.Errorf("answered by %v", sent)
	}
	if st := s.Stats(); st.RequestsBad != 1 || st.Requests != 0 {
		t.Errorf("%+v", st)
	}
}

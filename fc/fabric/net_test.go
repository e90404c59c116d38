package fabric_test

import (
	"net/netip"
	"testing"
	"time"

	"viaduct/fc"
	"viaduct/fc/fabric"
)

// testPort is an N_Port with an upper level that records what it is told.
type testPort struct {
	*fc.NPort
	data    []string
	from    []fc.Addr
	out     []fc.Addr // logged out
	resumed []fc.Addr
	acked   int
	failed  []uint8
	online  int
}

func (u *testPort) PortOnline(fc.Time) { u.online++ }
func (u *testPort) Frame(_ fc.Time, r *fc.Remote, f *fc.Frame) {
	u.data = append(u.data, string(f.Payload))
	u.from = append(u.from, r.Addr)
}
func (u *testPort) LoggedOut(_ fc.Time, r *fc.Remote)                { u.out = append(u.out, r.Addr) }
func (u *testPort) Resumed(_ fc.Time, r *fc.Remote)                  { u.resumed = append(u.resumed, r.Addr) }
func (u *testPort) Acked(fc.Time, *fc.Remote, uint16, uint8, uint16) { u.acked++ }
func (u *testPort) Failed(_ fc.Time, _ *fc.Remote, _ uint16, reason uint8) {
	u.failed = append(u.failed, reason)
}
func (u *testPort) Abort(_ fc.Time, _ *fc.Remote, f *fc.Frame) bool { return f.OXID == 7 }

func newPort(n int, class2 bool) (*testPort, func(fc.Sender) fabric.Device) {
	u := &testPort{}
	mac := uint64(0x020000000000 + n)
	return u, func(out fc.Sender) fabric.Device {
		u.NPort = fc.NewNPort(fc.PortConfig{PortName: fc.PortName(mac, 1), NodeName: fc.NodeName(mac), Class2: class2,
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})}}, out)
		u.Register(fc.TypeFCVI, u)
		return u.NPort
	}
}

func (u *testPort) login(t *testing.T, n *fabric.Net, a fc.Addr) *fc.Remote {
	t.Helper()
	var r *fc.Remote
	var err error
	done := false
	u.Login(n.Now(), a, func(_ fc.Time, got *fc.Remote, e error) { r, err, done = got, e, true })
	n.RunUntil(2*time.Minute, func() bool { return done })
	if err != nil || r == nil {
		t.Fatalf("login to %v: %v", a, err)
	}
	return r
}

func (u *testPort) sendText(n *fabric.Net, r *fc.Remote, c fc.Class, ox uint16, s string) bool {
	return u.Send(n.Now(), r, c, true, &fc.Frame{Payload: []byte(s), Header: fc.Header{RCtl: fc.RCtlUnsolData, Type: fc.TypeFCVI,
		FCtl: fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq, SeqID: r.NextSeqID(), OXID: ox, RXID: fc.Unassigned}})
}

func newSwitch(domain uint8) *fabric.Switch {
	return fabric.NewSwitch(fabric.SwitchConfig{Name: fc.NodeName(0x020000001000 + uint64(domain)), Domain: domain})
}

func TestTopologies(t *testing.T) {
	tests := []struct {
		name  string
		topo  fc.Topology
		dir   bool
		build func(n *fabric.Net, a, b func(fc.Sender) fabric.Device)
	}{
		{"point-to-point", fc.PointToPoint, false, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) { n.Connect(a, b) }},
		{"private loop", fc.PrivateLoop, false, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) { n.Loop(nil, a, b) }},
		{"public loop", fc.PublicLoop, true, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) { n.Loop(newSwitch(1), a, b) }},
		{"fabric", fc.FabricAttached, true, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) {
			sw := newSwitch(1)
			n.Attach(sw, a)
			n.Attach(sw, b)
		}},
		{"two domains", fc.FabricAttached, true, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) {
			s1, s2, s3 := newSwitch(1), newSwitch(2), newSwitch(3)
			n.Attach(s1, a)
			n.Attach(s3, b)
			n.JoinSwitches(s1, s2)
			n.JoinSwitches(s2, s3)
		}},
	}
	for _, tt := range tests { // [FCFS-3.2-1] [FCFS-3.2-2]
		t.Run(tt.name, func(t *testing.T) {
			n := fabric.NewNet(1)
			a, mka := newPort(1, false)
			b, mkb := newPort(2, false)
			tt.build(n, mka, mkb)
			n.Start()
			if !n.RunUntil(3*time.Minute, func() bool { return a.State() == fc.Online && b.State() == fc.Online }) {
				t.Fatalf("states %v, %v; a %+v", a.State(), b.State(), a.Stats())
			}
			n.Run(time.Second)
			if a.Topology() != tt.topo || b.Topology() != tt.topo || a.HasDirectory() != tt.dir {
				t.Errorf("topologies %v, %v, directory %v", a.Topology(), b.Topology(), a.HasDirectory())
			}
			if a.ID() == b.ID() || a.ID() == 0 || b.ID() == 0 {
				t.Fatalf("addresses %v, %v", a.ID(), b.ID())
			}
			r := a.login(t, n, b.ID())
			if r.PortName != b.Name() || r.NodeName != b.Node() {
				t.Errorf("logged in with %v/%v", r.PortName, r.NodeName)
			}
			a.sendText(n, r, fc.Class3, 1, "hello")
			b.sendText(n, b.login(t, n, a.ID()), fc.Class3, 2, "and back")
			n.Run(time.Second)
			if len(b.data) != 1 || b.data[0] != "hello" || len(a.data) != 1 || a.data[0] != "and back" {
				t.Errorf("delivered %q, %q", a.data, b.data)
			}
			var found fc.FARP
			var err error
			a.FARP(n.Now(), fc.FARPMatchIP, fc.FARP{RespIP: b.IPForms()[0]}, fc.FARPInitReply, func(_ fc.Time, f fc.FARP, e error) { found, err = f, e })
			n.Run(time.Second)
			if err != nil || found.RespID != b.ID() || found.RespPortName != b.Name() {
				t.Errorf("FARP found %+v, %v", found, err)
			}
			if tt.dir {
				var ids []fc.Addr
				ip := b.IPForms()[0]
				a.Query(n.Now(), fc.NSGIDIPP, ip[:], func(_ fc.Time, reply []byte, e error) {
					err = e
					fc.ParseIDList(reply, func(id fc.Addr) { ids = append(ids, id) })
				})
				n.Run(time.Second)
				if err != nil || len(ids) != 1 || ids[0] != b.ID() {
					t.Errorf("GID_IPP found %v, %v", ids, err)
				}
			}
		})
	}
}

func BenchmarkNet(b *testing.B) {
	n := fabric.NewNet(1)
	pa, mka := newPort(1, false)
	pb, mkb := newPort(2, false)
	sw := newSwitch(1)
	n.Attach(sw, mka)
	n.Attach(sw, mkb)
	n.Start()
	n.RunUntil(time.Minute, func() bool { return pa.State() == fc.Online && pb.State() == fc.Online })
	var r *fc.Remote
	pa.Login(n.Now(), pb.ID(), func(_ fc.Time, got *fc.Remote, _ error) { r = got })
	n.Run(time.Second)
	b.ReportAllocs()
	payload := string(make([]byte, 2048))
	for b.Loop() {
		pa.sendText(n, r, fc.Class3, 1, payload)
		n.Run(20 * time.Microsecond)
		pb.data, pb.from = pb.data[:0], pb.from[:0]
	}
}

package fcvi

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/testkit"
	"viaduct/vi"
)

// A capture records the bytes of a connection in a pcap file, as IPv4 and TCP packets.
type capture struct {
	mu  sync.Mutex
	buf []byte
	seq [2]uint32
	got [2][]byte // the bytes of an incomplete frame, for each side
}

func newCapture() *capture {
	h := binary.LittleEndian.AppendUint32(nil, 0xA1B2C3D4)
	h = append(h, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	h = binary.LittleEndian.AppendUint32(h, 1<<18)
	h = binary.LittleEndian.AppendUint32(h, 101) // raw IP
	return &capture{buf: h, seq: [2]uint32{1000, 5000}}
}

// add records bytes sent by side 0 (the dialling side) or side 1. Each FCIP frame becomes a TCP
// segment, because tshark 4.0 expects the Fibre Channel header of every frame in a segment at the
// offset of the first one's header.
func (c *capture) add(side int, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got[side] = append(c.got[side], b...)
	for len(c.got[side]) >= 16 {
		n, err := fcip.FrameLen(c.got[side])
		if err != nil || len(c.got[side]) < n {
			return
		}
		c.packet(side, c.got[side][:n], 0x18)
		c.got[side] = c.got[side][n:]
	}
}

func (c *capture) packet(side int, b []byte, flags byte) {
	ports := [2]uint16{40000, fcip.Port}
	addr := [2][4]byte{{192, 0, 2, 1}, {192, 0, 2, 2}}
	total := 40 + len(b)
	now := time.Now()
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(now.Unix()))
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(now.Nanosecond()/1000))
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(total))
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(total))
	ip := []byte{0x45, 0, byte(total >> 8), byte(total), 0, 1, 0x40, 0, 64, 6, 0, 0}
	ip = append(ip, addr[side][:]...)
	ip = append(ip, addr[1-side][:]...)
	c.buf = append(c.buf, ip...)
	c.buf = binary.BigEndian.AppendUint16(c.buf, ports[side])
	c.buf = binary.BigEndian.AppendUint16(c.buf, ports[1-side])
	c.buf = binary.BigEndian.AppendUint32(c.buf, c.seq[side])
	c.buf = binary.BigEndian.AppendUint32(c.buf, c.seq[1-side])
	c.buf = append(c.buf, 0x50, flags, 0xFF, 0xFF, 0, 0, 0, 0)
	c.buf = append(c.buf, b...)
	c.seq[side] += uint32(len(b))
	if flags&2 != 0 {
		c.seq[side]++
	}
}

func (c *capture) wrap(nc net.Conn) net.Conn {
	c.mu.Lock()
	c.packet(0, nil, 0x02)
	c.packet(1, nil, 0x12)
	c.packet(0, nil, 0x10)
	c.mu.Unlock()
	return &captured{nc, c}
}

type captured struct {
	net.Conn
	c *capture
}

func (x *captured) Write(b []byte) (int, error) {
	x.c.add(0, b)
	return x.Conn.Write(b)
}

func (x *captured) Read(b []byte) (int, error) {
	n, err := x.Conn.Read(b)
	x.c.add(1, b[:n])
	return n, err
}

// TestTshark lets an independent dissector decode an FCIP link: Special Frame, encapsulation,
// logins, directory, FARP, classes 2 and 3, and FC-VI frames.
func TestTshark(t *testing.T) {
	testkit.Long(t, "5 s")
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("SKIPPED: tshark is not installed; nothing independent has looked at our FCIP link")
	}
	cap := newCapture()
	server := openNIC(t, Config{Listen: "127.0.0.1:0", Class2: true})
	asked := false
	client := openNIC(t, Config{Class2: true, WrapConn: func(nc net.Conn) net.Conn {
		// The first connection serves only to learn the name of the other end.
		if !asked {
			asked = true
			return nc
		}
		return cap.wrap(nc)
	}})
	v, w, mem := connectNICs(t, client, server, vi.ReliableReception)
	if err := w.PostRecv(vi.NewRecv()); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*vi.Descriptor{
		vi.NewRDMAWrite(mem[1].Remote(0), mem[0].Segment(0, 6001)),
		vi.NewSend(),
		vi.NewRDMARead(mem[1].Remote(0), mem[0].Segment(0, 5000)),
	} {
		if err := v.PostSend(d); err != nil {
			t.Fatal(err)
		}
		if _, err := v.SendWait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	// The link also carries FARP in both directions, an ADISC and an ECHO.
	dev := client.Device().(*device)
	var s *station
	for _, x := range dev.away {
		s = x.s
	}
	peer := server.Device().(*device)
	found := make(chan error, 3)
	s.do(func(now fc.Time) {
		s.np.FARP(now, fc.FARPMatchIP, fc.FARP{RespIP: fc.FARPIP(peer.ips[0])}, fc.FARPInitReply,
			func(_ fc.Time, _ fc.FARP, err error) { found <- err })
		r := s.np.RemoteByName(peer.home.np.Name())
		s.np.ELS(now, r.Addr, append(fc.AppendCmd(nil, fc.ELSECHO), "echo"...),
			func(_ fc.Time, _ []byte, err error) { found <- err })
		s.np.Abort(now, r, fc.Class3, 0x7123, fc.Unassigned, 9, false, func(_ fc.Time, accepted bool) { found <- nil })
	})
	for range 3 {
		if err := <-found; err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Disconnect(); err != nil {
		t.Fatal(err)
	}
	client.Close()

	file := filepath.Join(t.TempDir(), "fcip.pcap")
	cap.mu.Lock()
	defer cap.mu.Unlock()
	if err := os.WriteFile(file, cap.buf, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []string {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, tshark,
			append([]string{"-r", file, "-o", "fc.reassemble:FALSE", "-o", "tcp.check_checksum:FALSE"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tshark: %v", err)
		}
		return strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	}
	for _, line := range run("-Y", "_ws.malformed || _ws.expert.severity == error") {
		// The LS_ACC to a FARP-REPLY is one word (RFC 2625, 5.6). tshark expects another FARP
		// payload there.
		if line != "" && !strings.Contains(line, "ACC (FARP-REPLY)") {
			t.Errorf("malformed or in error for tshark: %s", line)
		}
	}
	want := []struct {
		field string
		vals  []string
	}{
		{"fcip.pflags.sf", []string{"True", "False"}},
		{"fcels.opcode", []string{"0x04", "0x03", "0x02", "0x54", "0x55", "0x62"}},
		{"fcdns.opcode", []string{"0x0212", "0x0213", "0x0217", "0x021f", "0x01b1", "0x0117", "0x0112", "0x8002"}},
		{"fc.type", []string{"0x58", "0x20", "0x01", "0x00"}},
		{"fc.r_ctl", []string{"0xc0", "0x22", "0x23", "0x81", "0x85", "0x04", "0x02", "0x03", "0x01"}},
	}
	args := []string{"-T", "fields"}
	for _, w := range want {
		args = append(args, "-e", w.field)
	}
	seen := make([]map[string]int, len(want))
	for _, line := range run(args...) {
		for i, col := range strings.Split(line, "\t") {
			if seen[i] == nil {
				seen[i] = map[string]int{}
			}
			for _, v := range strings.Split(col, ",") {
				seen[i][number(v)]++
			}
		}
	}
	for i, w := range want {
		for _, v := range w.vals {
			if seen[i][number(v)] == 0 {
				t.Errorf("%s: tshark shows %v, without %s", w.field, seen[i], v)
			}
		}
	}
}

// number converts the forms of a value in tshark's output into a single form.
func number(s string) string {
	switch s = strings.ToLower(s); s {
	case "true":
		return "1"
	case "false":
		return "0"
	}
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		if h = strings.TrimLeft(h, "0"); h == "" {
			h = "0"
		}
		return h
	}
	return s
}

// askFor repeats a connection request until the other side waits for the request.
func askFor(ctx context.Context, v *vi.VI, local, remote vi.Address) error {
	for {
		_, err := v.ConnectRequest(ctx, local, remote)
		if !errors.Is(err, vi.ErrNoMatch) || ctx.Err() != nil {
			return err
		}
	}
}

func openNIC(t testing.TB, cfg Config) *vi.NIC {
	t.Helper()
	return openNamed(t, cfg, "")
}

// openNamed opens a NIC with a separate host address.
func openNamed(t testing.TB, cfg Config, host string) *vi.NIC {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vi.Open(p, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// connectNICs connects a VI of a to a VI of b, and registers memory on both NICs.
func connectNICs(t testing.TB, a, b *vi.NIC, level vi.Reliability) (v, w *vi.VI, mem [2]*vi.Region) {
	t.Helper()
	var vis [2]*vi.VI
	for i, n := range []*vi.NIC{a, b} {
		var err error
		if vis[i], err = n.CreateVI(vi.Attributes{Reliability: level, EnableRDMAWrite: true, EnableRDMARead: level != vi.UnreliableDelivery}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if mem[i], err = n.RegisterMem(make([]byte, 1<<16), vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true}); err != nil {
			t.Fatal(err)
		}
	}
	at := vi.Address{Host: b.Query().LocalAddress, Discriminator: []byte("x")}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		r, err := b.ConnectWait(ctx, at)
		if err == nil {
			err = r.Accept(ctx, vis[1])
		}
		done <- err
	}()
	if err := askFor(ctx, vis[0], vi.Address{Discriminator: []byte("me")}, at); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return vis[0], vis[1], mem
}

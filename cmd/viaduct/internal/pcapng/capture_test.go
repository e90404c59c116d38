package pcapng

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"viaduct/internal/testkit"
)

// record captures a conversation over loopback. It returns the path of the capture and the bytes of
// each direction.
func record(t *testing.T, network string) (path string, out, in []byte, local net.Addr) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x.pcapng")
	c, err := Create(path, "test")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen(network, ":0")
	if err != nil {
		t.Skipf("SKIPPED: no %s here: %v", network, err)
	}
	defer l.Close()
	out = make([]byte, 700_001)
	in = make([]byte, 123_457)
	for i := range out {
		out[i] = byte(rand.Uint32())
	}
	for i := range in {
		in[i] = byte(rand.Uint32())
	}
	done := make(chan []byte, 1)
	go func() {
		p, err := l.Accept()
		if err != nil {
			done <- nil
			return
		}
		defer p.Close()
		b, _ := io.ReadAll(p)
		p.Write(in)
		done <- b
	}()
	raw, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	w := c.Conn(raw, true)
	if _, err := w.Write(out[:5]); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(out[5:]); err != nil {
		t.Fatal(err)
	}
	if err := w.(*Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(w)
	if err != nil || !bytes.Equal(got, in) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	w.Close()
	if !bytes.Equal(<-done, out) {
		t.Fatal("the peer got something else")
	}
	c.Datagram(true, netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("127.0.0.1:3935"), []byte("hello"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return path, out, in, raw.LocalAddr()
}

func TestCapture(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		t.Run(network, func(t *testing.T) {
			path, out, in, local := record(t, network)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
			if err != nil {
				t.Fatal(err)
			}
			var a, b []byte
			next := map[bool]uint32{}
			fins := 0
			for {
				data, _, err := r.ReadPacketData()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
				if p.ErrorLayer() != nil {
					t.Fatal(p.ErrorLayer().Error())
				}
				if l4, ok := p.TransportLayer().(*layers.TCP); ok {
					l4.SetNetworkLayerForChecksum(p.NetworkLayer())
				}
				if l4, ok := p.TransportLayer().(*layers.UDP); ok {
					l4.SetNetworkLayerForChecksum(p.NetworkLayer())
				}
				if err, mism := p.VerifyChecksums(); err != nil || len(mism) != 0 {
					t.Fatalf("checksums: %v %v", err, mism)
				}
				tcp, ok := p.TransportLayer().(*layers.TCP)
				if !ok {
					continue
				}
				mine := int(tcp.SrcPort) == local.(*net.TCPAddr).Port
				if tcp.SYN {
					next[mine] = tcp.Seq + 1
					continue
				}
				if tcp.Seq != next[mine] || tcp.Ack != next[!mine] {
					t.Fatalf("seq %d ack %d, want %d %d", tcp.Seq, tcp.Ack, next[mine], next[!mine])
				}
				next[mine] += uint32(len(tcp.Payload))
				if tcp.FIN {
					next[mine]++
					fins++
				}
				if mine {
					a = append(a, tcp.Payload...)
				} else {
					b = append(b, tcp.Payload...)
				}
			}
			if !bytes.Equal(a, out) || !bytes.Equal(b, in) || fins != 2 {
				t.Errorf("the capture holds %d and %d bytes and %d ends, want %d, %d, 2", len(a),
					len(b), fins, len(out), len(in))
			}
		})
	}
}

func TestReset(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcapng")
	c, err := Create(path, "test")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	w := c.Conn(raw, true).(*Conn)
	w.SetLinger(0)
	w.Close()
	p.Close()
	if !w.reset || w.finOut {
		t.Error("the reset is not in the capture")
	}
	c.Close()
}

// TestTshark: tshark finds no malformed packet, TCP anomaly or wrong checksum in a capture.
func TestTshark(t *testing.T) {
	testkit.Long(t, "5 s")
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("SKIPPED: tshark is not installed")
	}
	path, out, _, _ := record(t, "tcp4")
	cmd := exec.Command(tshark, "-r", path, "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-Y", "_ws.malformed or tcp.analysis.flags or tcp.checksum.status==0 or ip.checksum.status==0")
	if b, err := cmd.Output(); err != nil || len(b) != 0 {
		t.Errorf("tshark complains: %v\n%s", err, b)
	}
	b, err := exec.Command(tshark, "-r", path, "-q", "-z", "follow,tcp,raw,0").Output()
	if err != nil {
		t.Fatal(err)
	}
	hex := 0
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "\t") && len(line) > 200 {
			hex += len(strings.TrimSpace(line)) / 2
		}
	}
	if hex < len(out)-100 {
		t.Errorf("tshark followed %d bytes of %d", hex, len(out))
	}
}

// watchedFile is a capture file that checks after each write that it ends with a whole block.
type watchedFile struct {
	t     *testing.T
	b     []byte
	ends  int // the end of the last whole block
	write int
}

func (f *watchedFile) Write(b []byte) (int, error) {
	f.b = append(f.b, b...)
	f.write++
	for f.ends+8 <= len(f.b) {
		n := int(binary.LittleEndian.Uint32(f.b[f.ends+4:]))
		if f.ends+n > len(f.b) {
			break
		}
		f.ends += n
	}
	if f.ends != len(f.b) {
		f.t.Errorf("after write %d the file has %d bytes, and its whole blocks end at %d", f.write, len(f.b), f.ends)
	}
	return len(b), nil
}

func (f *watchedFile) Close() error { return nil }

// TestWholeBlocks: at any time the file ends with a whole block, and Flush writes all frames.
func TestWholeBlocks(t *testing.T) {
	f := &watchedFile{t: t}
	c, err := New(f, "test")
	if err != nil {
		t.Fatal(err)
	}
	from, to := netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("127.0.0.1:4791")
	for i := range 1000 {
		c.Datagram(i%2 == 0, from, to, make([]byte, i*7))
	}
	before := f.write
	if c.Datagram(true, from, to, []byte("the last one")); c.Flush() != nil || !bytes.Contains(f.b, []byte("the last one")) {
		t.Error("Flush has not written the last frame")
	}
	if before < 50 {
		t.Errorf("%d writes for 3.5 MB", before)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

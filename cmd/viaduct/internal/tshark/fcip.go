package tshark

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"viaduct/cmd/viaduct/internal/pcapng"
	"viaduct/internal/fc/fcip"
)

// A direction is the traffic of an end of an FCIP link.
type direction struct{ src, dst netip.AddrPort }

// FramePerPacket copies a capture of FCIP links and puts every encapsulated frame into a separate
// packet. The copy is needed because Wireshark 4.0 shows only the first frame of a packet. The
// capture must be complete and in order, as written by --pcap.
func FramePerPacket(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := pcapgo.NewNgReader(in, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		return err
	}
	out, err := pcapng.Create(to, "a frame per packet")
	if err != nil {
		return err
	}
	return errors.Join(split(r, out), out.Close())
}

func split(r *pcapgo.NgReader, out *pcapng.Capture) error {
	streams := make(map[direction]*pcapng.Stream) // streams by the direction of their opener
	rest := make(map[direction][]byte)            // the beginning of the next frame
	for {
		b, _, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		p := gopacket.NewPacket(b, layers.LinkTypeEthernet, gopacket.NoCopy)
		t, ok := p.TransportLayer().(*layers.TCP)
		if !ok {
			continue
		}
		src, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
		dst, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Dst().Raw())
		d := direction{netip.AddrPortFrom(src, uint16(t.SrcPort)), netip.AddrPortFrom(dst, uint16(t.DstPort))}
		if t.SYN && !t.ACK {
			streams[d] = out.Stream(d.src, d.dst, true)
		}
		s, dialed := streams[d], true
		if s == nil {
			s, dialed = streams[direction{d.dst, d.src}], false
		}
		if s == nil {
			return fmt.Errorf("packets from %v to %v without a SYN", d.src, d.dst)
		}
		b = append(rest[d], t.Payload...)
		for len(b) >= fcip.HeaderLen {
			n, err := fcip.FrameLen(b)
			if err != nil {
				return fmt.Errorf("from %v to %v: %w", d.src, d.dst, err)
			}
			if len(b) < n {
				break
			}
			s.Data(dialed, b[:n])
			b = b[n:]
		}
		rest[d] = b
	}
	for d, b := range rest {
		if len(b) > 0 {
			return fmt.Errorf("from %v to %v: %d bytes of a frame at the end", d.src, d.dst, len(b))
		}
	}
	return nil
}

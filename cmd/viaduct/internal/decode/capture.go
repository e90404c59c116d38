package decode

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// ErrNoCapture reports that the input is neither pcap nor pcapng.
var ErrNoCapture = errors.New("neither a pcap nor a pcapng capture")

// A source returns the frames of a capture. The bytes are valid until the next call.
type source interface {
	ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
}

const ngMagic = 0x0a0d0d0a

// open determines the format of the capture r. It returns a source of the frames and a function for
// the link type of a frame. The error matches ErrNoCapture.
func open(r io.Reader) (src source, link func(gopacket.CaptureInfo) layers.LinkType, err error) {
	br := bufio.NewReaderSize(r, 256<<10)
	head, err := br.Peek(4)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoCapture, err)
	}
	if binary.LittleEndian.Uint32(head) != ngMagic {
		p, err := pcapgo.NewReader(br)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrNoCapture, err)
		}
		return p, func(gopacket.CaptureInfo) layers.LinkType { return p.LinkType() }, nil
	}
	n, err := pcapgo.NewNgReader(br, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoCapture, err)
	}
	return n, func(ci gopacket.CaptureInfo) layers.LinkType {
		i, err := n.Interface(ci.InterfaceIndex)
		if err != nil {
			return n.LinkType()
		}
		return i.LinkType
	}, nil
}

package decode

import (
	"errors"
	"fmt"
	"io"

	"viaduct/internal/wire/portmapwire"
	"viaduct/portmap"
)

// portmap decodes a UDP datagram from or to a Port Mapper.
func (d *Decoder) portmap(p *packet) {
	m := d.message(nil, p.src.Port() == portmap.Port)
	m.Src, m.Dst, m.Proto, m.Name = p.src, p.dst, "portmap", "malformed datagram"
	defer d.emit(m)
	x, err := portmapwire.Parse(p.payload)
	switch {
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF) && p.missing > 0:
		m.Note = "cut short by the capture"
		return
	case errors.Is(err, io.ErrUnexpectedEOF):
		m.wrong("SDP-7.3-1", fmt.Sprintf("%d bytes, a message has %d", len(p.payload), portmapwire.MessageLen))
		return
	case errors.Is(err, portmapwire.ErrVersion):
		m.wrong("SDP-7.3.1.1-1", err.Error())
		return
	default:
		m.wrong("SDP-7.3.1.3-1", err.Error())
		return
	}
	m.Name = x.Type.String()
	m.num("portmap.type", uint64(x.Type))
	m.num("portmap.pm_time", uint64(x.PmTime))
	m.hex("portmap.handle", x.AssocHandle)
	m.text("portmap.cp", x.Cp.String())
	m.text("portmap.ap", x.Ap.String())
}

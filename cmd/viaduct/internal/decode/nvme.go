package decode

import (
	"bytes"

	"viaduct/internal/wire/nvmewire"
)

// An nvmeQueue is a stream whose MPA Request announces an NVMe queue in the private data.
type nvmeQueue struct{ admin bool }

// nvmeRequest recognizes the private data of an NVMe host: 32 bytes, with 22 zero bytes at the end.
// nvmeRequest returns nil for other private data.
func nvmeRequest(private []byte) *nvmeQueue {
	r, err := nvmewire.ParseRequest(private)
	if err != nil || len(private) != nvmewire.RequestLen || r.RecFmt != 0 || r.HRQSize == 0 || r.HSQSize == 0 ||
		!bytes.Equal(private[10:], make([]byte, nvmewire.RequestLen-10)) {
		return nil
	}
	return &nvmeQueue{admin: r.QID == 0}
}

// capsule decodes the first segment of a Send: a command from the Initiator, or a response. It
// leaves m unchanged if body is too short.
func (q *nvmeQueue) capsule(m *Message, command bool, body []byte) {
	if !command {
		c, err := nvmewire.ParseCQE(body)
		if err != nil {
			return
		}
		m.Proto, m.Name = "nvme", "Response"
		m.hex("nvme.cid", uint64(c.CID))
		m.text("nvme.status", c.Status.String())
		m.hex("nvme.result", c.Result)
		m.num("nvme.sqhd", uint64(c.SQHead))
		return
	}
	s, err := nvmewire.ParseSQE(body)
	if err != nil {
		return
	}
	m.Proto, m.Name = "nvme", s.Name(q.admin)
	m.hex("nvme.cid", uint64(s.CID))
	if s.Opcode != nvmewire.OpFabrics && s.NSID != 0 {
		m.num("nvme.nsid", uint64(s.NSID))
	}
	switch {
	case s.Opcode == nvmewire.OpFabrics && s.FCType == nvmewire.FCConnect:
		m.num("nvme.qid", uint64(s.ConnectCommand().QID))
	case s.Opcode == nvmewire.OpFabrics:
		m.hex("nvme.property", uint64(s.Property().Offset))
		m.hex("nvme.value", s.Property().Value)
	case !q.admin && (s.Opcode == nvmewire.OpRead || s.Opcode == nvmewire.OpWrite):
		first, blocks := s.Range()
		m.num("nvme.slba", first)
		m.num("nvme.blocks", uint64(blocks))
	}
	if s.SGL.Length > 0 {
		m.hex("nvme.sgl_type", uint64(s.SGL.Type))
		m.hex("nvme.sgl_key", uint64(s.SGL.Key))
		m.hex("nvme.sgl_address", s.SGL.Addr)
		m.num("nvme.sgl_length", uint64(s.SGL.Length))
	}
}

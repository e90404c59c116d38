package conform

import (
	"bytes"
	"math/rand/v2"

	"viaduct/internal/wire/ib"
)

// roceDatagrams tests unreliable datagrams.
var roceDatagrams = []Case{
	{Name: "roce/datagram", Rows: list("ROCE-UD-1", "ROCE-OP-10", "ROCE-UD-5"), Text: "a datagram is received, and its answer goes to the queue pair and with the key that it names",
		run: func(t *T) {
			e := t.startRoCE()
			e.datagramEchoed("ROCE-UD-1", pattern(100))
			e.datagramEchoed("ROCE-UD-1", pattern(e.mtu))
		}},
	{Name: "roce/datagram-key", Rows: list("ROCE-UD-2"), Text: "a datagram with another queue key is dropped",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.datagram(pattern(50))
			p.DETH.QKey ^= 0x10
			e.send(p)
			e.silent("ROCE-UD-2", "a datagram with another key")
			e.datagramEchoed("ROCE-UD-2", pattern(51))
		}},
}

// datagram returns a datagram for the peer's UD queue pair. The case ends as not observable if the
// peer has none.
func (e *roceEnd) datagram(payload []byte) ib.Packet {
	d := e.peer.datagram
	if d == nil {
		e.t.hidden("the peer announces no queue pair that sends datagrams back")
		return ib.Packet{}
	}
	p := e.request(ib.SendOnly.On(ib.UD), payload)
	p.QPN, p.AckReq, p.PSN = d.qpn, false, ib.PSN(rand.Uint32N(1<<24))
	p.DETH = ib.DETH{QKey: d.qkey, SourceQPN: e.qpn}
	return p
}

// datagramEchoed sends a datagram, and checks the peer's echo.
func (e *roceEnd) datagramEchoed(row string, payload []byte) {
	e.send(e.datagram(payload))
	p := e.response(row, "a datagram")
	t, d := e.t, e.peer.datagram
	t.check(p.Opcode.Operation() == ib.SendOnly && p.Opcode.Transport() == ib.UD, row,
		"%v in answer to a datagram", p.Opcode)
	t.check(p.DETH.SourceQPN == d.qpn && p.DETH.QKey == d.qkey, "ROCE-OP-10",
		"the answer to a datagram is of queue pair %#x with key %#x", p.DETH.SourceQPN, p.DETH.QKey)
	t.check(bytes.Equal(p.Payload, payload), row, "%d bytes come back, %d were sent, or others",
		len(p.Payload), len(payload))
}

package vitcp

import (
	"testing"

	"viaduct/internal/placer"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestNext: a segment begins when all of its headers have arrived, and a short segment when all of
// it has arrived. The placer gets the memory of a message of one segment in one piece, up to the
// MTU. [VIA-4.4-2] [VIA-4.4-3] [VIT-2.2.2.2.2-6] [V-42]
func TestNext(t *testing.T) {
	const mtu = 40000
	attrs := withLevel(reliableAll, vi.ReliableDelivery)
	attrs.FlowControl, attrs.MaxTransferSize = false, mtu
	p := connectPair(t, Config{}, attrs)
	r, mem := register(t, p.nb, mtu, allRights)
	l := p.b.Link().(*link)
	w := &l.receiver
	number := vitcpwire.Number(0)
	for _, typ := range []vitcpwire.Type{vitcpwire.Send, vitcpwire.Write} {
		for _, size := range []int{1, mtu - 1, mtu} {
			if typ == vitcpwire.Send {
				must(t, p.b.PostRecv(vi.NewRecv(segment(r, 0, size))))
			}
			number++
			hl := l.dialect.HeaderLen(typ)
			seg := l.dialect.AppendHeader(nil, vitcpwire.Header{Type: typ, Flags: vitcpwire.EndOfMessage,
				Length: uint16(hl + size), Number: number})
			if typ == vitcpwire.Write {
				seg = vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: uint32(size)}.Append(seg)
			}
			seg = append(seg, make([]byte, size)...)
			l.c.WithReceiver(func() {
				var f placer.Frame
				for arrived := range hl { // the headers are cut
					if n, _, ok, err := w.Next(seg[:arrived], true, &f); n != 0 || ok || err != nil {
						t.Errorf("%v of %d bytes, %d arrived: %d taken, %v, %v", typ, size, arrived, n, ok, err)
					}
				}
				if n, _, ok, err := w.Next(seg[:len(seg)-1], false, &f); n != 0 || ok || err != nil {
					t.Errorf("%v of %d bytes, one is missing: %d taken, %v, %v", typ, size, n, ok, err)
				}
				n, body, ok, err := w.Next(seg, true, &f)
				if n != len(seg) || len(body) != size || !ok || err != nil {
					t.Errorf("%v of %d bytes: %d taken, %d of payload, %v, %v", typ, size, n, len(body), ok, err)
					return
				}
				if len(f.At) != size || &f.At[0] != &mem[0] {
					t.Errorf("%v of %d bytes: the placer has %d bytes", typ, size, len(f.At))
				}
				must(t, w.End(nil))
				l.LetGo()
			})
			if typ == vitcpwire.Send {
				d, err := p.b.RecvDone()
				if err != nil || d.Length != uint32(size) {
					t.Errorf("the receive of %d bytes: %v, %v", size, d, err)
				}
			}
		}
	}
}

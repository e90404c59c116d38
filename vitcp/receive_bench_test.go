package vitcp

import (
	"encoding/binary"
	"fmt"
	"testing"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// BenchmarkReceive measures the processor time of the receive role for staged messages, 16 at a
// time. No system call and no other role is included.
func BenchmarkReceive(b *testing.B) {
	for _, typ := range []vitcpwire.Type{vitcpwire.Send, vitcpwire.Write} {
		for _, size := range []int{8, 64} {
			b.Run(fmt.Sprintf("%v/%d", typ, size), func(b *testing.B) { benchReceive(b, typ, size) })
		}
	}
}

func benchReceive(b *testing.B, typ vitcpwire.Type, size int) {
	const burst = 16
	attrs := withLevel(reliableAll, vi.ReliableDelivery)
	attrs.FlowControl = false // otherwise the link would count the credits of a peer that does not send
	p := connectPair(b, Config{}, attrs)
	r, _ := register(b, p.nb, size, allRights)
	l := p.b.Link().(*link)
	h := vitcpwire.Header{Type: typ, Flags: vitcpwire.EndOfMessage, Posted: vitcpwire.Count(l.flow.credits.posted.Load())}
	h.Length = uint16(l.dialect.HeaderLen(typ) + size)
	one := l.dialect.AppendHeader(nil, h)
	if typ == vitcpwire.Write {
		one = vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: uint32(size)}.Append(one)
	}
	one = append(one, make([]byte, size)...)
	var stream []byte
	for range burst {
		stream = append(stream, one...)
	}
	var ds []*vi.Descriptor
	for range burst {
		ds = append(ds, vi.NewRecv(segment(r, 0, size)))
	}
	number := uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range burst {
			number++
			binary.BigEndian.PutUint32(stream[i*len(one)+12:], number)
			if typ == vitcpwire.Send {
				if err := p.b.PostRecv(ds[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
		l.c.WithReceiver(func() {
			if n, _, err := l.Receive(stream, true); n != len(stream) || err != nil {
				b.Fatalf("%d bytes taken: %v", n, err)
			}
		})
		for range burst {
			if typ == vitcpwire.Send {
				if _, err := p.b.RecvDone(); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

package iwarp

import (
	"fmt"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// BenchmarkReceive measures the processor time of the receive role for staged messages, 16 at a
// time. It includes no system call and no sending.
func BenchmarkReceive(b *testing.B) {
	for _, op := range []rdmap.Opcode{rdmap.Send, rdmap.Write} {
		for _, size := range []int{8, 64} {
			b.Run(fmt.Sprintf("%v/%d", op, size), func(b *testing.B) { benchReceive(b, op, size) })
		}
	}
}

func benchReceive(b *testing.B, op rdmap.Opcode, size int) {
	const burst = 16
	q, err := newQueuePair(&Config{RecvDepth: 2 * burst})
	if err != nil {
		b.Fatal(err)
	}
	nc := &sinkConn{closed: make(chan struct{})}
	q.start(nc, mpa.Params{CRC: true}, nil)
	q.begin(true, nil)
	defer func() { nc.Close(); q.Abort(); q.Close() }()
	mr, err := q.Register(make([]byte, size), RemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	q.link.fc.Quiesce() // no other goroutine receives, because reads of the connection block
	e := (*engine)(q)
	msn := ddp.MSN(1)
	var enc mpa.Encoder
	enc.CRC = true
	var stream []byte
	b.ReportAllocs()
	for b.Loop() {
		if op == rdmap.Send || stream == nil {
			stream = stream[:0]
			for range burst {
				if op == rdmap.Write {
					stream = enc.Append(stream, tag(rdmap.Write, mr.STag(), 0, true, make([]byte, size)))
					continue
				}
				stream = enc.Append(stream, seg(rdmap.Send, 0, msn, 0, true, make([]byte, size)))
				msn++
				if err := q.PostRecv(RecvWR{SG: []SGE{mr.SGE(0, size)}}); err != nil {
					b.Fatal(err)
				}
			}
		}
		if n, _, err := e.Receive(stream, true); n != len(stream) || err != nil {
			b.Fatalf("%d bytes taken: %v, %v", n, err, q.Err())
		}
		for ok := op == rdmap.Send; ok; {
			_, ok = q.RecvCQ().Poll()
		}
	}
}

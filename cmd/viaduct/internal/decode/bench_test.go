package decode

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// A tape is an endless capture: the packets of a connection, generated during the read.
type tape struct {
	left int64 // bytes of packets that are not generated yet
	make func() [][]byte
	buf  bytes.Buffer
}

func (p *tape) Read(b []byte) (int, error) {
	for p.buf.Len() < len(b) && p.left > 0 {
		for _, f := range p.make() {
			var h [16]byte
			binary.LittleEndian.PutUint32(h[8:], uint32(len(f)))
			binary.LittleEndian.PutUint32(h[12:], uint32(len(f)))
			p.buf.Write(h[:])
			p.buf.Write(f)
			p.left -= int64(len(f) + len(h))
		}
	}
	return p.buf.Read(b)
}

// newTape returns a tape of n bytes: Sends of size bytes each, with CRCs.
func newTape(n int64, size int) *tape {
	c, e := iwarpTalk(true, false)
	msn := ddp.FirstMSN
	body := make([]byte, size)
	p := &tape{left: n}
	p.buf.Write([]byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0})
	p.make = func() [][]byte {
		c.say(0, e[0].Append(nil, rdmap.Send.UntaggedHeader(msn, 0, true, 0).Append(nil), body))
		msn = msn.Next()
		f := c.frames
		c.frames = nil
		return f
	}
	return p
}

// BenchmarkDecode decodes 64 MiB of capture to JSON. The time includes generating the capture.
func BenchmarkDecode(b *testing.B) {
	const size = 64 << 20
	for _, n := range []int{64, 1400, 32 << 10} {
		b.Run(fmt.Sprintf("send=%d", n), func(b *testing.B) {
			b.SetBytes(size)
			var line []byte
			for b.Loop() {
				d := New(Options{}, func(m *Message) {
					if len(m.Wrong) > 0 {
						b.Fatal(string(m.AppendLine(nil)))
					}
					line = m.AppendJSON(line[:0])
				})
				if err := d.Read(newTape(size, n)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestMemory: the memory of the decoder does not grow with the length of a capture.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	most := uint64(0)
	n := 0
	runtime.ReadMemStats(&before)
	d := New(Options{}, func(m *Message) {
		if n++; n%5000 == 0 {
			runtime.ReadMemStats(&after)
			most = max(most, after.HeapInuse)
		}
	})
	if err := d.Read(io.MultiReader(newTape(96<<20, 1000))); err != nil {
		t.Fatal(err)
	}
	if n < 90_000 {
		t.Errorf("%d messages", n)
	}
	if grown := int64(most) - int64(before.HeapInuse); grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

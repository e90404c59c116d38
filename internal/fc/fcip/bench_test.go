package fcip

import (
	"testing"

	"viaduct/internal/fc"
)

// BenchmarkRun measures the cost of a long message on an FCIP link, without the kernel.
func BenchmarkRun(b *testing.B) {
	const size, frames = 2080, 120
	data := make([]byte, 1<<20)
	l := &Link{pend: make([]byte, 0, slabSize+slabSlack)}
	b.Run("send", func(b *testing.B) {
		b.SetBytes(size * frames)
		for at := 0; b.Loop(); at = (at + size*frames) % (len(data) - size*frames) {
			l.pend = l.pend[:0]
			f := middle(32)
			for i := 0; i < frames; i += 30 {
				l.SendRun(f, size, data[at+i*size:][:30*size])
			}
		}
	})
	b.Run("receive", func(b *testing.B) {
		b.SetBytes(size * frames)
		l.pend = l.pend[:0]
		l.SendRun(middle(32), size, data[:size*frames])
		l.dev = &placer{to: data}
		l.feed = l.each
		for b.Loop() {
			(*protocol)(l).Receive(l.pend, false)
		}
		if l.stats.recvF.Load() == 0 || l.stats.crc.Load() > 0 {
			b.Error(l.Stats())
		}
	})
}

// A placer is a device copying frames to successive addresses.
type placer struct {
	sink
	to []byte
	at int
}

func (p *placer) Frames(recv func(func(*fc.Frame))) {
	recv(func(f *fc.Frame) {
		p.Take(f.Payload)
		f.Taker = p
	})
}

func (p *placer) Take(b []byte) bool {
	if p.at += len(b); p.at+len(b) > len(p.to) {
		p.at = 0
	}
	copy(p.to[p.at:], b)
	return true
}

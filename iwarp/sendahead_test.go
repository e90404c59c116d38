package iwarp

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

func sendTarget(t *testing.T) (*peer, *QueuePair) {
	p, q := asSilentInitiator(t, &Config{Interop: Interop{NoNudge: true}, Polled: true, Device: NewDevice(DeviceConfig{NoCRC: true})},
		mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
	return p, q
}

// send appends the FPDUs of a Send of body to the stream. Each segment but the last has full bytes.
func (p *peer) send(stream []byte, msn ddp.MSN, body []byte, full int) []byte {
	for i := 0; i == 0 || i < len(body); i += full {
		end := min(i+full, len(body))
		stream = p.enc.Append(stream, seg(rdmap.Send, 0, msn, uint32(i), end == len(body), body[i:end]))
	}
	return stream
}

// TestSendsAhead checks that long Sends reach their buffers by few reads of the socket, wherever
// the stream is cut, and whether they are as long as the Sends before, longer or shorter. The
// consumer of a message may use its buffer at once, and no byte outside a buffer may change.
// [RDMAP-5.3-5] [DDP-5.4-2] [I-22]
func TestSendsAhead(t *testing.T) {
	const size, margin, bufs, rounds = 400_000, 64, 6, 30
	p, q := sendTarget(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	mems := make([][]byte, bufs)
	post := func(i int) error {
		mem := mems[i]
		for j := range mem {
			mem[j] = 0xee
		}
		sg := []SGE{Buf(mem[margin : margin+size])}
		if i == 0 {
			sg = []SGE{Buf(mem[margin : margin+100_000]), Buf(mem[margin+100_000 : margin+size])}
		}
		return q.PostRecv(RecvWR{ID: uint64(i), SG: sg})
	}
	for i := range mems {
		mems[i] = make([]byte, size+2*margin)
		if err := post(i); err != nil {
			t.Fatal(err)
		}
	}
	beside := bytes.Repeat([]byte{0xee}, margin)
	var taken, most atomic.Int64
	bodies := make(chan []byte, bufs)
	over := make(chan struct{})
	go func() { // the consumer overwrites its buffer at once
		defer close(over)
		var e [1]Completion
		for body := range bodies {
			for takeN(q, e[:]) == 0 {
				runtime.Gosched()
			}
			mem := mems[e[0].ID]
			switch {
			case e[0].Status != StatusOK || int(e[0].Len) != len(body):
				t.Errorf("%+v, %d bytes sent", e[0], len(body))
			case !bytes.Equal(mem[margin:margin+len(body)], body):
				t.Error("other bytes")
			case !bytes.Equal(mem[:margin], beside) || !bytes.Equal(mem[margin+size:], beside):
				t.Error("bytes beside the buffer were touched")
			}
			if err := post(int(e[0].ID)); err != nil {
				t.Error(err)
			}
			taken.Add(1)
		}
	}()
	n, msn := int64(0), ddp.FirstMSN
	for round := range rounds {
		var stream []byte
		usual, full := 100_000+rnd.IntN(300_000), []int{64744, 50_000, 20_000}[round%3]
		for range bufs {
			m := usual
			switch rnd.IntN(5) {
			case 0:
				m = 1 + rnd.IntN(size)
			case 1: // the last segment is as long as the others
				m = full * (1 + rnd.IntN(usual/full))
			}
			body := make([]byte, m)
			for i := range body {
				body[i] = byte(rnd.Uint32())
			}
			stream = p.send(stream, msn, body, full)
			if rnd.IntN(6) == 0 {
				stream = p.enc.Append(stream, tag(rdmap.Write, 0, 0, true, nil))
			}
			msn++
			n++
			bodies <- body
		}
		for end := timeUp(); taken.Load() < n; {
			k := min(len(stream), 1000+rnd.IntN(500_000))
			if k > 0 {
				p.raw(stream[:k])
				stream = stream[k:]
			}
			q.SendCQ().Poll()
			q.link.fc.WithReceiver(func() { most.Store(max(most.Load(), int64(cap(q.rx.Planned())))) })
			if end() {
				t.Fatalf("round %d: %d Sends of %d", round, taken.Load(), n)
			}
		}
	}
	close(bodies)
	<-over
	if most.Load() < 4 {
		t.Errorf("at most %d places were read to ahead", most.Load())
	}
	q.link.fc.WithReceiver(func() {
		if len(q.rx.Planned()) > 0 {
			t.Error("memory is pinned still")
		}
	})
}

// TestSendAheadOverlap posts a receive whose buffer overlaps the buffer before, in memory that the
// earlier message does not fill. The bytes of both messages must be right.
func TestSendAheadOverlap(t *testing.T) {
	p, q := sendTarget(t)
	const full = 50_000
	mem := make([]byte, 1_300_000)
	rnd := rand.New(rand.NewPCG(7, 7))
	for i := range 10 {
		msn := ddp.MSN(3*i + 1)
		var bodies [3][]byte
		var stream []byte
		for j, n := range []int{10 * full, 2 * full, 10 * full} {
			bodies[j] = make([]byte, n)
			for k := range bodies[j] {
				bodies[j][k] = byte(rnd.Uint32())
			}
			stream = p.send(stream, msn+ddp.MSN(j), bodies[j], full)
			at := []int{0, 600_000, 730_000}[j]
			if err := q.PostRecv(RecvWR{SG: []SGE{Buf(mem[at:][:10*full])}}); err != nil {
				t.Fatal(err)
			}
		}
		p.raw(stream[:6*full])
		done := 0
		poll := func() {
			for {
				c, ok := q.RecvCQ().Poll()
				if !ok {
					return
				}
				if c.Status != StatusOK {
					t.Fatalf("%+v", c)
				}
				done++
			}
		}
		for range 100 {
			poll()
		}
		p.raw(stream[6*full:])
		for end := timeUp(); done < 3; poll() {
			if end() {
				t.Fatalf("%d Sends of 3", done)
			}
		}
		if !bytes.Equal(mem[:10*full], bodies[0]) || !bytes.Equal(mem[600_000:][:2*full], bodies[1]) ||
			!bytes.Equal(mem[730_000:][:10*full], bodies[2]) {
			t.Fatal("other bytes")
		}
	}
}

package iwarp

import (
	"bytes"
	"testing"
	"time"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// TestAheadGuarded checks that no bytes are predicted into a region whose memory may fault.
// Afterwards no pin may be left, so that the region can be closed after Writes, Reads and Sends
// into it. [RDMAP-5.2.2-6]
func TestAheadGuarded(t *testing.T) {
	const size, full = 300_000, 50_000
	body := bytes.Repeat([]byte{7}, size)
	segments := func(p *peer, o rdmap.Opcode, stag uint32, to uint64) (fs [][]byte) {
		for at := 0; at < size; at += full {
			fs = append(fs, p.enc.Append(nil, tag(o, stag, to+uint64(at), at+full == size, body[at:at+full])))
		}
		return fs
	}
	for name, begin := range map[string]func(t *testing.T, p *peer, q *QueuePair, mr *MemoryRegion) [][]byte{
		"Write": func(t *testing.T, p *peer, q *QueuePair, mr *MemoryRegion) [][]byte {
			return segments(p, rdmap.Write, mr.STag(), mr.TO())
		},
		"Read Response": func(t *testing.T, p *peer, q *QueuePair, mr *MemoryRegion) [][]byte {
			if err := q.Post(SendWR{Op: OpRead, SG: []SGE{mr.SGE(0, size)}, Remote: RemoteAddr{STag: 1}}); err != nil {
				t.Fatal(err)
			}
			u := p.next()
			_, k, err := ddp.ParseUntagged(u)
			r, _, err2 := rdmap.ParseReadRequest(u[k:])
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			return segments(p, rdmap.ReadResponse, r.SinkSTag, r.SinkTO)
		},
		"Send": func(t *testing.T, p *peer, q *QueuePair, mr *MemoryRegion) [][]byte {
			if err := q.PostRecv(RecvWR{SG: []SGE{mr.SGE(0, size)}}); err != nil {
				t.Fatal(err)
			}
			// Pretend that an earlier Send was as long as this one, since otherwise nothing is predicted.
			q.link.fc.WithReceiver(func() { q.rx.lastSend, q.rx.long = size, ddp.UntaggedLen+full })
			var fs [][]byte
			for at := 0; at < size; at += full {
				fs = append(fs, p.enc.Append(nil, seg(rdmap.Send, 0, 1, uint32(at), at+full == size, body[at:at+full])))
			}
			return fs
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := asSilentInitiator(t, &Config{Interop: Interop{NoNudge: true}, Polled: true,
				Device: NewDevice(DeviceConfig{NoCRC: true})},
				mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
			p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
			mem := make([]byte, size)
			mr, err := q.Register(mem, RemoteWrite, RegionOptions{Guarded: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range begin(t, p, q, mr) {
				p.raw(f[:len(f)/2])
				for range 100 { // the rest is read directly into place
					q.SendCQ().Poll()
				}
				p.raw(f[len(f)/2:])
			}
			// This Write is counted after all earlier segments are in place.
			p.ulpdu(rdmap.Write.TaggedHeader(0, 0, true).Append(nil))
			for end := timeUp(); q.Stats().ReceivedMessages < 3; q.SendCQ().Poll() {
				if end() {
					t.Fatalf("%+v", q.Stats())
				}
			}
			closed := make(chan error, 1)
			go func() { closed <- mr.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("Close waits for a pin that is never given back")
			}
			if !bytes.Equal(mem, body) {
				t.Error("other bytes")
			}
		})
	}
}

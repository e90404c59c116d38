package iwarp

import (
	"bytes"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// TestReadsAhead checks that the answers to several Reads reach their sinks by few reads of the
// socket, wherever the stream is cut, whatever messages come between the answers, and whether a
// sink is one piece of memory or several. No byte outside the sinks may change. [RDMAP-5.2.2-6]
func TestReadsAhead(t *testing.T) {
	p, q := asSilentInitiator(t, &Config{Interop: Interop{NoNudge: true}, Polled: true, Device: NewDevice(DeviceConfig{NoCRC: true})},
		mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
	target, err := q.PD().Register(make([]byte, 40000), RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	const margin = 64
	rnd := uint32(7)
	most := 0
	for round := range 40 {
		var bufs [][]byte
		want := make(map[int][]byte)
		for i := range 6 {
			n := []int{150000, 40000, 64000 + round, 9000, 1, 100001}[(i+round)%6]
			b := make([]byte, n+2*margin)
			for j := range b {
				b[j] = 0xee
			}
			bufs = append(bufs, b)
			sg := []SGE{Buf(b[margin : margin+n])}
			if i == 2 {
				sg = []SGE{Buf(b[margin : margin+n/3]), Buf(b[margin+n/3 : margin+n])}
			}
			if err := q.Post(SendWR{ID: uint64(i), Op: OpRead, SG: sg, Remote: RemoteAddr{STag: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		recv := make([]byte, 30000)
		if err := q.PostRecv(RecvWR{ID: 100, SG: []SGE{Buf(recv)}}); err != nil {
			t.Fatal(err)
		}
		var stream []byte
		full := []int{32001, 20000, 64000}[round%3]
		for i := range bufs {
			u := p.next() // u is a Read Request
			h, k, err := ddp.ParseUntagged(u)
			r, _, err2 := rdmap.ParseReadRequest(u[k:])
			if err != nil || err2 != nil || h.QN != rdmap.QueueReadRequest {
				t.Fatal(err, err2, h)
			}
			body := make([]byte, r.Size)
			for j := range body {
				rnd = rnd*1664525 + 1013904223
				body[j] = byte(rnd >> 24)
			}
			want[i] = body
			for at := 0; at < len(body); at += full {
				end := min(at+full, len(body))
				if i == 3 || i == 4 && at > 0 { // another message arrives between two segments
					w := rdmap.Write.TaggedHeader(target.STag(), target.TO(), true).Append(nil)
					stream = p.enc.Append(stream, append(w, make([]byte, 30000)...))
				}
				s := rdmap.ReadResponse.TaggedHeader(r.SinkSTag, r.SinkTO+uint64(at), end == len(body)).Append(nil)
				stream = p.enc.Append(stream, append(s, body[at:end]...))
			}
			if i == 1 {
				s := rdmap.Send.UntaggedHeader(ddp.MSN(round+1), 0, true, 0).Append(nil)
				stream = p.enc.Append(stream, append(s, bytes.Repeat([]byte{byte(round)}, len(recv))...))
			}
		}
		done := 0
		for i := 0; done < len(bufs)+1; i++ {
			rnd = rnd*1664525 + 1013904223
			k := min(len(stream), 1000+int(rnd>>8)%400000)
			p.raw(stream[:k])
			stream = stream[k:]
			var e [8]Completion
			for end := timeUp(); ; {
				n := q.SendCQ().PollN(e[:])
				n += q.RecvCQ().PollN(e[n:])
				for _, c := range e[:n] {
					if c.Status != StatusOK {
						t.Fatalf("round %d: %+v", round, c)
					}
				}
				q.link.fc.WithReceiver(func() { most = max(most, cap(q.rx.Planned())) })
				if done += n; n == 0 && (len(stream) > 0 || done == len(bufs)+1) {
					break
				}
				if end() {
					t.Fatalf("round %d: %d completions", round, done)
				}
			}
		}
		for i, b := range bufs {
			if !bytes.Equal(b[margin:len(b)-margin], want[i]) {
				t.Fatalf("round %d: Read %d got other bytes", round, i)
			}
			if m := bytes.Repeat([]byte{0xee}, margin); !bytes.Equal(b[:margin], m) ||
				!bytes.Equal(b[len(b)-margin:], m) {
				t.Fatalf("round %d: Read %d wrote beside its sink", round, i)
			}
		}
		if bytes.Count(recv, []byte{byte(round)}) != len(recv) {
			t.Fatalf("round %d: the Send brought other bytes", round)
		}
	}
	if most < 4 {
		t.Errorf("at most %d pieces of memory were read to ahead", most)
	}
	q.link.fc.WithReceiver(func() {
		if len(q.rx.Planned()) > 0 {
			t.Error("memory is pinned still")
		}
	})
}

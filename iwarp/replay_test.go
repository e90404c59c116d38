package iwarp

import (
	"bytes"
	"path/filepath"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// TestReplay passes recorded conversations of Linux hosts through every layer. Our start-up
// machines must reach the same agreement. Every FPDU of both directions must pass the checks of a
// receiver, and our encoder must produce the same bytes, except for pad bytes, which Linux does not
// set to zero.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob("../interop/testdata/siw-*.pcap")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			cs := testkit.Conversations(t, file)
			if len(cs) == 0 {
				t.Fatal("no connection")
			}
			for _, c := range cs {
				replayConversation(t, c)
			}
		})
	}
}

func replayConversation(t *testing.T, c testkit.Conversation) {
	req, n, err := mpa.ParseFrame(c.Client)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(req.Append(nil), c.Client[:n]) {
		t.Errorf("Request %x", c.Client[:n])
	}
	in, err := mpa.NewInitiator(mpa.InitiatorConfig{CRC: req.CRC, PeerToPeer: req.Conn.PeerToPeer, RTR: req.Conn.RTR,
		IRD: req.Conn.IRD, ORD: req.Conn.ORD, Private: req.Private})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in.Start(), c.Client[:n]) {
		t.Error("our Request for the same wishes differs")
	}
	reply, _, _ := mpa.ParseFrame(c.Server)
	r, _ := mpa.NewResponder(mpa.ResponderConfig{CRC: reply.CRC, ORD: mpa.DefaultDepth})
	if _, act := r.Receive(c.Client[:n]); act != mpa.Ask {
		t.Fatal(act, r.Err())
	}
	m, act := in.Receive(c.Server)
	if act != mpa.Operate {
		t.Fatal(act, in.Err())
	}
	p := in.Params()
	ours, err := r.Accept(mpa.Decision{Private: reply.Private})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := mpa.ParseFrame(ours); r.Params().CRC != p.CRC || got.Conn.IRD < reply.Conn.IRD ||
		r.Params().RTR&reply.Conn.RTR != reply.Conn.RTR {
		t.Errorf("our Reply %+v, the recorded one %+v", got, reply)
	}
	first := replayDirection(t, c.Client[n:], p.CRC)
	replayDirection(t, c.Server[m:], p.CRC)
	var s segment
	if p.PeerToPeer && !r.FirstFPDU(s.rtrKind(s.parse(first, len(first), rdmap.Extensions{}))) {
		t.Errorf("first FPDU %x is no ready message", first)
	}
}

// replayDirection replays the FPDUs of one direction and returns the first ULPDU.
func replayDirection(t *testing.T, b []byte, crc bool) (first []byte) {
	d, e := mpa.Decoder{CRC: crc}, mpa.Encoder{CRC: crc}
	queues := [4]ddp.Queue{}
	for i := range queues {
		queues[i] = ddp.NewQueue(ddp.FirstMSN)
	}
	for len(b) > 0 {
		u, n, err := d.Next(b)
		if err != nil || n == 0 {
			t.Fatalf("FPDU %x: %v", b[:min(len(b), 40)], err)
		}
		if first == nil {
			first = u
		}
		wire := bytes.Clone(b[:n])
		b = b[n:]
		ours := e.Append(nil, u)
		if mpa.PadLen(len(u)) == 0 && !bytes.Equal(ours, wire) || len(ours) != n {
			t.Errorf("our FPDU %x, recorded %x", ours, wire)
		}
		if ddp.IsTagged(u[0]) {
			h, k, err := ddp.ParseTagged(u)
			op, f := rdmap.CheckTagged(h.RsvdULP)
			if err != nil || f != rdmap.OK || !bytes.Equal(op.TaggedHeader(h.STag, h.TO, h.Last).Append(nil), u[:k]) {
				t.Errorf("%x: %v, %v", u[:k], err, f)
			}
			continue
		}
		h, k, err := ddp.ParseUntagged(u)
		if err != nil || rdmap.CheckQueue(h.QN, rdmap.Extensions{}) != ddp.OK {
			t.Fatalf("%x: %v", u[:k], err)
		}
		op, f := rdmap.CheckUntagged(h, len(u)-k, rdmap.Extensions{})
		stag, _ := rdmap.InvalidateSTag(h)
		if f != rdmap.OK || !bytes.Equal(op.UntaggedHeader(h.MSN, h.MO, h.Last, stag).Append(nil), u[:k]) {
			t.Errorf("%x: %v", u[:k], f)
		}
		q := &queues[h.QN]
		if f := q.Check(h, len(u)-k, 1<<20, true); f != ddp.OK {
			t.Errorf("%+v: %v", h, f)
		}
		q.Placed(h, len(u)-k)
		if op == rdmap.ReadRequestOp {
			r, _, err := rdmap.ParseReadRequest(u[k:])
			if err != nil || !bytes.Equal(r.Append(nil), u[k:]) {
				t.Errorf("%x: %v", u[k:], err)
			}
		}
	}
	return first
}

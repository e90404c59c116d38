package perftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/internal/replay"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/iwarp"
)

// recorded lists the recorded runs of the tools in interop/testdata.
var recorded = []struct {
	file string
	opt  Options
}{
	{"siw-write-bw-crc.pcap", Options{Test: WriteBW, Size: 10000, Count: 5}},
	{"siw-read-bw-crc.pcap", Options{Test: ReadBW, Size: 10000, Count: 5}},
	{"siw-send-bw-crc.pcap", Options{Test: SendBW, Size: 10000, Count: 5}},
	{"siw-write-bw-client.pcap", Options{Test: WriteBW, Size: 2000, Count: 6}},
	{"siw-write-bw-server.pcap", Options{Test: WriteBW, Size: 2000, Count: 6}},
	{"siw-read-bw-client.pcap", Options{Test: ReadBW, Size: 2000, Count: 6}},
	{"siw-read-bw-server.pcap", Options{Test: ReadBW, Size: 2000, Count: 6}},
	{"siw-send-bw-client.pcap", Options{Test: SendBW, Size: 2000, Count: 6}},
	{"siw-send-bw-server.pcap", Options{Test: SendBW, Size: 2000, Count: 6}},
}

// TestReplay puts recorded clients of the tools in front of our server, and recorded servers in
// front of our client, with the contents verified where possible. The replay replaces the recorded
// keys by the keys of our side, and sends all other bytes as recorded.
func TestReplay(t *testing.T) {
	for _, r := range recorded {
		cs := testkit.Conversations(t, filepath.Join("../../testdata", r.file))
		if len(cs) != 2 {
			t.Fatalf("%s: %d connections, want 2", r.file, len(cs))
		}
		r.opt.Verify = true
		t.Run("client/"+strings.TrimSuffix(r.file, ".pcap"), func(t *testing.T) { replayClient(t, cs, r.opt) })
		t.Run("server/"+strings.TrimSuffix(r.file, ".pcap"), func(t *testing.T) { replayServer(t, cs, r.opt) })
	}
}

// message reads a message of n bytes of our side on the control stream.
func message(t *testing.T, p *replay.Player, n int) []byte {
	t.Helper()
	op, _, body := p.Message()
	if op != rdmap.Send || len(body) != n {
		t.Fatalf("%v of %d bytes, want a Send of %d", op, len(body), n)
	}
	return body
}

// answered sends the next recorded message of the control stream and returns
// our answer.
func answered(t *testing.T, p *replay.Player) []byte {
	t.Helper()
	n := len(p.Peek())
	p.Play(rdmap.Send)
	return message(t, p, n)
}

// answer reads our next message on the control stream, and sends the recorded answer.
func answer(t *testing.T, p *replay.Player) []byte {
	t.Helper()
	body := message(t, p, len(p.Peek()))
	p.Play(rdmap.Send)
	return body
}

func place(t *testing.T, b []byte) iwarp.RemoteAddr {
	k, err := parseKeys(b)
	if err != nil {
		t.Fatal(err)
	}
	return iwarp.RemoteAddr{STag: k.rkey, TO: k.vaddr}
}

// Numbers of messages on the control stream: before the second connection, and between the second
// connection and the data.
const beforeData = 5

func afterConnect(test Test) int {
	if test == SendBW {
		return 5
	}
	return 4
}

func replayClient(t *testing.T, cs []testkit.Conversation, opt Options) {
	ctx := within(t)
	l, served := serve(ctx, t, nil, opt)
	control := replay.Connect(t, l.Addr().String(), cs[0])
	for range beforeData {
		answered(t, control)
	}
	data := replay.Connect(t, l.Addr().String(), cs[1])
	var ours, theirs iwarp.RemoteAddr // the memory that each side names in this run
	for range afterConnect(opt.Test) {
		theirs = place(t, control.Peek())
		ours = place(t, answered(t, control))
	}
	recorded := recordedKeys(t, cs[0].Server, opt)
	for i := range opt.Count {
		switch opt.Test {
		case WriteBW:
			data.PlayAt(rdmap.Write, recorded, ours)
		case ReadBW:
			data.PlayAt(rdmap.ReadRequestOp, recorded, ours)
			if op, _, body := data.Message(); op != rdmap.ReadResponse || len(body) != opt.Size || checkRandom(body) >= 0 {
				t.Errorf("%v of %d bytes", op, len(body))
			}
		case SendBW:
			data.Play(rdmap.Send)
			if n := i + 1; n%2 == 0 { // the server writes its count after every third of its 6 receives
				op, at, body := data.Message()
				if op != rdmap.Write || at != theirs || !bytes.Equal(body, binary.LittleEndian.AppendUint32(nil, uint32(n))) {
					t.Errorf("after %d messages %v of %x to %+v, want it at %+v", n, op, body, at, theirs)
				}
			}
		}
	}
	for control.Left() > 0 {
		answered(t, control)
	}
	data.End()
	control.End()
	s := <-served
	if s.err != nil {
		t.Fatal(s.err)
	}
	if opt.Test != ReadBW && s.res.Verified != opt.Count {
		t.Errorf("%d verified", s.res.Verified)
	}
	if opt.Test != SendBW && (s.res.Peer == nil || s.res.Peer.Average <= 0) {
		t.Errorf("reported %+v", s.res.Peer)
	}
}

// recordedKeys returns the memory announced in a recorded side's keys.
func recordedKeys(t *testing.T, side []byte, opt Options) iwarp.RemoteAddr {
	f, _, err := mpa.ParseFrame(side)
	if err != nil {
		t.Fatal(err)
	}
	u := replay.Messages(t, side, f.CRC)[beforeData+afterConnect(opt.Test)-1]
	return place(t, u[ddp.HeaderLen(u[0]):])
}

func replayServer(t *testing.T, cs []testkit.Conversation, opt Options) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(within(t), testkit.Patience)
	defer cancel()
	req, _, _ := mpa.ParseFrame(cs[0].Client)
	called := make(chan outcome, 1)
	go func() {
		res, err := Dial(ctx, l.Addr().String(), &iwarp.Config{Interop: iwarp.Interop{ClientServer: !req.Conn.PeerToPeer, NoNudge: true}}, opt)
		called <- outcome{res, err}
	}()
	control := replay.Accept(t, l, cs[0])
	for range beforeData {
		answer(t, control)
	}
	data := replay.Accept(t, l, cs[1])
	var ours, theirs iwarp.RemoteAddr
	for range afterConnect(opt.Test) {
		theirs = place(t, control.Peek())
		ours = place(t, answer(t, control))
	}
	recorded := recordedKeys(t, cs[0].Client, opt)
	lay := layout{opt.Size, cycleBuffer, cacheLine}
	memory := newImage(lay)
	for i := range opt.Count {
		op, at, body := data.Message()
		want := theirs
		want.TO += uint64(lay.offset(i))
		switch opt.Test {
		case WriteBW:
			if op != rdmap.Write || at != want || len(body) != opt.Size {
				t.Fatalf("%v of %d bytes to %+v, want it at %+v", op, len(body), at, want)
			}
			if err := memory.add(i, body); err != nil {
				t.Error(err)
			}
		case ReadBW:
			r, _, err := rdmap.ParseReadRequest(body)
			if op != rdmap.ReadRequestOp || err != nil || r.SourceSTag != want.STag || r.SourceTO != want.TO || r.Size != uint32(opt.Size) {
				t.Fatalf("%v %+v, %v, want it from %+v", op, r, err, want)
			}
			data.PlayAt(rdmap.ReadResponse, data.Names(), iwarp.RemoteAddr{STag: r.SinkSTag, TO: r.SinkTO})
		case SendBW:
			if op != rdmap.Send || len(body) != opt.Size {
				t.Fatalf("%v of %d bytes", op, len(body))
			}
			if err := memory.add(i, body); err != nil {
				t.Error(err)
			}
			if n := i + 1; n%2 == 0 {
				data.PlayAt(rdmap.Write, recorded, ours)
			}
		}
	}
	if err := memory.check(); err != nil {
		t.Error(err)
	}
	for control.Left() > 0 {
		answer(t, control)
	}
	data.End()
	control.End()
	c := <-called
	if c.err != nil {
		t.Fatal(c.err)
	}
	if opt.Test == ReadBW && c.res.Verified != opt.Count {
		t.Errorf("%d verified", c.res.Verified)
	}
}

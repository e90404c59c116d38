package sdpcore

import (
	"errors"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

func TestSDP_8_2_1_Graceful(t *testing.T) {
	// DisConn is sent after all data. [SDP-8.2.1-4] [SDP-8.2.1-6] [SDP-8.2.1-1]
	p := newProbe(t).write(1, 200).closeWrite().want("SrcAvail size=200 +1").recv("RdmaRdCompl size=199").want("revoke",
		"wrote 1 200", "DisConn")
	// [SDP-8.2.1-2] [SDP-8.2.1-20]
	p.write(2, 5).want("wrote 2 0 sdp: write after close")
	// This end continues to receive, by all mechanisms. [SDP-8.2.1-3] [SDP-8.2.1-9] [SDP-8.2.1-10]
	// [SDP-10.1-1]
	p.read(3, 300).recv("Data +5").want("hold 5", "copy 3 5@0", "got 3 5").recv("SrcAvail size=300 +1").read(4, 300).readDone().
		want("hold 1", "copy 4 1@0", "read 4 299@1 from 1", "got 4 300", "RdmaRdCompl size=299")
	// Reads get the end of the stream first, and then the LLP ends. [SDP-8.2.1-12] [SDP-8.2.1-17]
	// [SDP-8.2.1-23]
	p.read(5, 10).recv("DisConn").want("closed", "finish", "got 5 0 EOF").read(6, 10).want("got 6 0 EOF")
	p.took(p.m.LLPClosed(p.now, nil, mark())).want()
	if !p.m.Finished() || p.m.Err() != nil {
		t.Error("not graceful")
	}

	// At the end that receives DisConn, SinkAvails become void, and reads end. [SDP-8.2.1-15]
	// [SDP-6.2.3-2]
	p = newProbe(t).pipelined(false, true).read(1, 300).read(2, 300).skip().recv("DisConn").want("closed",
		"revoke", "revoke", "got 1 0 EOF", "got 2 0 EOF")
	// This end can continue to send. [SDP-8.2.1-16] [SDP-8.2.1-19] [SDP-8.2.1-21]
	p.write(3, 100).want("Data +84", "Data +16", "wrote 3 100").closeWrite().want("DisConn", "finish")
	// Bytes received before the end of the stream are read first.
	newProbe(t).recv("Data +5", "DisConn").read(1, 10).want("hold 5", "closed", "copy 1 5@0", "got 1 5").read(2, 10).want("got 2 0 EOF")
	newProbe(t).recv("Data +5", "DisConn").skip().readAll(1, 10).want("copy 1 5@0", "got 1 5")
	newProbe(t).recv("DisConn", "DisConn").aborted("SDP-8.2.1-6")
	// After both ends have closed, no data may follow. [SDP-8.2.1-8]
	newProbe(t).closeWrite().recv("DisConn", "Data +5").aborted("SDP-8.2.1-8")
	// DisConn needs two credits like any control message. [D-48]
	p = newProbe(t)
	p.bufs = 0
	p.recv("Data").closeWrite().want()
	p.bufs = 2
	p.recv("Data").want("DisConn")
	// A SinkAvail that crossed our DisConn is void. [SDP-8.2.1-15]
	newProbe(t).pipelined(true, false).closeWrite().skip().recv("SinkAvail size=300 nd=0").want()
}

func TestSDP_8_2_2_Abortive(t *testing.T) {
	boom := errors.New("boom")
	// Without DisConn, no more messages are sent, and queued data is dropped. [SDP-8.2.2-2]
	// [SDP-8.2.2-3] [SDP-8.2.2-5] [SDP-6.2.4-2]
	p := newProbe(t)
	p.bufs = 2
	p.recv("Data").write(1, 500).skip().abort(boom).want("abort boom", "wrote 1 0 boom")
	p.write(2, 5).want("wrote 2 0 boom").recv("Data +5").want()
	// After DisConn was sent, AbortConn comes first. [SDP-8.2.2-1] [SDP-8.2.1-18]
	t.Run("SDP-8.2.2-1", func(t *testing.T) {
		newProbe(t).closeWrite().skip().abort(boom).want("AbortConn", "abort after AbortConn boom")
		// AbortConn may use any credit, even the last, although an AbortConn gives the peer no
		// credit. Without credit no message may be sent. [SDP-10.5-5] [D-48]
		for credits, want := range [][]string{{"abort boom"}, {"AbortConn", "abort after AbortConn boom"}, {"AbortConn", "abort after AbortConn boom"}} {
			p := newProbe(t).closeWrite()
			p.bufs = uint16(credits)
			p.recv("Data").skip().abort(boom).want(want...)
		}
	})
	// AbortConn revokes an earlier DisConn. [SDP-6.2.4-3] [SDP-8.2.2-4] [SDP-8.2.1-22]
	p = newProbe(t).recv("DisConn", "AbortConn").skip().read(1, 10).want("got 1 0 reset")
	if p.m.Err() != ErrReset {
		t.Error(p.m.Err())
	}
	// If the LLP ends without DisConn, reads end with ErrReset. [SDP-8.2.1-12] [SDP-8.2.2-4]
	p = newProbe(t).read(1, 10).skip()
	p.took(p.m.LLPClosed(0, nil, mark())).want("got 1 0 reset")
	// After DisConn the stream has ended, whatever ends the LLP: the end is graceful for the
	// reader. Unsent bytes are lost, and the error of the write reports the loss. [SDP-8.2.1-12]
	// [D-48]
	p = newProbe(t).recv("DisConn").skip()
	p.took(p.m.LLPClosed(0, boom, mark())).read(1, 10).want("got 1 0 EOF").write(2, 5).want("wrote 2 0 boom")
	if err := p.m.WriteErr(); err != nil {
		t.Errorf("nothing was left to send: %v", err)
	}
	p = newProbe(t)
	p.bufs = 2
	p.recv("Data", "DisConn").write(1, 5).skip()
	p.took(p.m.LLPClosed(0, boom, mark())).want("wrote 1 0 boom").read(2, 10).want("got 2 0 EOF")
	if p.m.WriteErr() != boom {
		t.Errorf("a write was left: %v", p.m.WriteErr())
	}
	// All operations end with their counts, and no memory stays advertised. [SDP-8.2.1-13]
	// [SDP-8.2.1-14] [SDP-8.2.1-24]
	p = newProbe(t).pipelined(true, true).write(1, 200).read(2, 300).write(3, 50).skip()
	p.took(p.m.LLPClosed(0, nil, mark())).want("revoke", "revoke", "wrote 1 0 reset",
		"wrote 3 0 reset", "got 2 0 reset")
	p = newProbe(t).write(1, 200).recv("RdmaRdCompl size=99").skip()
	p.took(p.m.LLPClosed(0, nil, mark())).want("revoke", "wrote 1 100 reset")
	// Bytes received before a violation stay readable. [SDP-8.2.2-6]
	p = newProbe(t).recv("Data +5", "Data seq=9").skip()
	p.read(1, 10).want("copy 1 5@0", "got 1 5").read(2, 10).want("got 2 0 SDP-6.1.5-2")
	// Data that arrives after CloseRead ends the connection. [D-49]
	p = newProbe(t)
	p.took(p.m.CloseRead(0, false, mark())).recv("Data").alive().recv("Data +5").want("abort " + ErrReadClosed.Error())
	p = newProbe(t).recv("SrcAvail size=300 +1").skip()
	p.took(p.m.CloseRead(0, false, mark())).want("drop 1", "abort "+ErrReadClosed.Error())
	p = newProbe(t)
	p.took(p.m.CloseRead(0, true, mark())).recv("Data +5").want("hold 5", "drop 5").read(1, 5).want("got 1 0 sdp: connection closed")
}

func TestSDP_10_6_Resize(t *testing.T) {
	// This end requests another size. A smaller size applies at once. [SDP-10-7] [SDP-10.6-1]
	// [SDP-10.6-2] [SDP-6.4.1-3]
	p := newProbe(t).peerSize(50).want("ChRcvBuf size=50", "peersize 50").write(1, 60).want("Data +34",
		"Data +26", "wrote 1 60")
	p.peerSize(40).want() // [SDP-10.6-19]
	// A larger size applies after the acknowledgement. [SDP-10.6-3] [SDP-10.6-4]
	p = newProbe(t).peerSize(200).want("ChRcvBuf size=200").write(1, 100).want("Data +84", "Data +16", "wrote 1 100")
	p.recv("ChRcvBufAck size=180").want("peersize 180").write(2, 164).want("SrcAvail size=164 +1")
	// After a refusal the request is never repeated. [SDP-10.6-17] [SDP-10.6-18]
	newProbe(t).peerSize(200).recv("ChRcvBufAck size=100").skip().peerSize(300).want().peerSize(50).want("ChRcvBuf size=50", "peersize 50").
		recv("ChRcvBufAck size=100").want("peersize 100").peerSize(40).want()
	for _, c := range []struct {
		ask int
		ack string
	}{{200, "99"}, {200, "36"}, {50, "101"}, {50, "49"}, {200, "0x80000001"}} {
		newProbe(t).peerSize(c.ask).recv("ChRcvBufAck size=" + c.ack).aborted("D-47")
	}
	newProbe(t).recv("ChRcvBufAck size=100").aborted("D-47")

	// This end gets the request of the peer. [SDP-10.6-5] [SDP-10.6-8] [SDP-10.6-9] [SDP-10.6-11]
	// [SDP-10.6-12] [SDP-6.4.2.1-1]
	lim := func(p *Params) { p.MinRecvSize, p.MaxRecvSize = 60, 300 }
	newProbe(t, lim).recv("ChRcvBuf size=70").want("resize 70", "ChRcvBufAck size=70").recv("Data +55").aborted("SDP-10-4")
	newProbe(t, lim).recv("ChRcvBuf size=37").want("resize 60", "ChRcvBufAck size=60") // [SDP-10.6-6] [SDP-10.6-7]
	newProbe(t, lim).recv("ChRcvBuf size=1").want("resize 60", "ChRcvBufAck size=60")
	// A larger size needs new buffers first. [SDP-10.6-10] [SDP-10.6-13]
	p = newProbe(t, lim).recv("ChRcvBuf size=1073741824").want("resize 300").recv("Data +84").want("hold 84")
	p.took(p.m.Resized(0, mark())).want("ChRcvBufAck size=300").recv("Data +284").alive()
	// [SDP-10.6-14] [SDP-6.4.2.1-2]
	newProbe(t, lim, func(p *Params) { p.NoResize = true }).recv("ChRcvBuf size=200").want("ChRcvBufAck size=100")
	newProbe(t, lim).recv("ChRcvBuf size=200", "ChRcvBuf size=200").aborted("SDP-10.6-19")
	// Only a read longer than the new size is advertised. [SDP-10.6-15] [SDP-10.6-16]
	p = newProbe(t, lim).pipelined(false, true).recv("ChRcvBuf size=200").skip().read(1, 150).want()
	p.took(p.m.Resized(0, mark())).want("ChRcvBufAck size=200").recv("Data +5").skip().read(2, 201).want("SinkAvail size=201 nd=1")
	// If requests have crossed, the Connecting Peer answers and the Accepting Peer does not.
	// [SDP-10.6.1-1] [SDP-10.6.1-2] [SDP-10.6.1-3] [D-47]
	newProbe(t, lim, accepting).peerSize(200).skip().recv("ChRcvBuf size=70").want().recv("ChRcvBufAck size=200").want("peersize 200")
	newProbe(t, lim).peerSize(200).skip().recv("ChRcvBuf size=70").want("resize 70", "ChRcvBufAck size=70").peerSize(250).want("ChRcvBuf size=250")
}

func TestSDP_13_1_1_Suspend(t *testing.T) {
	start := func(p *probe) *probe {
		acts, err := p.m.Suspend(p.now, 5000, mark())
		if err != nil {
			t.Error(err)
		}
		return p.took(acts)
	}
	// In-Process transfers are finished, and then no message is sent. [SDP-13.1.1-3] [SDP-13.1.1-5]
	// [SDP-6.5.1.1-1]
	p := start(newProbe(t).recv("SrcAvail size=200 +1").read(1, 200).skip()).want().readDone().want("got 1 200",
		"RdmaRdCompl size=199", "SuspComm port=5000")
	p.write(2, 50).read(3, 100).recv("Data +5").want("hold 5", "copy 3 5@0", "got 3 5")
	p.recv("SuspCommAck").want("suspended")
	if st := p.m.State(); st.Unsent != 50 || st.RecvSize != 100 || st.ORD != 4 { // [SDP-13.1.1-11]
		t.Errorf("%+v", st)
	}
	// [SDP-13.1.1-17] [D-52] [SDP-13.1.1-10]
	np := params()
	np.Role = Accepting
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, np, mark())).want("Data +50", "wrote 2 50")
	if p.msgs[len(p.msgs)-1].MSeq != 0 {
		t.Error("numbers did not start afresh")
	}
	// This end gets the SuspComm of the peer. [SDP-13.1-1] [SDP-13.1.1-6] [SDP-13.1.1-7]
	// [SDP-13.1.1-8]
	newProbe(t).recv("SrcAvail size=200 +1").read(1, 200).skip().recv("SuspComm port=6000").want().readDone().
		want("got 1 200", "RdmaRdCompl size=199", "SuspCommAck", "reconnect 6000").write(2, 5).want()
	// No advertisement survives. Undelivered bytes are sent again, delivered bytes are not.
	// [SDP-13-1] [D-52] [D-83]
	p = newProbe(t).write(1, 200).recv("RdmaRdCompl size=99").skip().recv("SuspComm port=6000").want("SuspCommAck",
		"reconnect 6000", "revoke")
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, params(), mark())).want("Data +84", "Data +16", "wrote 1 200")
	newProbe(t).pipelined(false, true).read(1, 300).skip().recv("SuspComm port=6000").want("SuspCommAck",
		"reconnect 6000", "revoke")
	// A sent DisConn is sent again, and a received DisConn is remembered. [D-52]
	p = newProbe(t).closeWrite().skip().recv("SuspComm port=6000").skip()
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, params(), mark())).want("DisConn")
	p = newProbe(t).recv("DisConn", "SuspComm port=6000").skip()
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, params(), mark())).read(1, 5).want("got 1 0 EOF").recv("DisConn").alive()
	// If the requests have crossed, the Accepting Peer continues with its own request.
	// [SDP-13.1.2-1]
	start(newProbe(t, accepting)).skip().recv("SuspComm port=6000").want().recv("SuspCommAck").want("suspended")
	// The Connecting Peer answers, and repeats its request later. [SDP-13.1.2-2] [SDP-13.1.2-3]
	p = start(newProbe(t)).skip().recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000")
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, params(), mark())).want("SuspComm port=5000")
	// A request made while the peer suspends the connection, or has, is sent after the resumption.
	p = start(newProbe(t).recv("SrcAvail size=200 +1").read(1, 200).skip().recv("SuspComm port=6000").want())
	p.want().readDone().want("got 1 200", "RdmaRdCompl size=199", "SuspCommAck", "reconnect 6000")
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, params(), mark())).want("SuspComm port=5000")
	p = start(newProbe(t).recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000")).want()
	p.seq, p.ack = 0, 0
	p.took(p.m.Resume(p.now, params(), mark())).want("SuspComm port=5000").recv("SuspCommAck").want("suspended")
	if _, err := p.m.Suspend(p.now, 5000, nil); err != ErrNoSuspend { // its own suspension
		t.Error(err)
	}
	// After its SuspComm the peer may send no data. [SDP-13.1.1-5] [D-54]
	newProbe(t, accepting).write(1, 300).recv("SuspComm port=6000").skip()
	newProbe(t).recv("SrcAvail size=200 +1").read(1, 200).recv("SuspComm port=6000").recv("Data +5").aborted("SDP-13.1.1-5")
	newProbe(t).recv("SuspCommAck").aborted("SDP-13.1.1-6")
	// [D-55]
	for _, f := range []func(*Params){func(p *Params) { p.NoSuspend = true }, func(p *Params) { p.MinSuspendPort = 6001 }} {
		if p := newProbe(t, f).recv("SuspComm port=6000"); p.m.Err() != ErrNoSuspend {
			t.Error(p.m.Err())
		}
	}
	// A suspension fails if the peer does not answer within five seconds. [D-53]
	if p := start(newProbe(t)).pass(5 * time.Second); p.m.Err() != ErrNoSuspend {
		t.Error(p.m.Err())
	}
	// Another process can continue the connection. [SDP-13.1.1-12] [SDP-13.1.1-16]
	p = newProbe(t)
	p.m = Restore(params(), State{Held: 7, RecvPos: 7, EOF: true})
	p.read(1, 10).want("copy 1 7@0", "got 1 7").read(2, 10).want("got 2 0 EOF")
}

func TestCoreAllocs(t *testing.T) {
	// A machine in steady state must not allocate. [SDP-10.4-1]
	m := New(Params{RecvBufs: 16, RecvSize: 1000, PeerBufs: 16, PeerSize: 1000, MaxAdverts: 4,
		PeerMaxAdverts: 4, ORD: 4, SendPolicy: PinCombined, SendThreshold: Infinite})
	acts := make([]Action, 0, 64)
	msg := sdpwire.Message{MID: sdpwire.Data, Bufs: 16, Len: 116}
	id := uint64(0)
	step := func() {
		id++
		acts = m.Write(0, id, 100, false, acts[:0])
		for i := range acts {
			if acts[i].Op == OpSend {
				msg.MSeqAck = acts[i].Msg.MSeq
			}
		}
		acts = m.Receive(0, &msg, 0, false, acts[:0])
		msg.MSeq++
		acts = m.Read(0, id, 100, false, acts[:0])
		for i := range acts {
			if acts[i].Op == OpSend {
				msg.MSeqAck = acts[i].Msg.MSeq
			}
		}
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
	if m.Err() != nil {
		t.Error(m.Err())
	}
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte{255, 10, 254, 1, 7, 2, 253, 9})
	f.Add([]byte{7, 2, 254, 0, 8, 0, 4, 0, 13, 0, 14, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newProbe(t, func(p *Params) { p.RecvBufs = 8 })
		mids := []sdpwire.MID{sdpwire.Data, sdpwire.SrcAvail, sdpwire.SinkAvail, sdpwire.SendSm,
			sdpwire.RdmaRdCompl, sdpwire.RdmaWrCompl, sdpwire.ModeChange,
			sdpwire.SrcAvailCancel, sdpwire.SinkAvailCancel, sdpwire.SinkCancelAck, sdpwire.ChRcvBuf,
			sdpwire.ChRcvBufAck, sdpwire.DisConn, sdpwire.AbortConn,
			sdpwire.SuspComm, sdpwire.SuspCommAck}
		id := uint64(0)
		for i := 0; i+2 < len(b) && p.m.Err() == nil; i += 3 {
			x, y := int(b[i+1]), b[i+2]
			if b[i] >= 200 { // bytes from 200 on stand for operations of the ULP
				id++
				switch b[i] % 8 {
				case 0, 1:
					p.write(id, 1+x*3)
				case 2, 3:
					p.read(id, 1+x*3)
				case 4:
					p.cancelRead(uint64(y))
				case 5:
					p.cancelWrite(uint64(y))
				case 6:
					p.goMode(sdpwire.Mode(y % 3))
				case 7:
					p.pass(time.Duration(x) * time.Millisecond)
				}
			} else {
				m := sdpwire.Message{MID: mids[int(b[i])%len(mids)], MSeq: p.seq, MSeqAck: p.ack,
					Bufs: uint16(y), Size: uint32(x) * 3, Mode: sdpwire.Mode(y % 3), S: y&4 != 0,
					Port: 5000, Flags: sdpwire.Flags(y >> 5), NonDiscards: uint32(y & 3)}
				n := 0
				if m.MID.MayCarryPayload() {
					n = x % 60
				}
				m.Len = uint32(m.MID.HeaderLen() + n)
				head := append(m.Append(nil, sdpwire.Figure), make([]byte, n)...)
				msg, _, err := sdpwire.Parse(head, sdpwire.Figure)
				if err != nil {
					continue
				}
				p.took(p.m.Receive(p.now, &msg, p.stag, y&8 != 0, mark()))
				p.seq++
			}
			for p.m.snk.fetch.ops.len() > 0 && x&1 == 0 {
				p.readDone()
			}
			p.skip()
		}
	})
}

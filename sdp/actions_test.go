package sdp

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// TestActions checks that iWARP performs every action of the machine. Received bytes must stay in
// place until a read takes them, and messages must be sent at once.
func TestActions(t *testing.T) { // [SDP-8.1.1-1] [SDP-8.1.1-32]
	inBubble(t, "held", func(t *testing.T) {
		w, c := memWire(t, memSide{}, goodHello)
		want := ""
		for i := range 9 { // each message stays in its Private Buffer
			p := strings.Repeat(string(rune('a'+i)), 100+i)
			w.send(sdpwire.Message{MID: sdpwire.Data}, p)
			want += p
		}
		time.Sleep(time.Second)
		if n := c.Stats().Held; n != len(want) {
			t.Errorf("%d of %d bytes are held", n, len(want))
		}
		for len(want) > 0 { // reads of any length
			n := min(len(want), 77)
			if got, err := readN(c, n); got != want[:n] || err != nil {
				t.Fatalf("%q, %v, want %q", got, err, want[:n])
			}
			want = want[n:]
		}
		locked(c, func() {
			if len(c.recv.holds) != 0 || !c.recv.in.idle() {
				t.Errorf("%d pieces are held", len(c.recv.holds))
			}
		})
	})
	inBubble(t, "compacted", func(t *testing.T) { // [D-79]
		w, c := memWire(t, memSide{opt: Options{RecvBuffers: 4, RecvBufferSize: 512, NoResize: true}}, goodHello)
		want := ""
		for i := range 60 {
			p := string(rune('a' + i%26))
			w.send(sdpwire.Message{MID: sdpwire.Data}, p)
			want += p
			time.Sleep(time.Second)
		}
		if got, err := readN(c, len(want)); got != want || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
	inBubble(t, "dropped", func(t *testing.T) {
		w, c := memWire(t, memSide{}, goodHello)
		w.send(sdpwire.Message{MID: sdpwire.Data}, "unread")
		time.Sleep(time.Second)
		if err := c.CloseRead(); err != nil {
			t.Fatal(err)
		}
		locked(c, func() {
			if len(c.recv.holds) != 0 || !c.recv.in.idle() {
				t.Errorf("%d pieces are held", len(c.recv.holds))
			}
		})
	})
	inBubble(t, "resized", func(t *testing.T) { // [D-46] [SDP-10.6-13] [SDP-10.6.2-2]
		w, c := memWire(t, memSide{}, goodHello)
		for _, size := range []uint32{40_000, 20_000} {
			w.send(sdpwire.Message{MID: sdpwire.ChRcvBuf, Size: size}, "")
			if m, _, _ := w.message(); m.MID != sdpwire.ChRcvBufAck || m.Size != size {
				t.Errorf("%v", &m)
			}
		}
		w.send(sdpwire.Message{MID: sdpwire.Data}, strings.Repeat("x", 19_000))
		if got, err := readN(c, 19_000); len(got) != 19_000 || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	inBubble(t, "announced", func(t *testing.T) { // on an idle connection, on which no call waits
		w, c := memWire(t, memSide{}, goodHello)
		time.Sleep(time.Minute)
		begun := time.Now()
		if n, err := c.WriteUrgent([]byte("now")); n != 3 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		// The byte must be announced in the same message at the latest. [SDP-9.5.3-2] [SDP-9.5.3-3]
		if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "now" ||
			m.Flags != sdpwire.OOBPend|sdpwire.OOBPres || time.Since(begun) != 0 {
			t.Errorf("%v after %v", &m, time.Since(begun))
		}
	})
	inBubble(t, "the peer's end", func(t *testing.T) {
		w, c := memWire(t, memSide{}, goodHello)
		w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// TestAdvertise checks that memory is registered only for the peer, only while advertised, and with
// no other right than needed. If the registration fails, the connection must end.
func TestAdvertise(t *testing.T) { // [D-80] [SDP-14.1-1] [SDP-8.1.1-1] [SDP-8.1.1-32]
	for _, v := range []struct {
		name string
		lim  iwarp.Limits
	}{
		{"no region", iwarp.Limits{RegionBytes: 100}},
		{"no window", iwarp.Limits{Regions: 1}},
	} {
		for _, write := range []bool{true, false} {
			inBubble(t, v.name, func(t *testing.T) {
				dev := iwarp.NewDevice(iwarp.DeviceConfig{Limits: v.lim})
				w, c := memWire(t, memSide{Options{SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 1000, RecvThreshold: 2048, RecvBufferSize: 2048, NoResize: true}, dev}, goodHello)
				name, move := "read", c.Read
				if write {
					name, move = "write", c.Write
				} else {
					w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, "")
					time.Sleep(time.Second)
				}
				if n, err := move(make([]byte, 5000)); n != 0 || !isOp(err, name, iwarp.ErrLimit) {
					t.Errorf("%d, %v", n, err)
				}
				for {
					_, b := w.next()
					if b == nil {
						break
					}
					if m, _, err := sdpwire.Parse(b, sdpwire.Figure); err != nil || m.MID != sdpwire.ModeChange {
						t.Errorf("%v, %v", &m, err)
					}
				}
				<-c.Done()
				if n := dev.Regions(); n != 0 {
					t.Errorf("%d regions are left", n)
				}
			})
		}
	}
	inBubble(t, "a sink", func(t *testing.T) { // the peer cannot read memory that a SinkAvail advertises
		w, c := memWire(t, memSide{opt: Options{RecvPolicy: PinCombined, RecvThreshold: 4096, RecvBufferSize: 4096, NoResize: true}}, goodHello)
		w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, "")
		time.Sleep(time.Second)
		read := started(func() (int, error) { return c.Read(make([]byte, 5000)) })
		m, _, _ := w.message()
		if m.MID != sdpwire.SinkAvail || m.Size != 5000 {
			t.Fatalf("%v", &m)
		}
		if s := w.read(m.STag, m.VA, make([]byte, 1)); s == iwarp.StatusOK {
			t.Error("the peer reads the buffer of a read")
		}
		if r := <-read; r.n != 0 || !errors.Is(r.err, ErrReset) {
			t.Errorf("%d, %v", r.n, r.err)
		}
	})
	inBubble(t, "a source", func(t *testing.T) { // the peer cannot write to memory that a SrcAvail advertises
		w, c := memWire(t, memSide{opt: Options{SendPolicy: PinCombined, SendThreshold: 1000}}, goodHello)
		data := make([]byte, 5000)
		write := started(func() (int, error) { return c.Write(data) })
		m, _, _ := w.message()
		if m.MID != sdpwire.SrcAvail || m.Size != 5000 {
			t.Fatalf("%v", &m)
		}
		w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf([]byte("x"))},
			Remote: iwarp.RemoteAddr{STag: m.STag, TO: m.VA}, Unsignaled: true})
		w.ended()
		if r := <-write; !errors.Is(r.err, ErrReset) || data[0] != 0 {
			t.Errorf("%d, %v, %q was written", r.n, r.err, data[0])
		}
	})
}

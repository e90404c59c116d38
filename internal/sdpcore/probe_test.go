package sdpcore

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A probe is the peer of one machine, controlled by a script. It records the machine's actions as
// words and compares them. The peer's messages have the same form.
//
//	"SrcAvail size=200 +1"     a message, +N is payload
//	"read 1 199@0"             RDMA Read of 199 bytes into read 1 at 0
//	"write 1 100@50 -> 0"      RDMA Write of write 1 from 50, to the peer's offset 0
//	"copy 1 10@0", "hold 10", "compact 10", "drop 10", "revoke"
//	"wrote 1 200", "got 2 10 EOF", "detach 1 50", "urgent 9", "pending"
//	"mode send Pipelined", "closed", "finish", "abort SDP-9.2-17"
type probe struct {
	t    testing.TB
	m    *Machine
	now  time.Duration
	seq  uint32
	ack  uint32
	bufs uint16
	said []string
	acts []Action
	msgs []sdpwire.Message
	full []Action
	stag uint32
	advs map[uint64]uint32
}

func params() Params {
	return Params{Role: Connecting, RecvBufs: 16, RecvSize: 100, PeerBufs: 64, PeerSize: 100,
		MaxAdverts: 8, PeerMaxAdverts: 8, ORD: 4,
		SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 150, RecvThreshold: 100,
		RecvBudget: 1000, SendBudget: 1000}
}

func newProbe(t testing.TB, change ...func(*Params)) *probe {
	p := params()
	for _, f := range change {
		f(&p)
	}
	return &probe{t: t, m: New(p), bufs: uint16(p.PeerBufs), ack: p.FirstSend, seq: p.FirstRecv,
		stag: 0x1000, advs: map[uint64]uint32{}}
}

// opMark is the first element of each list that an event appends to. took checks that no event
// changes this element.
const opMark = Op(200)

func mark() []Action { return []Action{{Op: opMark}} }

func (p *probe) took(acts []Action) *probe {
	p.t.Helper()
	if len(acts) == 0 || acts[0].Op != opMark {
		p.t.Fatal("the actions of the events before are lost")
	}
	acts = acts[1:]
	for i := range acts {
		a := &acts[i]
		if a.Op == OpSend {
			if a.Adv != 0 {
				p.stag += 0x100
				a.Msg.STag, a.Msg.VA = p.stag, 0x10000
				p.m.Bind(a.Adv, p.stag)
				p.advs[a.Adv] = p.stag
			}
			p.ack = a.Msg.MSeq
			p.msgs = append(p.msgs, a.Msg)
		}
		p.full = append(p.full, *a)
		if s := p.word(a); s != "" {
			p.said = append(p.said, s)
		}
	}
	p.acts = acts
	if err := p.m.sums(); err != nil {
		p.t.Error(err)
	}
	return p
}

func (p *probe) word(a *Action) string {
	m := &a.Msg
	switch a.Op {
	case OpSend:
		s := m.MID.String()
		switch m.MID {
		case sdpwire.SrcAvail, sdpwire.RdmaRdCompl, sdpwire.RdmaWrCompl, sdpwire.ChRcvBuf, sdpwire.ChRcvBufAck:
			s += fmt.Sprintf(" size=%d", m.Size)
		case sdpwire.SinkAvail:
			s += fmt.Sprintf(" size=%d nd=%d", m.Size, m.NonDiscards)
		case sdpwire.ModeChange:
			s += " " + m.Mode.String()
			if m.S {
				s += " S"
			}
		case sdpwire.SuspComm:
			s += fmt.Sprintf(" port=%d", m.Port)
		}
		if m.Flags != 0 {
			s += " " + m.Flags.String()
		}
		if n := m.PayloadLen(); n > 0 {
			s += fmt.Sprintf(" +%d", n)
		}
		return s
	case OpPart:
		return ""
	case OpRDMAWrite:
		return fmt.Sprintf("write %d %d@%d -> %d", a.ID, a.N, a.Off, a.TO)
	case OpRDMARead:
		if a.Local {
			return fmt.Sprintf("read local %d from %d", a.N, a.TO)
		}
		return fmt.Sprintf("read %d %d@%d from %d", a.ID, a.N, a.Off, a.TO)
	case OpHold, OpCompact, OpDrop:
		return fmt.Sprintf("%s %d", strings.ToLower(a.Op.String()), a.N)
	case OpCopy:
		return fmt.Sprintf("copy %d %d@%d", a.ID, a.N, a.Off)
	case OpRevoke:
		return "revoke"
	case OpWriteDone:
		return fmt.Sprintf("wrote %d %d", a.ID, a.N) + errWord(a.Err)
	case OpReadDone:
		return fmt.Sprintf("got %d %d", a.ID, a.N) + errWord(a.Err)
	case OpDetach:
		return fmt.Sprintf("detach %d %d", a.ID, a.Off)
	case OpUrgent:
		return fmt.Sprintf("urgent %d", a.Pos)
	case OpUrgentPending:
		return "pending"
	case OpMode:
		if a.Local {
			return "mode send " + m.Mode.String()
		}
		return "mode recv " + m.Mode.String()
	case OpPeerClosed:
		return "closed"
	case OpResize, OpPeerSize:
		return fmt.Sprintf("%s %d", strings.ToLower(a.Op.String()), a.N)
	case OpReconnect:
		return fmt.Sprintf("reconnect %d", m.Port)
	case OpAbort:
		if a.Local {
			return "abort after AbortConn" + errWord(a.Err)
		}
		return "abort" + errWord(a.Err)
	}
	return strings.ToLower(a.Op.String())
}

func errWord(err error) string {
	var v *Violation
	switch {
	case err == nil:
		return ""
	case errors.As(err, &v):
		return " " + v.Row
	case err == io.EOF:
		return " EOF"
	case err == ErrCancelled:
		return " cancelled"
	case err == ErrReset:
		return " reset"
	}
	return " " + err.Error()
}

// want compares the machine's actions since the last want, in order.
func (p *probe) want(words ...string) *probe {
	p.t.Helper()
	if got, want := strings.Join(p.said, "; "), strings.Join(words, "; "); got != want {
		p.t.Errorf("did   %s\n\twanted %s", got, want)
	}
	p.said = nil
	return p
}

// wantMsgs compares only the messages that the machine has sent since the last want.
func (p *probe) wantMsgs(words ...string) *probe {
	p.t.Helper()
	var got []string
	for i := range p.full {
		if p.full[i].Op == OpSend {
			got = append(got, p.word(&p.full[i]))
		}
	}
	if strings.Join(got, "; ") != strings.Join(words, "; ") {
		p.t.Errorf("sent  %s\n\twanted %s", strings.Join(got, "; "), strings.Join(words, "; "))
	}
	return p.skip()
}

// skip drops the recorded actions of the machine.
func (p *probe) skip() *probe {
	p.said, p.msgs, p.full = nil, nil, nil
	return p
}

func (p *probe) aborted(row string) *probe {
	p.t.Helper()
	var v *Violation
	if !errors.As(p.m.Err(), &v) || v.Row != row {
		p.t.Errorf("connection ended with %v, wanted a violation of [%s]", p.m.Err(), row)
	}
	return p
}

func (p *probe) alive() *probe {
	p.t.Helper()
	if p.m.Err() != nil {
		p.t.Errorf("connection ended: %v", p.m.Err())
	}
	return p
}

// recv sends messages of the peer to the machine.
func (p *probe) recv(scripts ...string) *probe {
	p.t.Helper()
	for _, s := range scripts {
		msg, inv, has := p.parse(s)
		p.took(p.m.Receive(p.now, &msg, inv, has, mark()))
		p.seq = msg.MSeq + 1
	}
	return p
}

func (p *probe) parse(s string) (msg sdpwire.Message, inv uint32, has bool) {
	p.t.Helper()
	f := strings.Fields(s)
	for i := range 256 {
		if sdpwire.MID(i).String() == f[0] {
			msg.MID = sdpwire.MID(i)
		}
	}
	msg.MSeq, msg.MSeqAck, msg.Bufs = p.seq, p.ack, p.bufs
	payload := 0
	for _, w := range f[1:] {
		k, v, _ := strings.Cut(w, "=")
		n, _ := strconv.ParseUint(v, 0, 64)
		switch k {
		case "size":
			msg.Size = uint32(n)
		case "nd":
			msg.NonDiscards = uint32(n)
		case "seq":
			msg.MSeq = uint32(n)
		case "ack":
			msg.MSeqAck = uint32(n)
		case "bufs":
			msg.Bufs = uint16(n)
		case "port":
			msg.Port = uint16(n)
		case "stag":
			msg.STag = uint32(n)
		case "va":
			msg.VA = n
		case "inv":
			inv, has = uint32(n), true
		case "inv*": // STag of the newest advertisement of the machine
			inv, has = p.stag, true
		case "S":
			msg.S = true
		case "PEND":
			msg.Flags |= sdpwire.OOBPend
		case "PRES":
			msg.Flags |= sdpwire.OOBPres
		case "PIPE":
			msg.Flags |= sdpwire.ReqPipe
		case "Buffered":
			msg.Mode = sdpwire.Buffered
		case "Combined":
			msg.Mode = sdpwire.Combined
		case "Pipelined":
			msg.Mode = sdpwire.Pipelined
		default:
			if !strings.HasPrefix(w, "+") {
				p.t.Fatalf("script: %q", s)
			}
			payload, _ = strconv.Atoi(w[1:])
		}
	}
	msg.Len = uint32(msg.MID.HeaderLen() + payload)
	return msg, inv, has
}

func (p *probe) write(id uint64, n int) *probe  { return p.took(p.m.Write(p.now, id, n, false, mark())) }
func (p *probe) urgent(id uint64, n int) *probe { return p.took(p.m.Write(p.now, id, n, true, mark())) }
func (p *probe) read(id uint64, n int) *probe   { return p.took(p.m.Read(p.now, id, n, false, mark())) }
func (p *probe) readAll(id uint64, n int) *probe {
	return p.took(p.m.Read(p.now, id, n, true, mark()))
}
func (p *probe) cancelWrite(id uint64) *probe { return p.took(p.m.CancelWrite(p.now, id, mark())) }
func (p *probe) cancelRead(id uint64) *probe  { return p.took(p.m.CancelRead(p.now, id, mark())) }
func (p *probe) readDone() *probe             { return p.took(p.m.ReadDone(p.now, mark())) }
func (p *probe) closeWrite() *probe           { return p.took(p.m.CloseWrite(p.now, mark())) }
func (p *probe) abort(err error) *probe       { return p.took(p.m.Abort(p.now, err, mark())) }
func (p *probe) goMode(to sdpwire.Mode) *probe {
	return p.took(p.m.RequestSendMode(p.now, to, mark()))
}
func (p *probe) pass(d time.Duration) *probe {
	p.now += d
	return p.took(p.m.Tick(p.now, mark()))
}
func (p *probe) peerSize(n int) *probe {
	acts, _ := p.m.RequestPeerSize(p.now, n, mark())
	return p.took(acts)
}

// pipelined changes the sending half (out), the receiving half (in), or both, to Pipelined Mode.
func (p *probe) pipelined(out, in bool) *probe {
	p.t.Helper()
	if out {
		p.m.p.SendPolicy = PinPipelined
		p.took(p.m.Tick(p.now, mark()))
	}
	if in {
		p.recv("ModeChange Pipelined")
	}
	return p.skip()
}

// stats compares the counters in want.
func (p *probe) stats(want string) *probe {
	p.t.Helper()
	v := reflect.ValueOf(p.m.Stats())
	for _, w := range strings.Fields(want) {
		name, n, _ := strings.Cut(w, "=")
		if got := fmt.Sprint(v.FieldByName(name)); got != n {
			p.t.Errorf("%s is %s, wanted %s", name, got, n)
		}
	}
	return p
}

func autoPolicy(p *Params) { p.SendPolicy, p.RecvPolicy = Auto, Auto }
func accepting(p *Params)  { p.Role = Accepting }

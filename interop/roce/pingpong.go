package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"viaduct/roce"
)

// A talk is a conversation with a pingpong program of the guest.
type talk struct {
	transport roce.Transport
	mtu       int
	size      int
	count     int
	serves    bool // this process is the server
}

const (
	pingPort  = "18515"
	pingQKey  = 0x11111111
	talkLimit = 3 * time.Minute // long, because the guest may have an emulated processor on a busy machine

	// guestTimeout is long, because a guest with an emulated processor may answer late on a busy
	// machine.
	guestTimeout = 500 * time.Millisecond
)

func (t talk) program() string { return "ibv_" + strings.ToLower(t.transport.String()) + "_pingpong" }

func (t talk) String() string {
	roles := "guest serves"
	if t.serves {
		roles = "guest calls"
	}
	return fmt.Sprintf("%s, %s, MTU %d, %d x %d bytes", t.program(), roles, t.mtu, t.count, t.size)
}

// script returns the command line for the guest. us is our address.
func (t talk) script(us netip.Addr) string {
	s := fmt.Sprintf("%s -d rxe0 -g %s -s %d -n %d", t.program(), gidIndex(us), t.size, t.count)
	if t.transport != roce.UD {
		s += fmt.Sprintf(" -m %d", t.mtu)
	}
	if t.serves {
		s += " " + us.String()
	}
	return s
}

// gidIndex returns a shell expression for the index of the guest's GID whose address family equals
// the family of us.
func gidIndex(us netip.Addr) string {
	if us.Is4() {
		return "$(gid ffff:c612)" // 198.18
	}
	return "$(gid fd87)"
}

// word returns the programs' message describing a queue pair: LID, queue pair number, first packet
// sequence number and GID.
func word(e roce.Endpoint) []byte {
	g := e.GID()
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, e.QPN, e.PSN, g[:])
}

func readWord(r io.Reader) (e roce.Endpoint, err error) {
	b := make([]byte, len(word(roce.Endpoint{Addr: netip.IPv6Unspecified()})))
	if _, err = io.ReadFull(r, b); err != nil {
		return e, err
	}
	f := strings.Split(strings.TrimRight(string(b), "\x00"), ":")
	if len(f) != 4 {
		return e, fmt.Errorf("the guest says %q", b)
	}
	qpn, err1 := strconv.ParseUint(f[1], 16, 24)
	psn, err2 := strconv.ParseUint(f[2], 16, 24)
	gid, err3 := hex.DecodeString(f[3])
	if err1 != nil || err2 != nil || err3 != nil || len(gid) != 16 {
		return e, fmt.Errorf("the guest says %q", b)
	}
	return roce.Endpoint{Addr: netip.AddrFrom16([16]byte(gid)).Unmap(), QPN: uint32(qpn), PSN: uint32(psn)}, nil
}

// dial connects to the guest's program, and retries until the program listens.
func dial(ctx context.Context, a netip.Addr) (net.Conn, error) {
	for {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(a.String(), pingPort), time.Second)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// hold runs the conversation, and checks both ends.
func (t talk) hold(ctx context.Context, dev *roce.Device, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	qp, err := dev.NewQueuePair(roce.Config{Transport: t.transport, MTU: t.mtu, QKey: pingQKey, SendDepth: 4, Timeout: guestTimeout})
	if err != nil {
		return err
	}
	defer qp.Close()
	guestEnds := make(chan error, 1)
	guestStarts := func() {
		go func() {
			_, err := g.run(talkLimit, t.script(dev.Addr()))
			guestEnds <- err
		}()
	}
	p := &player{talk: t, qp: qp, ctx: ctx}
	if err := p.meet(dev, g, guestStarts); err != nil {
		cancel()
		return fmt.Errorf("%w (guest: %v)", err, <-guestEnds)
	}
	err = p.play()
	if err != nil {
		qp.Close()
		return fmt.Errorf("%w after %d; %+v, %+v (guest: %v)", err, p.done, qp.Stats(), dev.Stats(), <-guestEnds)
	}
	return <-guestEnds
}

// A player is the local side of a talk.
type player struct {
	talk
	qp     *roce.QueuePair
	ctx    context.Context
	peer   roce.Endpoint
	buf    []byte // receive buffers
	prefix int    // bytes before a received message in buf: the 40 bytes of a datagram's header, or 0
	done   int
}

// meet exchanges the endpoints of the queue pairs with the guest, as TCP client or server, and
// connects the local queue pair unless it is UD. It posts the first receive before the peer can send.
func (p *player) meet(dev *roce.Device, g *guest, guestStarts func()) error {
	if p.transport == roce.UD {
		p.prefix = 40
	}
	p.buf = make([]byte, p.prefix+p.size)
	if err := p.receive(); err != nil {
		return err
	}
	var c net.Conn
	var err error
	if p.serves {
		l, err := net.Listen("tcp", net.JoinHostPort(dev.Addr().String(), pingPort))
		if err != nil {
			return err
		}
		defer l.Close()
		guestStarts()
		if c, err = l.Accept(); err != nil {
			return err
		}
	} else {
		guestStarts()
		if c, err = dial(p.ctx, netip.MustParseAddr(g.address)); err != nil {
			return err
		}
		if _, err := c.Write(word(p.qp.Local())); err != nil {
			return err
		}
	}
	defer c.Close()
	if p.peer, err = readWord(c); err != nil {
		return err
	}
	if p.transport != roce.UD {
		if err := p.qp.Connect(p.peer); err != nil {
			return err
		}
	}
	if p.serves {
		if _, err := c.Write(word(p.qp.Local())); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, len("done\x00")))
		return err
	}
	_, err = c.Write([]byte("done\x00"))
	return err
}

func (p *player) receive() error {
	return p.qp.PostRecv(roce.RecvWR{SG: []roce.SGE{roce.Buf(p.buf)}})
}

// play sends messages and compares the returned messages as client; as server it returns the
// messages of the peer.
func (p *player) play() error {
	data := make([]byte, p.size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	for ; p.done < p.count; p.done++ {
		if p.serves {
			got, err := p.await()
			if err != nil {
				return err
			}
			data = bytes.Clone(got)
		}
		if p.done+1 < p.count || !p.serves {
			if err := p.receiveNext(); err != nil {
				return err
			}
		}
		if err := p.send(data); err != nil {
			return err
		}
		if p.serves {
			continue
		}
		got, err := p.await()
		if err != nil {
			return err
		}
		if !bytes.Equal(got, data) {
			return fmt.Errorf("message %d came back with other bytes", p.done)
		}
		data[p.done%len(data)]++
	}
	return nil
}

// receiveNext posts the receive of the next message. The receive of a client's first message was
// posted by meet.
func (p *player) receiveNext() error {
	if !p.serves && p.done == 0 {
		return nil
	}
	return p.receive()
}

func (p *player) await() ([]byte, error) {
	c, err := p.qp.RecvCQ().Wait(p.ctx)
	if err == nil {
		err = c.Err()
	}
	if err == nil && c.Len != len(p.buf) {
		err = fmt.Errorf("%d bytes came, not %d", c.Len, len(p.buf))
	}
	return p.buf[p.prefix:], err
}

func (p *player) send(data []byte) error {
	if err := p.qp.Post(roce.SendWR{SG: []roce.SGE{roce.Buf(data)}, To: p.peer, QKey: pingQKey}); err != nil {
		return err
	}
	c, err := p.qp.SendCQ().Wait(p.ctx)
	if err == nil {
		err = c.Err()
	}
	return err
}

// Package rping speaks the exchange of rping, the ping of rdma-core, in both roles. The exchange is
// the quickest proof that two RDMA stacks understand each other: a round uses Send, RDMA Read and
// RDMA Write.
//
//	client                                     server
//	  | Send: where my source is               |
//	  |--------------------------------------->|
//	  |                  RDMA Read of the source
//	  |<---------------------------------------|
//	  |                      Send: go on        |
//	  |<---------------------------------------|
//	  | Send: where my sink is                 |
//	  |--------------------------------------->|
//	  |                  RDMA Write to the sink |
//	  |<---------------------------------------|
//	  |                      Send: done         |
//	  |<---------------------------------------|
//
// Each Send has 16 bytes: address, key and length, big-endian; the server's values are ignored. The
// client ends by closing the connection. The protocol has no document; this description comes from
// the behaviour of the program.
package rping

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"viaduct/iwarp"
)

// Port is the TCP port of rping.
const Port = 7174

// These are numbers of bytes of data per round.
const (
	DefaultSize = 64
	MinSize     = 27 // the longest heading of the text and the final zero byte
	MaxSize     = 64 << 10
)

// adLen is the length of the message that names a buffer.
const adLen = 16

// Options are the settings of both roles. The zero value works.
type Options struct {
	Size   int  // client: bytes per round; 0 means DefaultSize
	Count  int  // client: rounds; 0 means until the context ends
	Verify bool // client: compare the returned data

	// OnRound, if set, is called after each round with the round's number from 0 and the data. The
	// data is only valid during the call.
	OnRound func(n int, data []byte)
}

// ErrMismatch means that the data written by the server differ from the data read by the server.
var ErrMismatch = errors.New("rping: data mismatch")

// An Endpoint is a side of an exchange, tied to a stream. Make an Endpoint before the stream
// starts, in Config.Prepare or between ReadRequest and Accept, since the peer may send as soon as
// the stream has started.
type Endpoint struct {
	q   *iwarp.QueuePair
	opt Options
	in  []byte // buffer of the posted receive
	out []byte // buffer of the Send in progress

	ended bool // the peer has closed, and all its messages were handled
}

// New returns an Endpoint for q and posts the first receive.
func New(q *iwarp.QueuePair, opt Options) (*Endpoint, error) {
	if opt.Size == 0 {
		opt.Size = DefaultSize
	}
	if opt.Size < MinSize || opt.Size > MaxSize {
		return nil, fmt.Errorf("rping: size %d, want %d to %d", opt.Size, MinSize, MaxSize)
	}
	e := &Endpoint{q: q, opt: opt, in: make([]byte, adLen), out: make([]byte, adLen)}
	return e, e.arm()
}

// Config returns a copy of base, nil for the defaults. Where base sets no IRD or ORD, the copy
// allows one Read each way, as rping needs.
func Config(base *iwarp.Config) *iwarp.Config {
	c := new(iwarp.Config)
	if base != nil {
		*c = *base
	}
	if c.IRD == 0 {
		c.IRD = 1
	}
	if c.ORD == 0 {
		c.ORD = 1
	}
	return c
}

// Dial connects to addr, runs the client's side and closes. It returns the number of completed
// rounds. base may be nil.
func Dial(ctx context.Context, addr string, base *iwarp.Config, opt Options) (rounds int, err error) {
	c := Config(base)
	var e *Endpoint
	c.Prepare = func(q *iwarp.QueuePair) (err error) {
		if base != nil && base.Prepare != nil {
			if err := base.Prepare(q); err != nil {
				return err
			}
		}
		e, err = New(q, opt)
		return err
	}
	q, err := iwarp.Dial(ctx, addr, c)
	if err != nil {
		return 0, err
	}
	defer q.Close()
	return e.Client(ctx)
}

// Serve accepts the Request, runs the server's side until the client closes, and closes. It returns
// the number of completed rounds.
func Serve(ctx context.Context, r *iwarp.Request, opt Options) (rounds int, err error) {
	e, err := New(r.QueuePair(), opt)
	if err != nil {
		r.Reject(nil)
		return 0, err
	}
	q, err := r.Accept(nil)
	if err != nil {
		return 0, err
	}
	defer q.Close()
	return e.Server(ctx)
}

// Client runs the client's side on a started stream. Client returns the number of completed rounds,
// and does not close the stream.
func (e *Endpoint) Client(ctx context.Context) (rounds int, err error) {
	source, err := e.q.Register(make([]byte, e.opt.Size), iwarp.RemoteRead)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	sink, err := e.q.Register(make([]byte, e.opt.Size), iwarp.RemoteWrite)
	if err != nil {
		return 0, err
	}
	defer sink.Close()
	for n := 0; e.opt.Count == 0 || n < e.opt.Count; n++ {
		fill(source.Bytes(), n)
		if err := e.tell(ctx, source); err != nil {
			return n, err
		}
		if _, err := e.hear(ctx); err != nil { // the server has read the source
			return n, err
		}
		clear(sink.Bytes())
		if err := e.tell(ctx, sink); err != nil {
			return n, err
		}
		if _, err := e.hear(ctx); err != nil { // the server has written to the sink
			return n, err
		}
		if e.opt.Verify {
			if err := compare(source.Bytes(), sink.Bytes(), n); err != nil {
				return n, err
			}
		}
		if e.opt.OnRound != nil {
			e.opt.OnRound(n, sink.Bytes())
		}
	}
	return e.opt.Count, nil
}

// Server runs the server's side on a started stream, until the client closes. Server returns the
// number of completed rounds, and does not close the stream.
func (e *Endpoint) Server(ctx context.Context) (rounds int, err error) {
	buf := make([]byte, MaxSize)
	for n := 0; ; n++ {
		source, err := e.hear(ctx)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if source.size > MaxSize {
			return n, fmt.Errorf("rping: client offers %d bytes, at most %d", source.size, MaxSize)
		}
		data := buf[:source.size]
		if err := e.do(ctx, iwarp.SendWR{Op: iwarp.OpRead, SG: []iwarp.SGE{iwarp.Buf(data)}, Remote: source.at}); err != nil {
			return n, err
		}
		if err := e.send(ctx, ad{}); err != nil { // lets the client go on
			return n, err
		}
		sink, err := e.hear(ctx)
		if err != nil {
			return n, unexpected(err)
		}
		// Like the original, write the text including its final zero byte, and no more.
		if err := e.do(ctx, iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf(text(data))}, Remote: sink.at}); err != nil {
			return n, err
		}
		if err := e.send(ctx, ad{}); err != nil { // done
			return n, err
		}
		if e.opt.OnRound != nil {
			e.opt.OnRound(n, data)
		}
	}
}

// An ad names a buffer of the sender.
//
//	+----------------+--------+--------+
//	|  address (8)   | key (4)| len (4)|
//	+----------------+--------+--------+
type ad struct {
	at   iwarp.RemoteAddr
	size uint32
}

func (a ad) put(b []byte) {
	binary.BigEndian.PutUint64(b, a.at.TO)
	binary.BigEndian.PutUint32(b[8:], a.at.STag)
	binary.BigEndian.PutUint32(b[12:], a.size)
}

func parseAd(b []byte) ad {
	return ad{
		at:   iwarp.RemoteAddr{TO: binary.BigEndian.Uint64(b), STag: binary.BigEndian.Uint32(b[8:])},
		size: binary.BigEndian.Uint32(b[12:]),
	}
}

func (e *Endpoint) tell(ctx context.Context, m *iwarp.MemoryRegion) error {
	return e.send(ctx, ad{m.Remote(0), uint32(m.Len())})
}

func (e *Endpoint) send(ctx context.Context, a ad) error {
	a.put(e.out)
	return e.do(ctx, iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(e.out)}})
}

// do posts a request and waits for the completion.
func (e *Endpoint) do(ctx context.Context, wr iwarp.SendWR) error {
	if err := e.q.Post(wr); err != nil {
		return e.why(err)
	}
	c, err := e.q.SendCQ().Wait(ctx)
	if err != nil {
		return err
	}
	return e.why(c.Err())
}

func (e *Endpoint) arm() error {
	return e.q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(e.in)}})
}

// hear waits for the peer's next message. The error is io.EOF if the peer has
// closed in order.
func (e *Endpoint) hear(ctx context.Context) (ad, error) {
	if e.ended { // no posted receive is left that could report the end
		return ad{}, io.EOF
	}
	c, err := e.q.RecvCQ().Wait(ctx)
	if err != nil {
		return ad{}, err
	}
	if c.Status != iwarp.StatusOK {
		return ad{}, e.why(c.Err())
	}
	if c.Len != adLen {
		return ad{}, fmt.Errorf("rping: message of %d bytes, want %d", c.Len, adLen)
	}
	a := parseAd(e.in)
	if err := e.arm(); errors.Is(err, iwarp.ErrPeerClosed) {
		e.ended = true
	} else if err != nil {
		return ad{}, e.why(err)
	}
	return a, nil
}

// why replaces the error of a request by the error of the stream, if there is one, or by io.EOF if
// the peer has closed in order.
func (e *Endpoint) why(err error) error {
	if err == nil {
		return nil
	}
	if se := e.q.Err(); se != nil && !errors.Is(se, iwarp.ErrClosed) {
		return se
	}
	select {
	case <-e.q.PeerClosed():
		return io.EOF
	default:
		return err
	}
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fill makes the text of round n: a heading, then letters that begin one
// further each round, then a zero byte.
func fill(b []byte, n int) {
	const first, last = 'A', 'z'
	head := fmt.Sprintf("rdma-ping-%d: ", n)
	c := first + n%(last-first+1)
	for i := copy(b, head); i < len(b); i++ {
		b[i] = byte(c)
		if c++; c > last {
			c = first
		}
	}
	b[len(b)-1] = 0
}

// text returns the bytes of b up to the first zero, including the zero, or all bytes if there is
// none.
func text(b []byte) []byte {
	for i, c := range b {
		if c == 0 {
			return b[:i+1]
		}
	}
	return b
}

func compare(want, got []byte, n int) error {
	for i := range want {
		if want[i] != got[i] {
			return fmt.Errorf("%w: round %d, byte %d of %d is %#02x, want %#02x", ErrMismatch,
				n, i, len(want), got[i], want[i])
		}
	}
	return nil
}

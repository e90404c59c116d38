package memsvc

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/store"
)

// Put stores length bytes of r under path by RDMA Write. Put writes the bytes to h as well. h must
// be fresh, because the server compares the sum before the file becomes visible. The server hashes
// and writes one piece while the next pieces arrive. An older server lends the whole file instead.
func (c *Client) Put(ctx context.Context, path string, length int64, r io.Reader, h hash.Hash, progress func(n int)) error {
	if length < 0 {
		return fmt.Errorf("memsvc: a file of %d bytes", length)
	}
	return c.put(ctx, path, length, r, h, progress)
}

// PutStream stores the bytes of r up to the end. Otherwise PutStream is like Put.
func (c *Client) PutStream(ctx context.Context, path string, r io.Reader, h hash.Hash, progress func(n int)) error {
	return c.put(ctx, path, -1, r, h, progress)
}

// A sourceError is an error of the source, as opposed to the connection.
type sourceError struct{ error }

func (e sourceError) Unwrap() error { return e.error }

func (c *Client) put(ctx context.Context, path string, length int64, r io.Reader, h hash.Hash, progress func(n int)) error {
	a, err := c.ask(ctx, request{Op: "open", Path: store.Text(path), Mode: "write", Length: length, Pieces: true}, 0)
	if err != nil {
		return err
	}
	if len(a.Pieces) == 0 && a.Handle != nil && a.Length != nil && *a.Length == length {
		a.Pieces = []piece{{a.Address, *a.Handle}} // the file itself
	}
	if a.Length == nil || *a.Length < 0 || length != 0 && (*a.Length == 0 || len(a.Pieces) == 0) {
		return errors.New("the server lends no memory to write the file to")
	}
	p := &putting{c: c, file: request{Path: store.Text(path), Mode: "write"}, room: *a.Length,
		length: length, r: r, h: h, progress: progress}
	if err := p.lent(a.Pieces); err != nil {
		return err
	}
	err = p.run(ctx)
	// The connection remains usable after a refusal or an error of the source. giveUp waits for the
	// writes and answers in flight and makes the server discard the file. After the end of ctx the
	// connection can only be closed: a message whose memory must not change may be in flight.
	if source, ok := errors.AsType[sourceError](err); ok {
		err = source.error
	} else if !errors.Is(err, ErrRefused) || p.answered {
		return err
	}
	if ctx.Err() != nil {
		return err
	}
	if gone := p.giveUp(ctx); gone != nil {
		return errors.Join(err, gone)
	}
	return err
}

// A putting is the state of a file being sent to the server.
type putting struct {
	c          *Client
	file       request      // holds the name of the file
	free       []msg.Remote // pieces that this client may write to, in order of use
	room       int64        // length of a piece
	length     int64        // length of the file, -1 if unknown
	unanswered int          // number of extend requests without an answer
	closing    bool         // the close was sent
	answered   bool         // only the answer to the close is outstanding

	r        io.Reader
	h        hash.Hash
	progress func(n int)

	slot   int   // the next slot of the window
	flight []int // bytes of each write that was not reaped yet
}

func (p *putting) lent(pieces []piece) error {
	for _, l := range pieces {
		at, err := l.remote()
		if err != nil {
			return err
		}
		p.free = append(p.free, at)
	}
	return nil
}

func (p *putting) run(ctx context.Context) error {
	left := int64(math.MaxInt64)
	if p.length >= 0 {
		left = p.length
	}
	depth, _ := p.c.conn.Depth()
	filled, ended := int64(0), left == 0
	for !ended {
		for len(p.free) == 0 {
			if err := p.answer(ctx); err != nil {
				return err
			}
		}
		var err error
		at := p.free[0]
		p.free = p.free[1:]
		filled, err = p.fill(ctx, at, min(p.room, left), depth)
		if err != nil && err != io.EOF {
			return err
		}
		left -= filled
		ended = left == 0 || err == io.EOF
		if ended && p.length >= 0 && left > 0 {
			return sourceError{ErrSourceShrank}
		}
		if err := p.settle(ctx); err != nil {
			return err
		}
		if !ended {
			if err := p.request(ctx, "extend", filled, ""); err != nil {
				return err
			}
			p.unanswered++
		}
	}
	sum := hex.EncodeToString(p.h.Sum(nil))
	if err := p.request(ctx, "close", filled, sum); err != nil {
		return err
	}
	p.closing = true
	for p.unanswered > 0 {
		if err := p.answer(ctx); err != nil {
			return err
		}
	}
	p.answered = true
	stored, err := p.receive(ctx, "close", max(p.length, 0))
	if err != nil {
		return err
	}
	if stored.SHA256 != sum {
		return ErrChanged
	}
	return nil
}

// giveUp ends the transfer and makes the server discard the file. giveUp waits for the outstanding
// writes and answers, so that the connection remains usable.
func (p *putting) giveUp(ctx context.Context) error {
	if err := p.settle(ctx); err != nil {
		return err
	}
	for p.unanswered > 0 {
		if err := p.answer(ctx); err != nil && !errors.Is(err, ErrRefused) {
			return err
		}
	}
	if !p.closing {
		if err := p.request(ctx, "close", 0, ""); err != nil {
			return err
		}
	}
	if _, err := p.receive(ctx, "close", 0); err != nil && !errors.Is(err, ErrRefused) {
		return err
	}
	return nil
}

// fill writes bytes of the source to one piece at the server, at most room. The error is io.EOF at
// the end of the source, and a sourceError if the source failed.
func (p *putting) fill(ctx context.Context, at msg.Remote, room int64, depth int) (filled int64, err error) {
	win, err := p.c.window(depth)
	if err != nil {
		return 0, err
	}
	for filled < room && err == nil {
		if len(p.flight) == win {
			if err := p.reap(ctx); err != nil {
				return filled, err
			}
		}
		var n int
		off := p.slot * p.c.piece
		b := p.c.buf[off:][:min(int64(p.c.piece), room-filled)]
		if n, err = io.ReadFull(p.r, b); err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		if err != nil && err != io.EOF {
			return filled, sourceError{err}
		}
		if n > 0 {
			p.h.Write(b[:n])
			if err := p.c.conn.PostWrite(p.c.reg, off, n, msg.Remote{Address: at.Address + uint64(filled), Handle: at.Handle}); err != nil {
				return filled, err
			}
			p.flight = append(p.flight, n)
			p.slot = (p.slot + 1) % win
			filled += int64(n)
		}
	}
	return filled, err
}

func (p *putting) reap(ctx context.Context) error {
	n := p.flight[0]
	p.flight = p.flight[1:]
	err := bounded(ctx, stallTime, p.c.conn.Reap)
	if err == nil && p.progress != nil {
		p.progress(n)
	}
	return err
}

// settle waits until all posted RDMA Writes are complete. It must precede the wait for a message,
// because the completion of a message comes after the completions of the writes before the message.
func (p *putting) settle(ctx context.Context) error {
	for len(p.flight) > 0 {
		if err := p.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// request sends op for n bytes of the next piece. It does not wait for the answer.
func (p *putting) request(ctx context.Context, op string, n int64, sum string) error {
	p.file.Op, p.file.Length, p.file.SHA256 = op, n, sum
	return bounded(ctx, stallTime, func(ctx context.Context) error { return p.c.send(ctx, p.file) })
}

// receive waits for the answer to op, for as long as the server may need for the given bytes.
func (p *putting) receive(ctx context.Context, op string, bytes int64) (a reply, err error) {
	err = bounded(ctx, answerTime(bytes), func(ctx context.Context) error {
		p.file.Op = op
		a, err = p.c.receive(ctx, p.file)
		return err
	})
	return a, err
}

// answer receives the answer to the oldest extend. The answer lends the stored piece again.
func (p *putting) answer(ctx context.Context) error {
	p.unanswered--
	a, err := p.receive(ctx, "extend", 0)
	if err == nil && len(a.Pieces) == 0 {
		err = errors.New("the server's answer lends no piece")
	}
	if err == nil {
		err = p.lent(a.Pieces)
	}
	return err
}

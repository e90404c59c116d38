package mixed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"viaduct/samehost"
)

// A stream runs a plan over a net.Conn. Each write is a length of four bytes, followed by that many
// bytes of the source. The last write is followed by a length of 0, the SHA-256 of all bytes, and a
// half-close.
type stream struct {
	c     net.Conn
	abort func()
	path  samehost.Path
}

func (s *stream) Run(ctx context.Context, p Plan, dialled bool) (t Tally, err error) {
	stop := context.AfterFunc(ctx, s.abort)
	defer stop()
	sent := make(chan error, 1)
	go func() { sent <- s.send(ctx, p, dialled, &t) }()
	err = s.receive(p, !dialled, &t)
	if err != nil && (ctx.Err() != nil || errors.Is(err, ErrBroken)) {
		s.abort()
	}
	e := <-sent
	if err == nil || errors.Is(e, ErrBroken) || e != nil && errors.Is(err, errEarlyEnd) {
		err = e // the sender's error says more: a socket reports a failure to one call only, but an end to every call
	}
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	t.Orderly, t.SharedMemory = err == nil, s.path.SharedMemory
	return t, err
}

func (s *stream) send(ctx context.Context, p Plan, dialled bool, t *Tally) error {
	lengths, bytes := source(p, dialled, useLengths), source(p, dialled, useStream)
	begin := time.Now()
	speed := pace{rate: p.Rate, begin: begin}
	sum := newDigest()
	buf := make([]byte, 4+p.MaxBytes)
	idled := p.Idle == 0
	for i := 0; i < p.Least || time.Since(begin) < p.For; i++ {
		if !idled && time.Since(begin) > p.For/2 {
			idled = true
			if err := sleep(ctx, p.Idle); err != nil {
				return err
			}
		}
		n := length(lengths, p.MaxBytes)
		if err := sleep(ctx, speed.delay(time.Now(), n)); err != nil {
			return err
		}
		b := buf[:4+n]
		binary.BigEndian.PutUint32(b, uint32(n))
		fill(bytes, b[4:])
		sum.Write(b[4:])
		if k, err := s.c.Write(b); err != nil {
			return err
		} else if k != len(b) {
			return broken("a write of %d bytes returned %d without an error", len(b), k)
		}
		t.Sends++
		t.SentBytes += uint64(n)
	}
	if _, err := s.c.Write(sum.Sum(make([]byte, 4))); err != nil {
		return err
	}
	return s.c.(interface{ CloseWrite() error }).CloseWrite()
}

func (s *stream) receive(p Plan, dialled bool, t *Tally) error {
	from := source(p, dialled, useStream)
	sum := newDigest()
	var head [4]byte
	got, want := make([]byte, p.MaxBytes), make([]byte, p.MaxBytes)
	for {
		if _, err := io.ReadFull(s.c, head[:]); err != nil {
			return early(err)
		}
		n := int(binary.BigEndian.Uint32(head[:]))
		if n == 0 {
			break
		}
		if n > p.MaxBytes {
			return broken("a length of %d after %d bytes", n, t.ReceivedBytes)
		}
		k, err := io.ReadFull(s.c, got[:n])
		fill(from, want[:n])
		if !bytes.Equal(got[:k], want[:k]) {
			return broken("other bytes behind %d", t.ReceivedBytes)
		}
		sum.Write(got[:k])
		t.ReceivedBytes += uint64(k)
		if err != nil {
			return early(err)
		}
	}
	said := make([]byte, sum.Size())
	if _, err := io.ReadFull(s.c, said); err != nil {
		return early(err)
	}
	if !bytes.Equal(said, sum.Sum(nil)) {
		return broken("another digest over %d bytes", t.ReceivedBytes)
	}
	if n, err := s.c.Read(said); n > 0 {
		return broken("%d bytes behind the end", n)
	} else if err != io.EOF {
		return fmt.Errorf("in place of the end: %w", err)
	}
	t.Digest = digest(sum)
	return nil
}

// early replaces an end of stream, in the middle of the plan, by errEarlyEnd.
func early(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errEarlyEnd
	}
	return err
}

// errEarlyEnd means that the peer closed in order before sending everything, because the peer's run
// failed.
var errEarlyEnd = errors.New("the other end closed before it was done")

func (s *stream) Close() error { return s.c.Close() }
func (s *stream) Abort()       { s.abort() }

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

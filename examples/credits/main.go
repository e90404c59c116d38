// Command credits sends messages to a server that limits the number of messages in flight. Then the
// command sends one message more than allowed, to show the purpose of the limit.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"viaduct/iwarp"
)

const (
	window   = 8  // number of receives that the server posts, and of messages that it grants
	batch    = 4  // number of credits that the server returns at a time
	msgLen   = 64 // maximum length of a message
	messages = 1000
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l := must(iwarp.Listen("127.0.0.1:0", nil))
	defer l.Close()

	served := make(chan error)
	go func() { served <- serve(ctx, l) }()
	s := must(dial(ctx, l.Addr().String()))
	for range messages {
		check(s.send(ctx, []byte("a message")))
	}
	fmt.Printf("%d messages sent, at most %d at a time\n", messages, window)
	check(s.q.Close())
	check(<-served)

	// This server posts its receives but handles no message, and the client ignores the credits.
	go func() { served <- ignore(ctx, l) }()
	s = must(dial(ctx, l.Addr().String()))
	for range window + 1 {
		check(s.q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf([]byte("a message"))}}))
	}
	<-s.q.Ended()
	var t *iwarp.TerminateError
	fmt.Printf("%d messages for %d receives: the server ends the stream: %v\n", window+1, window, errors.As(s.q.Err(), &t) && t.Remote)
	check(<-served)
}

// A sender sends messages while it has credits.
type sender struct {
	q       *iwarp.QueuePair
	credits int
	grants  [window / batch][4]byte // receives for the grants; no more can be in flight
}

// dial connects. The server's first grant is in the private data of the answer.
func dial(ctx context.Context, addr string) (*sender, error) {
	s := new(sender)
	q, err := iwarp.Dial(ctx, addr, &iwarp.Config{Prepare: func(q *iwarp.QueuePair) error {
		for i := range s.grants {
			if err := q.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(s.grants[i][:])}}); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	if len(q.PeerPrivate()) < 4 {
		return nil, errors.New("the server grants nothing")
	}
	s.q, s.credits = q, int(binary.BigEndian.Uint32(q.PeerPrivate()))
	return s, nil
}

// send sends a message, at the cost of a credit. Without a credit, send waits for the next grant.
func (s *sender) send(ctx context.Context, msg []byte) error {
	for s.credits == 0 {
		c, err := s.q.RecvCQ().Wait(ctx)
		if err != nil {
			return err
		}
		if err := c.Err(); err != nil {
			return err
		}
		grant := &s.grants[c.ID]
		s.credits += int(binary.BigEndian.Uint32(grant[:]))
		if err := s.q.PostRecv(iwarp.RecvWR{ID: c.ID, SG: []iwarp.SGE{iwarp.Buf(grant[:])}}); err != nil {
			return err
		}
	}
	s.credits--
	return post(ctx, s.q, msg)
}

// post sends a message and waits until TCP has accepted it.
func post(ctx context.Context, q *iwarp.QueuePair, msg []byte) error {
	if err := q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(msg)}}); err != nil {
		return err
	}
	c, err := q.SendCQ().Wait(ctx)
	if err != nil {
		return err
	}
	return c.Err()
}

// accept posts the receives of a connection, and only then grants as many messages.
func accept(ctx context.Context, l *iwarp.Listener) (*iwarp.QueuePair, *[window][msgLen]byte, error) {
	r, err := l.AcceptRequest(ctx)
	if err != nil {
		return nil, nil, err
	}
	bufs := new([window][msgLen]byte)
	for i := range bufs {
		if err := r.QueuePair().PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(bufs[i][:])}}); err != nil {
			return nil, nil, err
		}
	}
	q, err := r.Accept(binary.BigEndian.AppendUint32(nil, window))
	return q, bufs, err
}

func serve(ctx context.Context, l *iwarp.Listener) error {
	q, bufs, err := accept(ctx, l)
	if err != nil {
		return err
	}
	defer q.Close()
	got, free := 0, 0
	for posted := window; posted > 0; { // number of receives without a message
		c, err := q.RecvCQ().Wait(ctx)
		if err != nil {
			return err
		}
		posted--
		if c.Err() != nil { // the client has closed, so the remaining receives complete
			continue
		}
		got++ // this is where the message in bufs[c.ID] is handled
		if err := q.PostRecv(iwarp.RecvWR{ID: c.ID, SG: []iwarp.SGE{iwarp.Buf(bufs[c.ID][:])}}); err != nil {
			continue // the client has closed, but messages that have arrived are still handled
		}
		posted++
		// The receive is posted, so the message may be granted.
		if free++; free == batch {
			if err := post(ctx, q, binary.BigEndian.AppendUint32(nil, batch)); err != nil {
				return err
			}
			free = 0
		}
	}
	if got != messages {
		return fmt.Errorf("%d messages received of %d", got, messages)
	}
	return nil
}

func ignore(ctx context.Context, l *iwarp.Listener) error {
	q, _, err := accept(ctx, l)
	if err != nil {
		return err
	}
	<-q.Ended()
	q.Close()
	return nil
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

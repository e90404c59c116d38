// Command mailbox passes records from a client to a server through memory of the server. The server
// posts no receive and takes no completion, but polls a counter increased by the client.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"
	"unsafe"

	"viaduct/iwarp"
)

// The memory of the mailbox has two counters, followed by the slots.
const (
	written  = 0  // offset of the number of records that the client has written
	taken    = 8  // offset of the number of records that the server has taken
	slots    = 64 // offset of the first slot
	slotLen  = 4096
	numSlots = 4
	records  = 1000
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l := must(iwarp.Listen("127.0.0.1:0", &iwarp.Config{Atomic: true}))
	defer l.Close()
	served := make(chan error)
	go func() { served <- serve(ctx, l) }()

	q := must(iwarp.Dial(ctx, l.Addr().String(), &iwarp.Config{Atomic: true}))
	box := must(iwarp.ParseRemoteAddr(q.PeerPrivate()))
	var seen uint64 // number of records that the server has taken
	for n := range uint64(records) {
		// A slot is free when the server has taken the record. Adding 0 reads the counter whole.
		for n-seen == numSlots {
			seen = must(add(ctx, q, box.Add(taken), 0))
		}
		slot := box.Add(slots + int(n%numSlots)*slotLen)
		check(q.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf(record(n))}, Remote: slot, Unsignaled: true, More: true}))
		must(add(ctx, q, box.Add(written), 1)) // executes at the server when the Write is in place
	}
	check(q.Close())
	check(<-served)
}

// add adds v to a counter of the peer and returns the old value. When add returns, all requests
// posted earlier are complete.
func add(ctx context.Context, q *iwarp.QueuePair, counter iwarp.RemoteAddr, v uint64) (uint64, error) {
	if err := q.Post(iwarp.SendWR{Op: iwarp.OpFetchAdd, Remote: counter, Atomic: iwarp.Atomic{Data: v}}); err != nil {
		return 0, err
	}
	c, err := q.SendCQ().Wait(ctx)
	if err == nil {
		err = c.Err()
	}
	return c.Value, err
}

// record returns the record with number n. A torn record would have bytes of two numbers.
func record(n uint64) []byte { return bytes.Repeat([]byte{byte(n)}, slotLen) }

func serve(ctx context.Context, l *iwarp.Listener) error {
	r, err := l.AcceptRequest(ctx)
	if err != nil {
		return err
	}
	q := r.QueuePair()
	defer q.Close()
	box, err := q.Register(make([]byte, slots+numSlots*slotLen), iwarp.RemoteWrite|iwarp.RemoteAtomic)
	if err != nil {
		return err
	}
	if _, err := r.Accept(box.Remote(0).Append(nil)); err != nil {
		return err
	}
	torn := 0
	for n := range uint64(records) {
		// The counter is the only word both sides touch at the same time.
		for counter(box, written).Load() == n {
			if ctx.Err() != nil || q.Err() != nil {
				return errors.Join(fmt.Errorf("record %d did not come", n), ctx.Err(), q.Err())
			}
			time.Sleep(20 * time.Microsecond)
		}
		at := slots + int(n%numSlots)*slotLen
		if !bytes.Equal(box.Bytes()[at:at+slotLen], record(n)) {
			torn++
		}
		counter(box, taken).Store(n + 1) // the client may write to the slot again
	}
	fmt.Printf("%d records through %d slots, %d torn\n", records, numSlots, torn)
	select {
	case <-q.PeerClosed():
		return q.Close()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counter returns the 8 bytes at an offset of the memory as a number that Go and the peer both
// change atomically. The offset must be a multiple of 8.
func counter(m *iwarp.MemoryRegion, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.Bytes()[off]))
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

package sdp

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
)

// TestHeaderMemory: the memory of a header is not used again before the Send is complete. The
// memory must not be larger than for the largest number of concurrent Sends, nor than for the depth
// of the queue.
func TestHeaderMemory(t *testing.T) {
	const depth = 64
	s := sender{depth: depth}
	under := map[*byte]uint64{} // header memory in use, and the number of the Send that uses it
	send := func() {
		t.Helper()
		s.posted++
		h := s.header()
		if len(h) != 0 || cap(h) < 48 {
			t.Fatalf("%d and %d bytes", len(h), cap(h))
		}
		p := &h[:1][0]
		if was := under[p]; was > s.done {
			t.Fatalf("Send %d has the memory of Send %d, complete are %d", s.posted, was, s.done)
		}
		under[p] = s.posted
	}
	for _, way := range []uint64{1, 8, 9, 33, depth, 3 * depth, 5} {
		for range 3 * depth {
			send()
			s.done = max(s.done, s.posted-min(s.posted, way-1))
		}
		if n := uint64(len(s.hdrs)); n > depth || n >= 2*way && n > 8 && way > 5 {
			t.Errorf("room for %d with %d under way", n, way)
		}
	}
}

// TestManyMessages: a write of more messages than the send queue holds arrives unchanged, whether
// or not posting copies the messages. [SDP-4.1-1] [SDP-6.1.5-2]
func TestManyMessages(t *testing.T) {
	for _, size := range []int{1500, 60} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			opt := Options{RecvBuffers: 1000, RecvBufferSize: size}
			a, b := pair(t, opt, opt)
			defer shut(t, a, b)
			want := make([]byte, 3*sendDepth*size)
			rand.NewChaCha8([32]byte{1}).Read(want)
			sent := make(chan error, 1)
			go func() {
				_, err := a.Write(want)
				a.CloseWrite()
				sent <- err
			}()
			if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
		})
	}
}

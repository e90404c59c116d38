//go:build linux && (amd64 || arm64)

package rdma

import (
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// readEvent reads an asynchronous event like the program, and returns the handle.
func readEvent(t *testing.T, fd int) uint64 {
	t.Helper()
	b := make(abi.Body, 16)
	if n, err := unix.Read(fd, b); n != len(b) || err != nil {
		t.Fatalf("read %d bytes of an event: %v", n, err)
	}
	return b.U64(0)
}

// retire removes the object's unread events from the channel, counts the events read by the
// program, and keeps the events of other objects in order.
func TestNotifierRetire(t *testing.T) {
	ch, fd, err := newChannel()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer ch.close()
	var objects [4]notifier
	for i := range objects {
		objects[i].ch = ch
	}
	raise := func(which ...int) {
		for _, i := range which {
			objects[i].raise(uint64(i), abi.AsyncQPFatal)
		}
	}
	raise(0, 1, 0, 2, 1, 0, 2)
	for _, want := range []uint64{0, 1, 0} {
		if got := readEvent(t, fd); got != want {
			t.Fatalf("read an event of %d, want %d", got, want)
		}
	}
	for i, want := range []uint32{2, 1} {
		if got := objects[i].retire(); got != want {
			t.Errorf("object %d: %d events read, want %d", i, got, want)
		}
	}
	raise(0, 3) // object 0 is retired: its event is dropped
	for _, want := range []uint64{2, 2, 3} {
		if got := readEvent(t, fd); got != want {
			t.Errorf("read an event of %d, want %d", got, want)
		}
	}
	if n, err := unix.IoctlGetInt(fd, unix.TIOCINQ); n != 0 || err != nil {
		t.Errorf("%d bytes are unread, %v", n, err)
	}
	if got := objects[2].retire(); got != 2 {
		t.Errorf("object 2: %d events read, want 2", got)
	}
	raise(3)
	ch.close() // as after a close by the program
	if got := objects[3].retire(); got != 1 {
		t.Errorf("object 3: %d events read, want 1", got)
	}
}

// With many events of two objects, reads in between are counted for the right object.
func TestNotifierCounts(t *testing.T) {
	ch, fd, err := newChannel()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer ch.close()
	a, b := notifier{ch: ch}, notifier{ch: ch}
	var read [2]uint32
	for i := range 1000 {
		a.raise(0, abi.AsyncSRQLimit)
		b.raise(1, abi.AsyncQPLastWQE)
		for range i % 3 {
			read[readEvent(t, fd)]++
		}
	}
	if got := a.retire(); got != read[0] {
		t.Errorf("%d events read of the first object, want %d", got, read[0])
	}
	if got := b.retire(); got != read[1] {
		t.Errorf("%d events read of the second object, want %d", got, read[1])
	}
}

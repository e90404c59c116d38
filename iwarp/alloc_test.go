package iwarp

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"viaduct/internal/sock"
)

// drive polls q until q has a completion, and returns the completion. It also polls others, because
// no goroutine receives in the background. The test fails if the status is not StatusOK.
func drive(t testing.TB, q *CompletionQueue, others ...*CompletionQueue) Completion {
	for i := 0; ; i++ {
		if c, ok := q.Poll(); ok {
			if c.Status != StatusOK {
				t.Fatalf("%+v: %v", c, c.QP.Err())
			}
			return c
		}
		for _, o := range others {
			o.Poll()
		}
		if i%64 == 63 {
			runtime.Gosched()
		}
	}
}

// TestAllocs checks that a message causes no allocation on either side in steady state, whatever
// the operation and framing.
func TestAllocs(t *testing.T) {
	for _, v := range []struct {
		name   string
		ci, cr Config
		noCRC  bool
	}{
		{name: "CRC"}, {name: "no CRC", noCRC: true},
		{name: "markers", ci: Config{Interop: Interop{Markers: true}}, cr: Config{Interop: Interop{Markers: true}}},
	} {
		t.Run(v.name, func(t *testing.T) {
			v.ci.Device, v.cr.Device = NewDevice(DeviceConfig{NoCRC: v.noCRC}), NewDevice(DeviceConfig{NoCRC: v.noCRC})
			v.ci.Atomic, v.cr.Atomic, v.ci.Immediate, v.cr.Immediate = true, true, true, true
			a, b := connect(t, &v.ci, &v.cr)
			long := 200000
			if sock.SharesByDefault {
				// A ring or a socket holds a whole round of this size. A sender waiting for room
				// starts a goroutine, and so allocates.
				long = 100000
			}
			for _, n := range []int{8, 4096, long} {
				t.Run(fmt.Sprint(n), func(t *testing.T) { allocs(t, a, b, n) })
			}
		})
	}
}

func allocs(t *testing.T, a, b *QueuePair, n int) {
	src, dst := make([]byte, n), make([]byte, n)
	from, _ := a.Register(src, LocalOnly)
	to, _ := b.Register(dst, RemoteRead|RemoteWrite|RemoteAtomic)
	defer from.Close()
	defer to.Close()
	at := RemoteAddr{STag: to.STag()}
	round := func() {
		b.PostRecv(RecvWR{SG: []SGE{to.SGE(0, n)}})
		b.PostRecv(RecvWR{})
		a.Post(SendWR{SG: []SGE{from.SGE(0, n)}, More: true})
		a.Post(SendWR{Op: OpWrite, SG: []SGE{from.SGE(0, n/2), from.SGE(n/2, n-n/2)}, Remote: at, Unsignaled: true})
		a.Post(SendWR{Op: OpRead, SG: []SGE{from.SGE(0, n)}, Remote: at})
		a.Post(SendWR{Op: OpFetchAdd, Remote: at, Atomic: Atomic{Data: 1}})
		a.Post(SendWR{Op: OpImmediate})
		for range 4 {
			drive(t, a.SendCQ(), b.RecvCQ())
		}
	}
	recv := func() {
		for b.RecvCQ().Len() > 0 {
			b.RecvCQ().Poll()
		}
	}
	for range 20 {
		round()
		recv()
	}
	if raceEnabled {
		return // in race builds, pools drop objects at random
	}
	// The mean of many rounds hides the rare allocations of the runtime.
	if got := testing.AllocsPerRun(500, func() { round(); recv() }); got >= 1 {
		t.Errorf("%v allocations per round of 5 messages", got)
	}
}

// TestQueuePairSize limits the size of a QueuePair, because a QueuePair is most of the memory of an
// idle stream. The runtime rounds the size, plus a word for the runtime, up to a size class. 1792
// is a class, and 2048 is the next.
func TestQueuePairSize(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("the sizes are those of 64-bit words")
	}
	if n, most := unsafe.Sizeof(QueuePair{}), 1792-unsafe.Sizeof(uintptr(0)); n > most {
		t.Errorf("a QueuePair has %d bytes, of at most %d", n, most)
	}
}

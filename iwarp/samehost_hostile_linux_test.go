package iwarp

import (
	"bytes"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// hostileVariable makes the other process a hostile one. Its value is the seed for the words that
// it writes.
const hostileVariable = "VIADUCT_TEST_SAMEHOST_HOSTILE"

// controlWords are the offsets of the words in the two control pages that have a meaning:
// positions, ends, sizes, requests to be woken, and references.
var controlWords = []int{0, 8, 16, 128, 136, 144, 256, 384, 1024, 1032, 1040, 1048}

// scribble repeatedly writes to random words of the shared memory of this process. It prefers the
// words of the control pages, and values near the current ones. It continues until the memory is
// unmapped.
func scribble(seed uint64) {
	debug.SetPanicOnFault(true)
	defer func() { _ = recover() }()
	r := mrand.New(mrand.NewPCG(seed, 0))
	mem := ringMemory()
	time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // some connections begin undisturbed
	control := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem))
	const page = 4096
	for {
		at := r.IntN(len(mem)/8) * 8
		if r.IntN(4) > 0 {
			at = page*r.IntN(2) + controlWords[r.IntN(len(controlWords))]
		}
		word := (*uint64)(unsafe.Pointer(&control[at]))
		switch r.IntN(4) {
		case 0:
			*word = r.Uint64()
		case 1:
			*word += uint64(r.IntN(1<<20)) - 1<<19
		case 2:
			*word ^= 1 << r.IntN(64)
		case 3:
			*word = uint64(r.IntN(4))
		}
		if r.IntN(8) == 0 {
			time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
		}
	}
}

// ringMemory waits until this process has shared memory, and returns it.
func ringMemory() []byte {
	for {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			panic(err)
		}
		for line := range strings.Lines(string(maps)) {
			if !strings.Contains(line, "viaduct-rings") {
				continue
			}
			var from, to uintptr
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				panic(err)
			}
			return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from))), to-from)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSameHostHostile runs a peer that writes random words to all of the shared memory while
// messages are exchanged. This process must neither crash nor hang, memory that was not granted to
// the peer must stay unchanged, and the stream must end when an error is found or the peer ends.
// VIADUCT_TEST_HOSTILE is the duration, 2 s by default.
func TestSameHostHostile(t *testing.T) {
	length := 2 * time.Second
	if s := os.Getenv("VIADUCT_TEST_HOSTILE"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	ends := map[string]int{}
	seed := mrand.Uint64N(1 << 32)
	t.Logf("seed %d", seed)
	// On a busy machine, the peer may write its first word after the stream is over, several times.
	more := func(begun time.Time) bool {
		d := time.Since(begun)
		return d < length || ends["by an index"] == 0 && d < testkit.Patience
	}
	for start, i := time.Now(), uint64(0); i < 4 || more(start); i++ {
		t.Setenv(hostileVariable, strconv.FormatUint(seed+i, 10))
		var p pumper
		p.distrusts = true
		// A hostile peer may never connect, and a busy machine may be slow to start one.
		p.startup = time.Duration(1+ends["not connected"]) * time.Second
		q, _, stop := p.withChild(t, i%2 == 0, samehost.Require, nil)
		if q == nil {
			ends["not connected"]++
			stop()
			continue
		}
		// This memory is registered, and not granted to the peer.
		secret := bytes.Repeat([]byte{0xa5}, 1<<20)
		if _, err := q.Register(secret, 0); err != nil {
			t.Fatal(err)
		}
		ended := make(chan int, 1)
		go func() { ended <- p.run(q) }()
		select {
		case <-ended:
			ends["found wrong"]++
		case <-time.After(200 * time.Millisecond):
			stop()
			testkit.Await(t, "the stream ends", ended)
			ends["killed"]++
		}
		stop()
		if !bytes.Equal(secret, bytes.Repeat([]byte{0xa5}, 1<<20)) {
			t.Fatal("memory that the peer was not given was written")
		}
		// A nil error means that the peer has closed its direction in order.
		if err := q.Err(); err != nil && strings.Contains(err.Error(), "index") {
			ends["by an index"]++
		}
		q.Close()
	}
	t.Logf("%v", ends)
	if ends["by an index"] == 0 {
		t.Error("no stream was ended by an impossible index")
	}
}

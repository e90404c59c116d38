package sock

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"

	"viaduct/internal/shm"
	"viaduct/samehost"
)

// The next connection between two processes has the memory of one that has ended, and
// what it reads is what its peer has written; a listener that does not know the memory any more gets new one.
func TestMemoryAgain(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	keyOf := func(c net.Conn) shm.Key { return c.(*conn).s.rings.mem.Key() }
	// once makes a connection, passes n random bytes each way and ends it.
	once := func(n int) shm.Key {
		client, server := sharedPair(t, l)
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			want, got := make([]byte, n), make([]byte, n)
			rand.Read(want)
			var wg sync.WaitGroup
			wg.Go(func() { way[0].Write(want) })
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("other bytes came, %v", err)
			}
			wg.Wait()
		}
		key := keyOf(client)
		if keyOf(server) != key {
			t.Fatal("the two ends have other memory")
		}
		client.Close()
		server.Close()
		return key
	}
	first := once(1000)
	for range 20 {
		if once(1000) != first {
			t.Error("the memory was not used again")
		}
	}
	if once(1<<20) != first {
		t.Error("the memory was not used once more")
	}
	second := once(10)
	if second == first {
		t.Error("memory by which much has passed was used again")
	}
	// The listener's process has forgotten it.
	if m := shm.Known(second, ringSize); m == nil {
		t.Fatal("the listener has not kept the memory")
	} else {
		m.Close()
	}
	third := once(10)
	if third == second {
		t.Error("forgotten memory was used again")
	}
	// Connections at the same time have memory of their own.
	a, _ := sharedPair(t, l)
	b, _ := sharedPair(t, l)
	if keyOf(a) != third || keyOf(b) == third {
		t.Error("memory is used twice")
	}
}

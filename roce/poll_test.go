package roce

import (
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// Consumers that only poll exchange messages, on every system. [ROCE-NET-8]
func TestPolling(t *testing.T) {
	a, b := connected(t, Config{})
	poll := func(cq *CompletionQueue) {
		t.Helper()
		for end := time.Now().Add(testkit.Patience); ; {
			if c, ok := cq.Poll(); ok {
				if err := c.Err(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if time.Now().After(end) {
				t.Fatalf("nothing has arrived within %v", testkit.Patience)
			}
		}
	}
	in := make([]byte, 8)
	for range 100 {
		for _, way := range [][2]*QueuePair{{a, b}, {b, a}} {
			if err := way[1].PostRecv(RecvWR{SG: []SGE{Buf(in)}}); err != nil {
				t.Fatal(err)
			}
			if err := way[0].Post(SendWR{SG: []SGE{Buf([]byte("8 bytes."))}, Unsignaled: true}); err != nil {
				t.Fatal(err)
			}
			poll(way[1].RecvCQ())
		}
	}
}

package frameio

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestEndBehindDataIsSeen checks two cases in which no event wakes the waiting goroutine again: the
// end of the stream arrived together with the last bytes, or more bytes had arrived before the
// first check than one hold of the receive role handles.
func TestEndBehindDataIsSeen(t *testing.T) {
	a, b := kinds[0].connect(t)
	const frames = 40
	for range frames {
		p := make([]byte, 100<<10)
		sent := make(chan error, 1)
		go func() {
			_, err := a.c.nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...))
			sent <- err
		}()
		select {
		case err := <-sent:
			if err != nil {
				t.Fatal(err)
			}
			continue
		case <-time.After(50 * time.Millisecond):
			// The socket is full: the reader must begin.
		}
		if !b.c.rx.started {
			b.c.Start(nil)
		}
		if err := testkit.Await(t, "the reader makes room", sent); err != nil {
			t.Fatal(err)
		}
	}
	a.c.Close()
	if !b.c.rx.started {
		b.c.Start(nil)
	}
	if err := testkit.Await(t, "the end of the stream", b.failed); err != io.EOF {
		t.Errorf("%v, want EOF", err)
	}
}

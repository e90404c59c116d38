package frameio

import (
	"encoding/binary"
	"io"
	"testing"
	"time"
)

// The end of the stream may have arrived together with the last bytes, and
// more bytes than one turn of the receive role takes may have arrived before
// anybody looked. Neither wakes a waiting goroutine again.
func TestEndBehindDataIsSeen(t *testing.T) {
	a, b := pair(t, false)
	const frames = 40
	for range frames {
		p := make([]byte, 100<<10)
		if _, err := a.c.nc.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p)))); err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() { _, err := a.c.nc.Write(p); sent <- err }()
		select {
		case err := <-sent:
			if err != nil {
				t.Fatal(err)
			}
			continue
		case <-time.After(time.Second):
			// The socket is full: let the reader begin.
		}
		b.c.Start(nil)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	a.c.Close()
	if !b.c.rx.started {
		b.c.Start(nil)
	}
	select {
	case err := <-b.failed:
		if err != io.EOF {
			t.Errorf("%v, want EOF", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the stream was not seen")
	}
}

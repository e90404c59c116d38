package fcvi

import (
	"bytes"
	"context"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// TestHold: if both VIs request flow control, a message without a receive waits at the receiving
// port, complete or incomplete, with the messages after it. The test covers Sends, whose bytes must
// be stored, and Writes with immediate data, whose bytes are placed before the receive is posted.
func TestHold(t *testing.T) {
	for _, level := range []vi.Reliability{vi.ReliableDelivery, vi.ReliableReception} {
		t.Run(level.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			v, w, mem := holdPair(t, ctx, level)
			const n, size = 12, 6118
			want := pattern(n*size, 9)
			copy(mem[0].Bytes(), want)
			for i := range n {
				from := mem[0].Segment(i*size, size)
				d := vi.NewSend(from)
				if i%3 != 1 { // a Write without immediate data is placed, but not reported
					d = vi.NewRDMAWrite(mem[1].Remote(i*size), from)
				}
				if err := v.PostSend(d.WithImmediate(uint32(i))); err != nil {
					t.Fatal(err)
				}
			}
			c, _ := machineOf(w)
			for !c.up.(*viConsumer).waiting.Load() {
				if ctx.Err() != nil {
					t.Fatal("nothing waits")
				}
				time.Sleep(time.Millisecond)
			}
			for i := range n {
				if i%2 == 0 { // some messages find their receive, others wait for it
					time.Sleep(time.Millisecond)
				}
				if err := w.PostRecv(vi.NewRecv(mem[1].Segment(i*size, size))); err != nil {
					t.Fatal(err)
				}
				if d, err := w.RecvWait(ctx); err != nil || d.ImmediateData != uint32(i) || d.Length != size {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			for range n {
				if _, err := v.SendWait(ctx); err != nil {
					t.Error(err)
				}
			}
			if !bytes.Equal(mem[1].Bytes()[:len(want)], want) {
				t.Error("a message came wrong")
			}
		})
	}
}

// holdPair connects two VIs requesting flow control.
func holdPair(t *testing.T, ctx context.Context, level vi.Reliability) (v, w *vi.VI, mem [2]*vi.Region) {
	nics := [2]*vi.NIC{openNIC(t, Config{}), openNIC(t, Config{Listen: "127.0.0.1:0"})}
	var vis [2]*vi.VI
	for i, nic := range nics {
		var err error
		if vis[i], err = nic.CreateVI(vi.Attributes{Reliability: level, EnableRDMAWrite: true, FlowControl: true}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if mem[i], err = nic.RegisterMem(make([]byte, 1<<17), vi.MemAttributes{EnableRDMAWrite: true}); err != nil {
			t.Fatal(err)
		}
	}
	at := vi.Address{Host: nics[1].Query().LocalAddress, Discriminator: []byte("hold")}
	done := make(chan error, 1)
	go func() {
		r, err := nics[1].ConnectWait(ctx, at)
		if err == nil {
			err = r.Accept(ctx, vis[1])
		}
		done <- err
	}()
	if err := askFor(ctx, vis[0], vi.Address{}, at); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return vis[0], vis[1], mem
}

package vitcp

import (
	"net"
	"testing"

	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/testkit"
	"viaduct/vi"
)

// A filler is a link whose Fill is a function of the test. It tests code that needs a connection
// and a batch.
type filler struct {
	*link
	fill func(*frameio.Batch)
}

func (f filler) Fill(b *frameio.Batch) { f.fill(b) }
func (f filler) Sent()                 {}
func (f filler) Failed(error)          {}

// Memory that may fault is copied before a header announces its bytes, into the batch if there is
// room. It is not copied if the consumer accepts that a fault ends the connection and the kernel
// reads the memory itself; a connection at Unreliable Delivery must not end that way. The batch
// always copies short payload. [V-30]
func TestSteady(t *testing.T) {
	guarded := vi.MemAttributes{Guarded: true}
	breaks := vi.MemAttributes{Guarded: true, FaultBreaks: true}
	for _, s := range []struct {
		name     string
		level    vi.Reliability
		portable bool
		inPlace  bool // a fault may break the connection, and the kernel reads the memory
	}{
		{"reception", vi.ReliableReception, false, true},
		{"delivery", vi.ReliableDelivery, false, true},
		{"unreliable", vi.UnreliableDelivery, false, false},
		{"portable", vi.ReliableReception, true, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			cfg := Config{}
			if s.portable {
				cfg.WrapConn = hideDescriptor
			}
			x := serveProbe(t, sessionOpts{cfg: cfg, attrs: withLevel(reliableAll, s.level)})
			l := x.v.Link().(*link)
			for _, v := range []struct {
				attrs vi.MemAttributes
				n     int
				same  bool // the batch references the memory itself
				apart bool // the memory is copied, but not into the batch
			}{
				{vi.MemAttributes{}, 1, true, false},
				{vi.MemAttributes{}, 1 << 16, true, false},
				{guarded, 1, false, false},
				{guarded, frameio.CopyLimit, false, false},
				{guarded, frameio.CopyLimit + 1, false, true},
				{guarded, 60_000, false, true},
				{breaks, 1, false, false},
				{breaks, frameio.CopyLimit, false, false},
				{breaks, frameio.CopyLimit + 1, s.inPlace, !s.inPlace},
				{breaks, 60_000, s.inPlace, !s.inPlace},
			} {
				r, mem := register(t, x.n, v.n, v.attrs)
				mem[0], mem[v.n-1] = 1, 2
				d := vi.NewSend(segment(r, 0, v.n))
				here, there := net.Pipe()
				filled := make(chan bool)
				c := frameio.New(here, filler{l, func(b *frameio.Batch) {
					defer close(filled)
					ref, bad := l.ep.Gather(vi.Memory{}, d, &vi.Cursor{}, v.n)
					if bad != 0 {
						t.Errorf("%v", bad)
						return
					}
					got, bad := l.steady(b, regmem.Ref(ref))
					if bad != 0 || len(got.B()) != v.n || got.B()[v.n-1] != 2 {
						t.Errorf("%+v: %v, %d bytes", v, bad, len(got.B()))
						return
					}
					if same := &got.B()[0] == &mem[0]; same != v.same || got.Pins() != v.same {
						t.Errorf("%+v: the memory itself %v, pinned %v", v, same, got.Pins())
					}
					if apart := len(l.batch.copied) > 0; apart != v.apart {
						t.Errorf("%+v: copied beside the batch: %v", v, apart)
					}
					l.batch.uncopied()
					if len(l.batch.copied) > 0 {
						t.Error("a copy is kept")
					}
					got.Release()
				}}, frameio.Options{})
				c.Kick()
				testkit.Await(t, "the batch", filled)
				c.Abort()
				there.Close()
				freed := make(chan error, 1)
				go func() { freed <- x.n.DeregisterMem(r) }()
				must(t, testkit.Await(t, "the end of all pins", freed))
			}
		})
	}
}

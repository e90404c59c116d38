package vitcp

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// mapFile returns the memory of a file of n zeros, registered as memory that may fault. With
// breaks, a fault may end the connection.
func mapFile(t *testing.T, nic *nicUnderTest, n int, breaks bool) (*os.File, *vi.Region) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(int64(n)))
	mem, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(mem) })
	a := allRights
	a.Guarded, a.FaultBreaks = true, breaks
	r, err := nic.RegisterMem(mem, a)
	must(t, err)
	return f, r
}

// TestShrinkingFile: if a file is truncated while a peer reads it, that RDMA Read ends with the
// Transmit Error flag and the error code. This is tested at the first segment and after complete
// segments. A Send from such a file ends in the same way. [V-13] [V-17] [V-30]
func TestShrinkingFile(t *testing.T) {
	const size = 64 << 20 // more than the sockets hold
	for name, c := range map[string]struct {
		typ  vitcpwire.Type
		code uint8
		post func(s *session, r *vi.Region)
	}{
		"RDMA Read": {vitcpwire.ReadResponse, vitcpwire.ProtectionError, func(s *session, r *vi.Region) {
			s.message(vitcpwire.ReadRequest,
				&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}, nil)
		}},
		"Send": {vitcpwire.Send, 0, func(s *session, r *vi.Region) {
			s.post(1)
			must(t, s.v.PostSend(vi.NewSend(segment(r, 0, size))))
		}},
	} {
		for _, when := range []string{"before", "before, may break", "during"} {
			t.Run(name+" "+when, func(t *testing.T) {
				s := serveProbe(t, sessionOpts{cfg: drainLong, attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
				f, r := mapFile(t, s.n, size, when == "before, may break")
				if when != "during" {
					must(t, f.Truncate(0))
				}
				c.post(s, r)
				got, last := uint32(0), seg{}
				for {
					if last = s.recv(); last.h.Type == vitcpwire.NOP {
						continue
					}
					if last.h.Type != c.typ || last.h.Offset != got {
						t.Fatalf("after %d bytes: %v", got, last.h)
					}
					if got += uint32(len(last.payload)); last.h.Flags&vitcpwire.EndOfMessage != 0 {
						break
					}
					if when == "during" && last.h.Offset == 0 {
						// By now the sender waits for the socket, or soon will.
						must(t, f.Truncate(0))
					}
				}
				if last.h.Flags&vitcpwire.TransmitError == 0 || last.h.Error.VI() != c.code ||
					got == size || (got == 0) != (when != "during") {
					t.Errorf("after %d bytes: %v", got, last.h)
				}
				for _, x := range s.wantEnd(io.EOF) {
					if x.h.Type != vitcpwire.NOP {
						t.Errorf("%v behind the end of the message", x.h)
					}
				}
				if c.typ == vitcpwire.Send {
					if d, err := waitSend(t, s.v); err == nil || d.Status()&vi.StatusProtectionError == 0 {
						t.Errorf("%v, %v", d.Status(), err)
					}
				}
				waitState(t, s.v, vi.Error)
			})
		}
	}
}

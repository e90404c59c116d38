package iwarp

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/wire/rdmap"
)

// TestTruncatedFile truncates a mapped file while it is registered. The access must end the stream,
// and not the program. [I-34] [I-43]
func TestTruncatedFile(t *testing.T) {
	const size = 1 << 16
	open := func(t *testing.T, q *QueuePair) (*MemoryRegion, *os.File) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		f.Truncate(size)
		mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close(); unix.Munmap(mem) })
		mr, err := q.Register(mem, RemoteRead|RemoteWrite|RemoteAtomic, RegionOptions{Guarded: true})
		if err != nil {
			t.Fatal(err)
		}
		return mr, f
	}
	for _, c := range []struct {
		name           string
		u              func(mr *MemoryRegion) []byte
		layer, typ, co uint8
	}{
		{"Read", func(mr *MemoryRegion) []byte {
			return readReq(1, rdmap.ReadRequest{Size: 4000, SourceSTag: mr.STag(), SourceTO: 40000})
		}, 0, 1, 0},
		{"Write", func(mr *MemoryRegion) []byte {
			return tag(rdmap.Write, mr.STag(), 40000, true, make([]byte, 4000))
		}, 1, 1, 0},
		{"Atomic", func(mr *MemoryRegion) []byte {
			return seg(rdmap.AtomicRequestOp, 1, 1, 0, true, rdmap.NewFetchAdd(mr.STag(), 40000, 1, 0).Append(nil))
		}, 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asInitiator(t, &Config{Atomic: true})
			mr, f := open(t, q)
			q.PostRecv(RecvWR{})
			p.ulpdu(tag(rdmap.Write, mr.STag(), 40000, true, []byte("fine")), seg(rdmap.Send, 0, 1, 0, true, nil))
			wantOK(t, q.RecvCQ())
			f.Truncate(0)
			p.ulpdu(c.u(mr))
			wantTerminate(t, ended(t, q), false, c.layer, c.typ, c.co)
			p.c.Close()
			<-q.life.gone.C()
			within(t, "Close of the region", func() { mr.Close() }) // no pin may be left
		})
	}
	t.Run("Send", func(t *testing.T) {
		_, q := asResponder(t, nil)
		mr, f := open(t, q)
		f.Truncate(0)
		q.Post(SendWR{SG: []SGE{mr.SGE(0, 5000)}})
		ended(t, q)
		if c, err := q.SendCQ().Wait(ctxt(t)); err != nil || c.Status != StatusLocalAccess {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

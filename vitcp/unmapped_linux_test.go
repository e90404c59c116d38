package vitcp

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
	"viaduct/vi"
)

// A send whose memory was unmapped is a protection error, whether its bytes are
// copied or left to the kernel, which refuses them without saying whose they
// are. Those before it were sent, those behind are flushed. [VIA-4.6-2]
func TestUnmappedSend(t *testing.T) {
	for size, guarded := range map[int]bool{100: true, 1 << 20: true, 4 * 65511: false} { // the last in whole segments: the kernel alone reads it
		if sock.AssumeRings && !guarded {
			t.Log("SKIPPED: into shared memory the process copies itself, and only memory that MayFault is guarded")
			continue
		}
		p := connectPair(t, Config{}, withLevel(reliableAll, vi.ReliableReception))
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(t, err)
		v := p.a
		r, err := v.NIC().RegisterPointer(unsafe.Pointer(unsafe.SliceData(mem)), uint64(size), vi.MemAttributes{MayFault: guarded})
		must(t, err)
		// As unmapped, but for that no other mapping of the process can take the place.
		must(t, unix.Mprotect(mem, unix.PROT_NONE))
		defer unix.Munmap(mem)
		for range 3 {
			must(t, p.b.PostRecv(vi.NewRecv()))
		}
		good, bad, late := vi.NewSend(), vi.NewSend(r.Segment(0, size)), vi.NewSend()
		must(t, v.PostSend(good))
		if _, err := waitSend(t, v); err != nil {
			t.Fatal(err)
		}
		_, err = v.PostSends([]*vi.Descriptor{bad, late})
		must(t, err)
		for _, d := range []*vi.Descriptor{bad, late} {
			want := vi.StatusDone | vi.StatusProtectionError
			if d == late {
				want = vi.StatusDone | vi.StatusFlushed
			}
			if got, _ := waitSend(t, v); got != d || d.Status() != want {
				t.Errorf("%d bytes: status %v, expected %v", size, d.Status(), want)
			}
		}
	}
}

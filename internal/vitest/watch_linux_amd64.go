package vitest

import (
	"bytes"
	"sync/atomic"
	"syscall"
	"unsafe"

	"viaduct/vi"
)

// On this architecture stores become visible in program order, so a program can poll memory. The
// test polls mapped memory, because polling Go's memory would be a data race.
func init() {
	families = append(families, family{name: "WatchMemory", run: testWatchMemory, skipped: func(h Harness) string {
		if h.Unordered {
			return "frames of one message are placed in any order here"
		}
		return ""
	}})
}

// testWatchMemory detects the end of an RDMA Write by its last byte, as programs do. [VIA-4.2-5]
func testWatchMemory(e *env) {
	size := int(e.mtu()) / 4 * 4
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	e.must(err)
	e.Cleanup(func() { syscall.Munmap(mem) })
	target := e.regionOf(1, mem, vi.MemAttributes{EnableRDMAWrite: true})
	p := e.connected()
	flag := (*uint32)(unsafe.Pointer(&mem[size-4]))
	for i := range uint64(20) {
		b := p.fill(0, 0, size, i+9)
		copy(b[size-4:], []byte{1, 1, 1, byte(i + 1)})
		atomic.StoreUint32(flag, 0)
		p.post(0, vi.NewRDMAWrite(target.Remote(0), p.seg(0, 0, size)))
		e.eventually("the flag", func() bool {
			p.v[1].Poll()
			return mem[size-1] != 0 && atomic.LoadUint32(flag)>>24 != 0
		})
		if !bytes.Equal(mem, b) {
			e.Fatal("the last byte came before others")
		}
		p.wantStatus("write", p.reapSend(p.v[0], nil), vi.StatusOpRDMAWrite)
	}
	p.must(p.v[0].Disconnect())
	p.must(p.v[1].Disconnect())
	e.must(e.nics[1].DeregisterMem(target)) // the region is deregistered before its memory is unmapped
}

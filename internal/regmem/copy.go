package regmem

import (
	"encoding/binary"
	"errors"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// ErrFault means that registered memory could not be accessed. The usual reason is truncation of a
// mapped file.
var ErrFault = errors.New("regmem: memory fault in a guarded region")

// Copy copies len(src) bytes to dst, which must be at least as long. If guarded is set, a fault
// ends the copy with ErrFault instead of ending the program; some bytes may have been copied then.
func Copy(dst, src []byte, guarded bool) error {
	if !guarded {
		copy(dst[:len(src)], src)
		return nil
	}
	return Guard(func() { copy(dst[:len(src)], src) })
}

// CopyLast is Copy for memory a program polls instead of waiting for a completion. The last bytes
// of dst become visible after all others. If the end of dst is a multiple of 8 or 4, the last bytes
// are the last 8 or 4 bytes, in a single store. Otherwise the last bytes are the bytes after the
// last multiple of 4, stored one by one. [VIA-4.2-5]
func CopyLast(dst, src []byte, guarded bool) error {
	if guarded {
		return Guard(func() { copyLast(dst[:len(src)], src) })
	}
	copyLast(dst[:len(src)], src)
	return nil
}

// copyLast uses atomic stores for the last bytes, because the built-in copy may write in any order.
// An atomic store becomes visible after all earlier stores.
func copyLast(dst, src []byte) {
	n := len(src)
	if n == 0 {
		return
	}
	end := uintptr(unsafe.Pointer(unsafe.SliceData(dst))) + uintptr(n)
	switch {
	case end%8 == 0 && n >= 8:
		copy(dst, src[:n-8])
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&dst[n-8])), binary.NativeEndian.Uint64(src[n-8:]))
	case end%4 == 0 && n >= 4:
		copy(dst, src[:n-4])
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&dst[n-4])), binary.NativeEndian.Uint32(src[n-4:]))
	default:
		k := n - min(n, max(int(end%4), 1))
		copy(dst, src[:k])
		for ; k < n; k++ {
			var fence atomic.Uint32 // Go has no ordered store of a single byte
			fence.Add(1)
			dst[k] = src[k]
		}
	}
}

// pageSize is the smallest page size of all systems.
const pageSize = 4096

// probe reads a byte of each page of b. It returns ErrFault if a page can't be read.
func probe(b []byte) error {
	return Guard(func() {
		var sum byte
		for n := len(b); n > 0; n -= pageSize {
			sum += b[n-1]
		}
		if len(b) > 0 {
			sum += b[0]
		}
		runtime.KeepAlive(sum) // so that the compiler keeps the reads
	})
}

// Guard runs f, which accesses guarded memory. It returns ErrFault if an access faulted. It passes
// other panics on.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if e := recover(); e != nil {
			// Only the panic value of a memory fault has a method Addr.
			if _, ok := e.(interface{ Addr() uintptr }); !ok {
				panic(e)
			}
			err = ErrFault
		}
	}()
	f()
	return nil
}

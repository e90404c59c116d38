//go:build linux && (amd64 || arm64)

package rdma

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

var _ rxe.Process = (*memory)(nil)

// ReadAll implements [rxe.Process].
func (m *memory) ReadAll(chunks []rxe.Chunk) int {
	if m.by != nil && len(chunks) > 1 {
		return m.by.readAll(chunks)
	}
	return each(chunks, m.ReadAt)
}

// WriteAll implements [rxe.Process].
func (m *memory) WriteAll(chunks []rxe.Chunk) int {
	if m.by != nil && m.by.child && len(chunks) > 1 {
		return m.by.writeAll(chunks)
	}
	return each(chunks, m.WriteAt)
}

// each calls do for the chunks in order until do fails. It returns the number of bytes copied by
// the successful calls.
func each(chunks []rxe.Chunk, do func(p []byte, addr uint64) error) (n int) {
	for _, c := range chunks {
		if do(c.Bytes, c.Addr) != nil {
			break
		}
		n += len(c.Bytes)
	}
	return n
}

// readAll reads the chunks in order, and returns the number of copied bytes. It returns 0 if the
// process has ended or executes another program.
func (p *process) readAll(chunks []rxe.Chunk) int {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.over {
		return 0
	}
	n := p.move(unix.SYS_PROCESS_VM_READV, chunks)
	if !p.child && !p.lives() {
		return 0
	}
	return n
}

// writeAll writes the chunks in order, and returns the number of copied bytes. It returns 0 if the
// process has ended, executes another program, or is no child of this process.
func (p *process) writeAll(chunks []rxe.Chunk) int {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.over || !p.child {
		return 0
	}
	return p.move(unix.SYS_PROCESS_VM_WRITEV, chunks)
}

// move copies chunks in order, up to vectorMost in a system call. It stops at the first error or
// incomplete copy, and returns the number of copied bytes.
func (p *process) move(nr uintptr, chunks []rxe.Chunk) (done int) {
	const vectorMost = 32
	var here [vectorMost]unix.Iovec
	var there [vectorMost]unix.RemoteIovec
	for len(chunks) > 0 {
		now := chunks[:min(len(chunks), vectorMost)]
		chunks = chunks[len(now):]
		size := 0
		for i, c := range now {
			here[i].Base = &c.Bytes[0]
			here[i].SetLen(len(c.Bytes))
			there[i] = unix.RemoteIovec{Base: uintptr(c.Addr), Len: len(c.Bytes)}
			size += len(c.Bytes)
		}
		// The function of package unix would allocate the lists.
		n, _, e := unix.Syscall6(nr, uintptr(p.pid), uintptr(unsafe.Pointer(&here)),
			uintptr(len(now)), uintptr(unsafe.Pointer(&there)), uintptr(len(now)), 0)
		if e != 0 {
			return done
		}
		if done += int(n); int(n) < size {
			return done
		}
	}
	return done
}

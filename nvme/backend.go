package nvme

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/bits"
	"sync/atomic"

	"viaduct/internal/nvmecore"
	"viaduct/iwarp"
)

// A Namespace says what a disk is made of.
type Namespace struct {
	// Data are the bytes, which any number of goroutines read at a time. If Data is
	// an io.WriterAt too, and ReadOnly is not set, the disk can be written. [Syncer],
	// [Discarder], [Zeroer] and [Slicer] are used if Data has them.
	Data     io.ReaderAt
	Size     int64 // bytes; a part of a block at the end is not used
	ReadOnly bool

	// BlockSize is the number of bytes of a block, a power of two from 512 to 4096; 0 means
	// 512.
	BlockSize int

	// UUID is by what a host knows the disk again. It must be the disk's alone. Zero means one
	// that is made of the target's name and the number of the namespace.
	UUID [16]byte

	// Release, if not nil, is called once when no command uses Data any more: after
	// [Target.Remove] or [Target.Close]. It must not call the target.
	Release func()
}

// A Syncer stores all written bytes durably, so that they outlive a loss of power. A flush of the
// host calls it, for example because of fsync there. [os.File] is a Syncer.
type Syncer interface {
	Sync() error
}

// A Discarder frees a range, which reads as zeroes from then on. Hosts discard whole disks
// when they make a file system: it should take no time.
type Discarder interface {
	Discard(off, n int64) error
}

// A Zeroer writes zeroes to a range. Without it zeroes are written like other bytes.
type Zeroer interface {
	Zero(off, n int64) error
}

// A Slicer is memory: reads and writes of hosts go from and to the slices that it returns,
// and are not copied. write says that the slice is going to be written. Nil means that
// ReadAt or WriteAt is to be used. The memory must not go away while the target is open.
type Slicer interface {
	Slice(off, n int64, write bool) []byte
}

// A space is a namespace with its backend.
type space struct {
	Namespace
	core   nvmecore.Namespace
	mapped *iwarp.MemoryRegion // of a mapped file, otherwise nil
	users  *users
}

// users counts the commands that use a backend, and the namespace itself as one. A resized
// namespace has the users of its predecessor.
type users struct {
	n       atomic.Int64
	release func()
}

func (u *users) drop() {
	if u.n.Add(-1) == 0 {
		u.release()
	}
}

func newSpace(n Namespace, id uint32, nqn string) (*space, error) {
	if n.BlockSize == 0 {
		n.BlockSize = 512
	}
	if n.Data == nil || n.BlockSize < 512 || n.BlockSize > 4096 || bits.OnesCount(uint(n.BlockSize)) != 1 || n.Size < int64(n.BlockSize) {
		return nil, fmt.Errorf("nvme: namespace of %d bytes in blocks of %d, want data of at least a block, and a block of 512 to 4096", n.Size, n.BlockSize)
	}
	if n.UUID == [16]byte{} {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s namespace %d", nqn, id))
		copy(n.UUID[:], sum[:])
		n.UUID[6], n.UUID[8] = n.UUID[6]&0xf|0x80, n.UUID[8]&0x3f|0x80 // version 8, of RFC 9562
	}
	if _, ok := n.Data.(io.WriterAt); !ok { // [NVME-IO-6]
		n.ReadOnly = true
	}
	shift := bits.TrailingZeros(uint(n.BlockSize))
	_, discards := n.Data.(Discarder)
	return &space{Namespace: n, core: nvmecore.Namespace{
		ID: id, Blocks: uint64(n.Size) >> shift, Shift: uint8(shift), ReadOnly: n.ReadOnly, ReadsZero: discards, UUID: n.UUID,
	}}, nil
}

// use prepares the backend for commands of streams of the domain.
func (s *space) use(pd *iwarp.ProtectionDomain) error {
	s.users = &users{release: s.release}
	s.users.n.Store(1)
	m, ok := s.Data.(*mapping)
	if !ok {
		return nil
	}
	// A read or write that meets the end of a file that became shorter fails. [iwarp.RegionOptions]
	var err error
	s.mapped, err = pd.Register(m.b, iwarp.LocalOnly, iwarp.RegionOptions{Guarded: true})
	return err
}

// release ends the use of the backend.
func (s *space) release() {
	if s.mapped != nil {
		s.mapped.Close()
	}
	if s.Release != nil {
		s.Release()
	}
}

// slice returns memory of the backend, or nil.
func (s *space) slice(off, n int64, write bool) []byte {
	if m, ok := s.Data.(Slicer); ok {
		return m.Slice(off, n, write)
	}
	return nil
}

// quick reports whether nothing that the backend does waits for a device.
func (s *space) quick() bool {
	_, memory := s.Data.(Slicer)
	_, syncs := s.Data.(Syncer)
	return memory && !syncs
}

func (s *space) sync() error { // [NVME-IO-2]
	if f, ok := s.Data.(Syncer); ok && !s.ReadOnly {
		return f.Sync()
	}
	return nil
}

func (s *space) zero(off, n int64) error { // [NVME-IO-3]
	switch d := s.Data.(type) {
	case Zeroer:
		return d.Zero(off, n)
	case Discarder:
		return d.Discard(off, n)
	}
	return writeZeroes(s.Data.(io.WriterAt), off, n)
}

// zeroes are written to a backend without Zeroer.
var zeroes [1 << 16]byte

func writeZeroes(w io.WriterAt, off, n int64) error {
	for n > 0 {
		k := min(n, int64(len(zeroes)))
		if _, err := w.WriteAt(zeroes[:k], off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// discard is a hint, and does nothing where there is no Discarder: then the namespace does
// not say that it reads as zeroes.
func (s *space) discard(off, n int64) error { // [NVME-IO-3]
	if d, ok := s.Data.(Discarder); ok && n > 0 {
		return d.Discard(off, n)
	}
	return nil
}

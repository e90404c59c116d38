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

// A Namespace describes a disk.
type Namespace struct {
	// Data holds the bytes of the disk. Any number of goroutines call its methods at the same time.
	// If Data is also an io.WriterAt, and ReadOnly is not set, hosts can write the disk. The
	// optional methods of [Syncer], [Discarder], [Zeroer] and [Slicer] are used if Data has them.
	Data     io.ReaderAt
	Size     int64 // bytes; an incomplete block at the end is not used
	ReadOnly bool

	// BlockSize is the size of a block in bytes, a power of two from 512 to 4096; 0 means 512.
	BlockSize int

	// UUID identifies the disk to reconnecting hosts, and must be unique. Zero derives a UUID from
	// the NQN of the target and the number of the namespace.
	UUID [16]byte

	// Release, if not nil, is called once after [Target.Remove] or [Target.Close], when no command
	// uses Data any more. It must not call the target.
	Release func()
}

// A Syncer stores all written bytes durably, so that the bytes survive a loss of power. Sync is
// called for each flush of a host, for example after an fsync there. [os.File] is a Syncer.
type Syncer interface {
	Sync() error
}

// A Discarder frees a range of bytes. The range then reads as zeroes. Hosts discard the whole disk
// when making a file system, so Discard should be fast, for example by a hole in a file.
type Discarder interface {
	Discard(off, n int64) error
}

// A Zeroer writes zeroes to a range of bytes. Otherwise zeroes are written like other bytes.
type Zeroer interface {
	Zero(off, n int64) error
}

// A Slicer is backed by memory. Slice returns the bytes of a range without a copy, and hosts read
// and write the bytes in place. write reports that the bytes will be written. If Slice returns nil,
// the target calls ReadAt or WriteAt. The memory must stay valid while the target is open.
type Slicer interface {
	Slice(off, n int64, write bool) []byte
}

// A space is a namespace and the state of its backend.
type space struct {
	Namespace
	core   nvmecore.Namespace
	mapped *iwarp.MemoryRegion // registration of a mapped file, otherwise nil
	users  *users
}

// users counts the commands that use a backend, plus 1 for the namespace itself. A resized
// namespace shares the users of the old one.
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
	if n.Data == nil || n.BlockSize < 512 || n.BlockSize > 4096 || bits.OnesCount(uint(n.BlockSize)) != 1 ||
		n.Size < int64(n.BlockSize) {
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
		ID: id, Blocks: uint64(n.Size) >> shift, Shift: uint8(shift), ReadOnly: n.ReadOnly,
		ReadsZero: discards, UUID: n.UUID,
	}}, nil
}

// use prepares the backend for commands. Memory is registered in the domain pd.
func (s *space) use(pd *iwarp.ProtectionDomain) error {
	s.users = &users{release: s.release}
	s.users.n.Store(1)
	m, ok := s.Data.(*mapping)
	if !ok {
		return nil
	}
	// The region is guarded because the file may become shorter. Access beyond the end then fails
	// instead of killing the process. [iwarp.RegionOptions]
	var err error
	s.mapped, err = pd.Register(m.b, iwarp.LocalOnly, iwarp.RegionOptions{Guarded: true})
	return err
}

// release frees the backend when no command uses it any more.
func (s *space) release() {
	if s.mapped != nil {
		s.mapped.Close()
	}
	if s.Release != nil {
		s.Release()
	}
}

// slice returns the bytes of a range of the backend, or nil if the backend is not in memory.
func (s *space) slice(off, n int64, write bool) []byte {
	if m, ok := s.Data.(Slicer); ok {
		return m.Slice(off, n, write)
	}
	return nil
}

// quick reports whether the backend is in memory and never waits for a device.
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

// zeroes is written to backends other than Zeroers.
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

// discard discards a range. It does nothing without a Discarder, because discarding is only a hint.
// Without a Discarder the namespace does not promise that discarded blocks read as zeroes.
func (s *space) discard(off, n int64) error { // [NVME-IO-3]
	if d, ok := s.Data.(Discarder); ok && n > 0 {
		return d.Discard(off, n)
	}
	return nil
}

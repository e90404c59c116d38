package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unsafe"

	"viaduct/iwarp"
)

// Sends of iWARP have no flow control: a message that finds no receive posted
// ends the stream. Two ends of this command therefore pace each other without a
// message: each keeps a word that says how many receives it has posted in all,
// tells the other in MPA's private data where it is, and reads the other's by
// RDMA Read when it has used up what it knew of. A peer without such private
// data is not paced, as any other iWARP program would not be.

// paceMagic begins the private data; what follows is the STag (4 bytes), the
// tagged offset (8) and the receives posted at start (4), big-endian.
const paceMagic = "viaduct pace 1\x00\x00"

const paceLen = len(paceMagic) + 16

// How often the word of a peer that is behind is read.
const (
	paceFirst = 20 * time.Microsecond
	paceMost  = 2 * time.Millisecond
)

// A pace is one end's share.
type pace struct {
	word   *uint64 // ours: receives posted in all, in network order
	mem    []byte  // the memory of word
	region *iwarp.MemoryRegion
	posted uint64

	peer    iwarp.RemoteAddr
	active  bool
	allowed uint64 // receives the peer had posted in all when we last knew
	sent    uint64
	in      []byte // where the peer's word is read to
}

// newPace makes the word; register is the stream's or its domain's.
func newPace(count int, register func([]byte, iwarp.Access, ...iwarp.RegionOptions) (*iwarp.MemoryRegion, error)) (*pace, error) {
	p := &pace{posted: uint64(count), in: make([]byte, 8)}
	var err error
	if p.mem, err = sharedWord(); err != nil {
		return nil, err
	}
	p.word = (*uint64)(unsafe.Pointer(&p.mem[0]))
	p.store()
	if p.region, err = register(p.mem[:8], iwarp.RemoteRead); err != nil {
		freeWord(p.mem)
		return nil, err
	}
	return p, nil
}

// store shows the peer how many receives there were.
func (p *pace) store() {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], p.posted)
	atomic.StoreUint64(p.word, binary.NativeEndian.Uint64(b[:]))
}

// private is what the other end is told.
func (p *pace) private() []byte {
	b := []byte(paceMagic)
	b = p.region.Remote(0).Append(b)
	return binary.BigEndian.AppendUint32(b, uint32(p.posted))
}

// learn takes the private data of the other end.
func (p *pace) learn(b []byte) {
	if len(b) < paceLen || string(b[:len(paceMagic)]) != paceMagic {
		return
	}
	b = b[len(paceMagic):]
	p.peer, _ = iwarp.ParseRemoteAddr(b) // long enough: see paceLen
	p.allowed, p.active = uint64(binary.BigEndian.Uint32(b[12:])), true
}

// reposted counts one receive more.
func (p *pace) reposted() {
	p.posted++
	p.store()
}

// take waits until one more message finds a receive.
func (p *pace) take(ctx context.Context, c *iwarpConn) error {
	for wait := paceFirst; p.active && p.sent >= p.allowed; wait = min(2*wait, paceMost) {
		err := c.q.Post(iwarp.SendWR{Op: iwarp.OpRead, SG: []iwarp.SGE{iwarp.Buf(p.in)}, Remote: p.peer})
		if errors.Is(err, iwarp.ErrNoReads) {
			p.active = false
			break
		}
		if err == nil {
			err = c.Reap(ctx)
		}
		if err != nil {
			return c.failure(err)
		}
		if p.allowed = binary.BigEndian.Uint64(p.in); p.sent < p.allowed {
			break
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.gone.Done():
			return fmt.Errorf("the connection ended: %w", io.EOF)
		}
	}
	p.sent++
	return nil
}

// close takes the word back.
func (p *pace) close() {
	p.region.Close()
	freeWord(p.mem)
}

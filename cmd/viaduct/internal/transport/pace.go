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

// Sends of iWARP have no flow control: a message ends the stream if no receive is posted. Therefore
// two ends of this command pace each other, without extra messages. Each end keeps a word with the
// total number of posted receives. MPA's private data carries the address of the word. A sender
// reads the peer's word by RDMA Read after using up all known receives. A peer without such private
// data is not paced, like any other iWARP program.

// paceMagic begins the private data. Then follow the STag (4 bytes), the tagged offset (8) and the
// number of receives posted at start (4), all big-endian.
const paceMagic = "viaduct pace 1\x00\x00"

const paceLen = len(paceMagic) + 16

// The intervals between reads of a slow peer's word.
const (
	paceFirst = 20 * time.Microsecond
	paceMost  = 2 * time.Millisecond
)

// A pace is the state of one end: the end's own word, and the known value of the peer's word.
type pace struct {
	word   *uint64 // our word: total of the receives posted, big-endian
	mem    []byte  // the memory of word
	region *iwarp.MemoryRegion
	posted uint64

	peer    iwarp.RemoteAddr
	active  bool
	allowed uint64 // total of the peer's receives when we last read it
	sent    uint64
	in      []byte // destination of the RDMA Read of the peer's word
}

// newPace allocates the word and registers the memory with register, a method of the stream or of
// the stream's protection domain.
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

// store writes the number of posted receives into the word, for reads by the peer.
func (p *pace) store() {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], p.posted)
	atomic.StoreUint64(p.word, binary.NativeEndian.Uint64(b[:]))
}

// private returns the private data for the other end.
func (p *pace) private() []byte {
	b := []byte(paceMagic)
	b = p.region.Remote(0).Append(b)
	return binary.BigEndian.AppendUint32(b, uint32(p.posted))
}

// learn parses the private data of the other end. If the data does not begin with paceMagic, sends
// are not paced.
func (p *pace) learn(b []byte) {
	if len(b) < paceLen || string(b[:len(paceMagic)]) != paceMagic {
		return
	}
	b = b[len(paceMagic):]
	p.peer, _ = iwarp.ParseRemoteAddr(b) // long enough: see paceLen
	p.allowed, p.active = uint64(binary.BigEndian.Uint32(b[12:])), true
}

// reposted counts a posted receive.
func (p *pace) reposted() {
	p.posted++
	p.store()
}

// take waits until the peer has a receive for another message, and counts the message. For an
// unpaced peer, take does not wait.
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

// close unregisters and frees the word.
func (p *pace) close() {
	p.region.Close()
	freeWord(p.mem)
}

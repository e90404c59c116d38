//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRXEStreams makes the test binary a program that sends streams of commands to a RoCE device. The
// value is the number of streams.
const asRXEStreams = "VIADUCT_TEST_RXE_STREAMS"

// TestRXEStreams sends random command streams to a RoCE device, as TestRDMAStreams does to an iWARP
// device. It also creates queue pairs whose rings the program overwrites at random while their
// requests are executed.
func TestRXEStreams(t *testing.T) {
	lengthy(t, "8 s")
	t.Parallel()
	r := goodLong(t, "run", "--rdma", "--device", "rxe0", "--", "env", calm,
		fmt.Sprintf("%s=%d", asRXEStreams, *rdmaStreams), os.Args[0])
	var streams, commands, done, attacks int
	fmt.Sscanf(strings.TrimSpace(r.stdout), "%d streams, %d commands, %d done, %d attacks",
		&streams, &commands, &done, &attacks)
	if streams != *rdmaStreams || commands < 10*streams || done < commands/4 || done > commands*9/10 ||
		attacks < streams/2 {
		t.Errorf("%q: too few", r.stdout)
	}
	t.Log(strings.TrimSpace(r.stdout))
}

// rxeValue returns a valid value for a field specific to RoCE devices.
func rxeValue(have map[abi.Kind]uint32, k abi.Kind) uint64 {
	switch k {
	case abi.AH, abi.Window:
		return uint64(have[k])
	case abi.WindowType, abi.Global:
		return 1
	case abi.Group:
		return 0x0eff
	}
	return 0
}

// rxeSenseless returns invalid values for a field of rxeValue.
func rxeSenseless(k abi.Kind) []uint64 {
	switch k {
	case abi.AH, abi.Window:
		return []uint64{1000, 1<<31 - 1, 1<<32 - 1}
	case abi.WindowType:
		return []uint64{0, 3, 255}
	case abi.Global:
		return []uint64{0}
	case abi.GIDIndex:
		return []uint64{100, 255}
	case abi.Group:
		return []uint64{0, 0xfe}
	}
	return nil
}

// An rxeStream is an rdmaStream to a RoCE device, with attacks on the rings in between.
type rxeStream struct {
	rdmaStream
	gid     [16]byte
	attacks int
}

func rxeStreamsMain(arg string) error {
	var count int
	if _, err := fmt.Sscan(arg, &count); err != nil {
		return err
	}
	gid, err := rxeGID()
	if err != nil {
		return err
	}
	scratch, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	readOnly, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	h := &rdmaFields{readOnly: uint64(uintptr(unsafe.Pointer(&readOnly[0])))}
	h.scratch = scratch
	time.Sleep(time.Millisecond) // the runtime needs this time to open its own descriptors
	const lowest = 64            // descriptors that a stream opens have at least this number
	for fd := 0; fd < lowest-1; {
		if fd, err = unix.Dup(0); err != nil {
			return err
		}
	}
	attacks := 0
	for n := range count {
		s := &rxeStream{rdmaStream: rdmaStream{cmFields: cmFields{rdmaFields: h, gone: 1 << 30},
			r:         rand.New(rand.NewPCG(uint64(n), 16)),
			connected: true, verbs: append(abi.Commands(), abi.RXECommands()...)}, gid: gid}
		err := s.run()
		attacks += s.attacks
		unix.CloseRange(lowest, 1023, 0)
		if err != nil {
			return fmt.Errorf("stream %d: %w", n, err)
		}
	}
	fmt.Printf("%d streams, %d commands, %d done, %d attacks\n", count, h.commands, h.done, attacks)
	return nil
}

// rxeGID reads the first GID of the device.
func rxeGID() (gid [16]byte, err error) {
	text, err := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/gids/0")
	if err != nil {
		return gid, err
	}
	_, err = hex.Decode(gid[:], bytes.ReplaceAll(bytes.TrimSpace(text), []byte(":"), nil))
	return gid, err
}

func (s *rxeStream) run() (err error) {
	s.ioctls = false
	if err := s.setUp(); err != nil {
		return err
	}
	if s.cm, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	s.file = s.cm
	for range 8 + s.r.IntN(16) {
		switch s.r.IntN(8) {
		case 0, 1:
			err = s.manage()
		case 2:
			s.ioctls = false
			err = s.attack()
		case 3:
			s.ioctls = !s.ioctls
			err = s.method()
		default:
			err = s.verb()
		}
		if e, ok := errors.AsType[unix.Errno](err); err != nil && (!ok || !slices.Contains(streamErrors, e)) {
			return err
		}
	}
	s.ioctls = false
	if err := s.rdmaFields.right(abi.QueryPort); err != nil {
		return fmt.Errorf("behind it: %w", err)
	}
	return nil
}

// The offsets of the indexes and the entries in the rings of the rxe provider.
const (
	rxeProducerAt = 128
	rxeConsumerAt = 256
	rxeEntriesAt  = 384
	rxeElementsAt = 208
)

// attack connects a queue pair to itself, and posts partly correct requests while changing the
// rings at random.
func (s *rxeStream) attack() error {
	const responseLen = 64 // including the provider's part
	body := s.rdmaFields.body(abi.CreateQP)
	body.Put8(54, 0) // the queue pair gets its own receive queue
	if err := s.send(abi.CreateQP, body, responseLen, s.at(0)); err != nil {
		return err
	}
	handle, qpn := s.word(0), s.word(1)
	var rings [2][]byte
	for i := range rings {
		info := abi.Body(s.scratch[32+16*i:])
		ring, err := unix.Mmap(s.uverbs, int64(info.U64(0)), int(info.U32(8)),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("a ring can't be mapped: %w", err)
		}
		defer unix.Munmap(ring)
		rings[i] = ring
	}
	for _, st := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
		if err := s.command(abi.ModifyQP, 0, []byte(rxeChange(s.gid, handle, qpn, st))); err != nil {
			return fmt.Errorf("a queue pair can't be made %v: %v", st, err)
		}
	}
	s.attacks++
	for range 1 + s.r.IntN(3) {
		s.scribble(rings)
		ring := s.rdmaFields.body(abi.PostSend)
		ring.Put32(8, handle)
		if err := s.send(abi.PostSend, ring, 4, s.at(0)); err != nil && err != unix.EINVAL {
			return err
		}
		s.scribble(rings)
	}
	return nil
}

// rxeChange returns a correct body of modify_qp. qpn is the peer's number.
func rxeChange(gid [16]byte, handle, qpn uint32, to abi.State) abi.Body {
	masks := map[abi.State]uint32{abi.Reset: 1, abi.Init: 0x39, abi.RTR: 0x12_9181, abi.RTS: 0x1_2e01}
	n, _ := abi.ModifyQP.Lengths()
	b := make(abi.Body, n)
	copy(b, gid[:])
	b.Put8(30, 1) // a global header
	b.Put8(31, 1)
	b.Put32(64, handle)
	b.Put32(68, masks[to])
	b.Put32(84, qpn)
	b.Put32(88, abi.AccessRemoteWrite|abi.AccessRemoteRead|abi.AccessRemoteAtomic)
	b.Put8(96, uint8(to))
	for at, v := range map[int]uint8{98: 3, 101: 4, 102: 4, 103: 1, 104: 1, 105: 1, 106: 1, 107: 1} {
		b.Put8(at, v)
	}
	return b
}

// scribble fills a few entries with nearly correct requests, and changes words of the rings at
// random.
func (s *rxeStream) scribble(rings [2][]byte) {
	r, sends := s.r, abi.Body(rings[1])
	log := sends.U32(0)
	if log < 8 || log > 12 {
		log = 8
	}
	for i := range 1 + r.IntN(3) {
		at := rxeEntriesAt + i<<log
		if at+1<<log > len(sends) {
			break
		}
		e := sends[at : at+1<<log]
		key := s.word(0)
		e.Put32(12, r.Uint32N(17))
		e.Put32(16, r.Uint32N(16))
		e.Put64(24, s.at(r.IntN(1<<20)))
		e.Put32(32, key)
		e.Put32(184, r.Uint32N(600))
		e.Put32(196, r.Uint32N(3))
		e.Put64(rxeElementsAt, s.at(r.IntN(1<<20)))
		e.Put32(rxeElementsAt+8, r.Uint32N(8192))
		e.Put32(rxeElementsAt+12, key)
	}
	word := func(b []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&b[at])) }
	atomic.StoreUint32(word(rings[1], rxeProducerAt), r.Uint32N(8))
	for range r.IntN(20) {
		b := rings[r.IntN(2)]
		at := 4 * r.IntN(len(b)/4)
		if r.IntN(3) == 0 {
			at = []int{0, 4, rxeProducerAt, rxeConsumerAt}[r.IntN(4)]
		}
		atomic.StoreUint32(word(b, at), r.Uint32()>>r.IntN(32))
	}
}

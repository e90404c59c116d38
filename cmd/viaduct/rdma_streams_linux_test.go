//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMAStreams makes the test binary a program that sends streams of commands. The value is "COUNT
// PORT".
const asRDMAStreams = "VIADUCT_TEST_RDMA_STREAMS"

var rdmaStreams = flag.Int("streams", 150,
	"how many streams of RDMA commands at random are sent; 10000 take a minute or two")

// Streams of commands are generated from the tables of package abi: correct commands mixed with
// wrong lengths, handles, addresses and flags. Only errors the kernel would return are allowed, and
// the device must work as before after each stream. The number of a stream is its seed.
func TestRDMAStreams(t *testing.T) {
	lengthy(t, "5 s")
	t.Parallel()
	r := goodLong(t, "run", "--rdma", "--", "env", calm,
		fmt.Sprintf("%s=%d %d", asRDMAStreams, *rdmaStreams, freePort(t)), os.Args[0])
	var streams, commands, done, connections int
	fmt.Sscanf(strings.TrimSpace(r.stdout), "%d streams, %d commands, %d done, %d connections",
		&streams, &commands, &done, &connections)
	if streams != *rdmaStreams || commands < 10*streams || done < commands/4 || done > commands*9/10 ||
		connections < streams/100 {
		t.Errorf("%q: too few", r.stdout)
	}
	t.Log(strings.TrimSpace(r.stdout))
}

// An rdmaStream is the state of one stream.
type rdmaStream struct {
	cmFields
	r         *rand.Rand
	ids       []uint32      // created identifiers
	qpn       uint32        // number of a queue pair
	port      uint16        // where the stream listens and connects to itself
	connected bool          // the stream has connected to itself
	verbs     []abi.Command // the uverbs commands to choose from
}

func rdmaStreamsMain(arg string) error {
	var count int
	var port uint16
	if _, err := fmt.Sscan(arg, &count, &port); err != nil {
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
	clear(scratch)
	h := &rdmaFields{readOnly: uint64(uintptr(unsafe.Pointer(&readOnly[0])))}
	h.scratch = scratch
	time.Sleep(time.Millisecond) // the runtime needs this time to open its own descriptors
	const lowest = 64            // the descriptors that a stream opens begin here
	for fd := 0; fd < lowest-1; {
		if fd, err = unix.Dup(0); err != nil {
			return err
		}
	}
	for n := range count {
		s := &rdmaStream{cmFields: cmFields{rdmaFields: h, gone: 1 << 30},
			r: rand.New(rand.NewPCG(uint64(n), 15)), port: port, verbs: abi.Commands()}
		err := s.run()
		unix.CloseRange(lowest, 1023, 0)
		if err != nil {
			return fmt.Errorf("stream %d: %w", n, err)
		}
	}
	fmt.Printf("%d streams, %d commands, %d done, %d connections\n", count, h.commands, h.done, h.connections)
	return nil
}

// run sends a stream through newly opened files, and leaves the files open.
func (s *rdmaStream) run() (err error) {
	s.ioctls = false
	if err := s.setUp(); err != nil {
		return err
	}
	if s.cm, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	s.file = s.cm
	s.rdmaAbuser.port = s.port
	for range 8 + s.r.IntN(16) {
		switch s.r.IntN(8) {
		case 0, 1, 2:
			err = s.manage()
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

var streamErrors = []unix.Errno{unix.EINVAL, unix.ENOENT, unix.ENOSPC, unix.EFAULT, unix.EAGAIN,
	unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.ENOMEM,
	unix.EBUSY, unix.EBADF, unix.ENOTTY, unix.ENOTCONN, unix.EADDRINUSE, unix.EADDRNOTAVAIL,
	unix.ENODEV, unix.EACCES, unix.EAFNOSUPPORT, unix.ECONNRESET}

// spoil sometimes damages a command: the fields, the other bytes, or the length. spoil returns the
// body and the size of the response buffer to claim.
func (s *rdmaStream) spoil(b abi.Body, fields []abi.Field, senseless func(abi.Kind) []uint64, out int) (abi.Body, int) {
	r := s.r
	begin := 0
	for _, f := range fields {
		address := false
		switch f.Kind {
		case abi.Reply, abi.Value:
			address = true // a random address could be that of this program's own objects
			begin = max(begin, f.At+f.Size)
		}
		switch k := r.IntN(16); {
		case k == 0:
			if values := senseless(f.Kind); len(values) > 0 {
				put(b, f, values[r.IntN(len(values))])
			}
		case k == 1 && !address:
			put(b, f, r.Uint64N(4))
		case k == 2 && !address && f.Kind != abi.Count && f.Kind != abi.Family:
			put(b, f, r.Uint64())
		}
	}
	if len(b) > begin && r.IntN(12) == 0 {
		b[begin+r.IntN(len(b)-begin)] ^= 1 << r.IntN(8)
	}
	switch r.IntN(12) {
	case 0:
		b = b[:r.IntN(len(b)+1)&^3]
	case 1:
		b = append(b, make([]byte, 4*r.IntN(16))...)
	case 2:
		out = 4 * r.IntN(out/4+16)
	}
	return b, out
}

// verb sends a command of uverbs.
func (s *rdmaStream) verb() error {
	c := s.verbs[s.r.IntN(len(s.verbs))]
	if s.ioctls && c&abi.Extended != 0 {
		s.ioctls = false
	}
	b, out := s.spoil(s.rdmaFields.body(c), c.Fields(), func(k abi.Kind) []uint64 {
		values, _ := s.rdmaFields.senseless(k, 64)
		return values
	}, room(c))
	var err error
	if !s.ioctls && s.r.IntN(24) == 0 { // a header with another number or length
		w := le.AppendUint32(nil, uint32(c))
		w = le.AppendUint16(w, uint16(s.r.IntN(1<<(1+s.r.IntN(16)))))
		err = s.write(s.uverbs, append(le.AppendUint16(w, uint16(out/4)), b...))
	} else {
		err = s.send(c, b, out, s.at(0))
	}
	if err == nil {
		for _, m := range rdmaMakers {
			if c == m.create && s.r.IntN(2) == 0 {
				s.have[m.kind] = s.word(0)
			}
		}
		if c == abi.CreateQP {
			s.qpn = s.word(1)
		}
	}
	return err
}

// method sends an ioctl of a method. Its attributes are sometimes correct.
func (s *rdmaStream) method() error {
	r := s.r
	attrs := make([]ioctlAttr, r.IntN(15))
	kinds := []abi.Kind{abi.Domain, abi.CQ, abi.QP, abi.SRQ, abi.Region, abi.Channel}
	for i := range attrs {
		a := &attrs[i]
		a.ID, a.Flags = uint16(i), uint16(r.IntN(2))
		a.Len = []uint16{0, 0, 4, 8, 20, 48, uint16(r.Uint32())}[r.IntN(7)]
		a.Data = []uint64{0, uint64(s.have[kinds[r.IntN(len(kinds))]]), r.Uint64N(40), s.at(r.IntN(1 << 16)), r.Uint64() | 1<<63}[r.IntN(5)]
		if r.IntN(20) == 0 {
			a.ID = uint16(r.Uint32())
		}
	}
	return s.ioctl([]uint16{0, 1, 3, 4, 5, 7, 16, uint16(r.IntN(20))}[r.IntN(8)], uint16(r.IntN(7)), attrs...)
}

// manage sends a command of rdma_cm. Until connectWhole has succeeded once, manage sometimes runs
// connectWhole instead.
func (s *rdmaStream) manage() error {
	r := s.r
	if !s.connected && r.IntN(40) == 0 {
		return s.connectWhole()
	}
	all := abi.CMCommands()
	c := all[r.IntN(len(all))]
	if len(s.ids) > 0 {
		s.id = s.ids[r.IntN(len(s.ids))]
	}
	_, out := c.Lengths()
	b := s.cmFields.body(c)
	for _, f := range c.Fields() {
		if f.Kind == abi.QPNumber {
			put(b, f, uint64(s.qpn))
		}
	}
	b, out = s.spoil(b, c.Fields(), func(k abi.Kind) []uint64 {
		values, _ := s.cmFields.senseless(k)
		return values
	}, max(out, 4))
	if c == abi.CMGetEvent && out >= abi.EventLen {
		out = abi.EventLen
	}
	err := s.cmCommand(c, out, b)
	if err == nil && c == abi.CMCreateID {
		s.ids = append(s.ids, s.word(0))
	}
	switch {
	case err == unix.ENOSYS && c == abi.CMSetOption: // a kind of option that does not exist
		return nil
	case err == unix.ENOSYS:
		return errSupervisorGone
	}
	return err
}

// connectWhole connects two new queue pairs for use by the stream's later commands.
func (s *rdmaStream) connectWhole() error {
	cm, ioctls := s.cm, s.ioctls
	defer func() { s.cm, s.ioctls = cm, ioctls }()
	s.ioctls = false
	own, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	s.cm = own
	have := s.have
	s.have = map[abi.Kind]uint32{}
	defer func() { s.have = have }()
	var qps [2]uint32
	for i := range qps {
		for _, m := range rdmaMakers {
			if m.kind != abi.Region {
				if err := s.make(m.kind, m.create); err != nil {
					return err
				}
			}
		}
		qps[i] = s.word(1)
	}
	s.qpn, s.connected = qps[1], true
	if err := s.connect(qps); err != nil {
		return fmt.Errorf("a connection that is right: %w", err)
	}
	s.connections++
	return nil
}

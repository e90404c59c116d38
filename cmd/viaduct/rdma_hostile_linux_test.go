//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/testkit"
)

// asRDMAHostile makes the test binary a program that misuses the RDMA device. The value is "SECONDS
// PORT".
const asRDMAHostile = "VIADUCT_TEST_RDMA_HOSTILE"

// Random command streams, and rings overwritten by the program while in use by connections, harm
// neither the supervisor nor another program under the same supervisor.
func TestRDMAHostileProgram(t *testing.T) {
	t.Parallel()
	need(t, "rping", "rdmacm-utils")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience+*hostileFor)
	defer cancel()
	port, listener := freePort(t), freePort(t)
	var out bytes.Buffer
	c := rdmaRun(ctx, &out, "sh", "-c", rpingWhole+`
		env `+asRDMAHostile+`="$1" "$0" & hostile=$!
		n=0
		while kill -0 $hostile 2>/dev/null; do
			rping_whole -s -a 127.0.0.1 -p $2 -C 10 -S 3000 & server=$!
			until grep -qs ":$3 [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6; do
				kill -0 $server || { echo "server ended"; exit 4; }
				sleep 0.05
			done
			rping_whole -c -a 127.0.0.1 -p $2 -C 10 -S 3000 -V || { echo "client failed"; exit 3; }
			wait $server || { echo "server failed"; exit 4; }
			n=$((n+1))
		done
		echo "honest pairs: $n"
		wait $hostile || { echo "hostile failed"; exit 5; }`, self, fmt.Sprint(hostileFor.Seconds(), " ", port),
		strconv.Itoa(listener), fmt.Sprintf("%04X", listener)) // the last in the form of /proc/net/tcp
	if err := c.Run(); err != nil {
		s := out.String()
		t.Fatalf("%v\n%s", err, s[max(0, len(s)-6000):])
	}
	s := out.String()
	var pairs, commands, done, connections int
	for line := range strings.Lines(s) {
		fmt.Sscanf(line, "honest pairs: %d", &pairs)
		fmt.Sscanf(line, "hostile: %d commands, %d done, %d connections", &commands, &done, &connections)
	}
	if pairs < 1 || commands < 500 || done < 50 || connections < 2 {
		t.Errorf("%d honest pairs, %d commands, %d done, %d connections: too few\n%s", pairs,
			commands, done, connections, s[max(0, len(s)-3000):])
	}
	t.Logf("%d honest pairs, %d commands, %d done, %d connections", pairs, commands, done, connections)
}

var errSupervisorGone = errors.New("the supervisor has gone")

var le = binary.LittleEndian

// rdmaAbuser is the state of the hostile program.
type rdmaAbuser struct {
	port                        uint16
	scratch                     []byte // answers go to the first half, transfers to the second
	uverbs, cm                  int
	ioctls                      bool // commands are sent by ioctl
	commands, done, connections int
}

func rdmaHostile(arg string) error {
	var seconds float64
	var port uint16
	if _, err := fmt.Sscan(arg, &seconds, &port); err != nil {
		return err
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024})
	h := &rdmaAbuser{port: port}
	var err error
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	clear(h.scratch)
	// On a busy machine, the planned time may be too short for the counts required by the test.
	enough := func() bool { return h.commands >= 500 && h.done >= 50 && h.connections >= 2 }
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end) || !enough(); {
		if err := h.round(); err != nil {
			return err
		}
	}
	fmt.Printf("hostile: %d commands, %d done, %d connections\n", h.commands, h.done, h.connections)
	return nil
}

func (h *rdmaAbuser) at(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&h.scratch[off]))) }

// command writes a uverbs command whose answer goes to the beginning of scratch.
func (h *rdmaAbuser) command(c abi.Command, out int, body ...any) error {
	b := le.AppendUint32(nil, uint32(c))
	b = append(b, 0, 0, byte(out/4), byte(out/4>>8))
	for _, v := range body {
		b, _ = binary.Append(b, le, v)
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if h.ioctls {
		return h.invoke(c, out, b[8:])
	}
	le.PutUint16(b[4:], uint16(len(b)/4))
	return h.write(h.uverbs, b)
}

// An ioctlAttr is one attribute of a command sent by ioctl.
type ioctlAttr struct {
	ID, Len, Flags, Reserved uint16
	Data                     uint64
}

// Offsets in scratch: the attributes of an ioctl, and the input data the attributes point to.
const (
	ioctlAt = 1 << 17
	inputAt = ioctlAt + 4096
)

// ioctl calls a method of an object class by ioctl. It returns the kernel's error, or
// errSupervisorGone for ENOSYS.
func (h *rdmaAbuser) ioctl(object, method uint16, attrs ...ioctlAttr) error {
	h.commands++
	b := le.AppendUint16(h.scratch[ioctlAt:ioctlAt], uint16(24+16*len(attrs)))
	for _, v := range []uint16{object, method, uint16(len(attrs)), 0, 0, 0, 0, 18, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	if _, err := binary.Append(b, le, attrs); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(h.uverbs), abi.IoctlVerbs, uintptr(h.at(ioctlAt)))
	switch errno {
	case 0:
		h.done++
		return nil
	case unix.ENOSYS:
		return errSupervisorGone
	}
	return errno
}

// number returns the value the last ioctl stored in attribute i.
func (h *rdmaAbuser) number(i int) uint32 { return le.Uint32(h.scratch[ioctlAt+24+16*i+8:]) }

// invoke sends a write command by ioctl. Like command, invoke stores the answer at the start of
// scratch.
func (h *rdmaAbuser) invoke(c abi.Command, out int, body []byte) error {
	coreIn, coreOut := c.Lengths()
	var answer uint64
	if len(body) >= 8 {
		answer = le.Uint64(body)
	}
	copy(h.scratch[inputAt:], body)
	var attrs []ioctlAttr
	add := func(id uint16, n int, at uint64) {
		if n > 0 {
			attrs = append(attrs, ioctlAttr{ID: id, Len: uint16(n), Flags: 1, Data: at})
		}
	}
	in := func(id uint16, from, to int) {
		if to-from > 8 {
			add(id, to-from, h.at(inputAt+from))
		} else if to > from {
			add(id, to-from, le.Uint64(h.scratch[inputAt+from:]))
		}
	}
	add(2, 8, uint64(c))
	in(0, 0, min(coreIn, len(body)))
	in(0x1000, min(coreIn, len(body)), len(body))
	add(1, min(coreOut, out), answer)
	add(0x1001, out-coreOut, answer+uint64(coreOut))
	return h.ioctl(0, 0, attrs...)
}

func (h *rdmaAbuser) cmCommand(c abi.CMCommand, out int, body []byte) error {
	b := le.AppendUint32(nil, uint32(c))
	b = le.AppendUint16(b, uint16(len(body)))
	b = le.AppendUint16(b, uint16(out))
	return h.write(h.cm, append(b, body...))
}

func (h *rdmaAbuser) write(fd int, b []byte) error {
	h.commands++
	n, err := unix.Write(fd, b)
	if err == nil && n == len(b) {
		h.done++
	}
	if err == unix.ENOSYS && fd == h.uverbs { // for an unknown command, rdma_cm returns ENOSYS but uverbs does not
		return errSupervisorGone
	}
	return err
}

func (h *rdmaAbuser) word(i int) uint32 { return le.Uint32(h.scratch[4*i:]) }

// event waits up to a minute for an event, and returns the event's identifier. An event of
// another type than want is an error.
func (h *rdmaAbuser) event(want abi.CMEventType) (id uint32, err error) {
	body := le.AppendUint64(nil, h.at(0))
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch err := h.cmCommand(abi.CMGetEvent, abi.EventLen, body); {
		case err == unix.EAGAIN:
			continue
		case err != nil:
			return 0, fmt.Errorf("get_event: %w", err)
		}
		if got := abi.CMEventType(h.word(3)); got != want {
			return 0, fmt.Errorf("event %d in place of %d", got, want)
		}
		return h.word(2), nil
	}
	return 0, fmt.Errorf("no event %d", want)
}

func (h *rdmaAbuser) address() []byte {
	b := make([]byte, 28)
	abi.PutAddr(b, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), h.port))
	return b
}

// round connects two queue pairs with each other, spoils their rings while the
// connection is served, sends commands at random, and closes everything.
func (h *rdmaAbuser) round() (err error) {
	if h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("uverbs0: %w", err)
	}
	defer unix.Close(h.uverbs)
	if h.cm, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return fmt.Errorf("rdma_cm: %w", err)
	}
	defer unix.Close(h.cm)
	h.ioctls = mrand.IntN(2) == 0
	var fds [2]uint32
	must := func(e error, what string) {
		if e != nil && err == nil {
			err = fmt.Errorf("%s: %w", what, e)
		}
	}
	answer := h.at(0)
	must(h.command(abi.GetContext, 16, answer), "get_context")
	fds[0] = h.word(0)
	must(h.command(abi.CreateCompChannel, 8, answer), "create_comp_channel")
	fds[1] = h.word(0)
	for _, fd := range fds {
		if err == nil {
			defer unix.Close(int(fd))
		}
	}
	must(h.command(abi.AllocPD, 8, answer), "alloc_pd")
	pd := h.word(0)
	half := len(h.scratch) / 2
	must(h.command(abi.RegMR, 20, answer, h.at(half), uint64(half), h.at(half), pd, uint32(7), uint64(mrand.IntN(256))),
		"reg_mr")
	stag := h.word(1)
	var maps [][]byte
	defer func() {
		for _, m := range maps {
			unix.Munmap(m)
		}
	}()
	mmap := func(at, n int) {
		key := int64(le.Uint64(h.scratch[at:]))
		m, e := unix.Mmap(h.uverbs, key, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if must(e, "mmap"); e == nil {
			maps = append(maps, m)
		}
	}
	must(h.command(abi.CreateCQ, 24, answer, uint64(1), uint32(64), uint32(0), fds[1], uint32(0), uint64(0)),
		"create_cq")
	cq := h.word(0)
	mmap(16, 64*abi.CQELen+abi.CQCtrlLen)
	var qps [2]uint32
	for i := range qps {
		must(h.command(abi.CreateQP, 64, answer, uint64(2), pd, cq, cq, uint32(0), uint32(15), uint32(16), uint32(4), uint32(4), uint32(0), uint32(2<<8), uint32(0)), "create_qp")
		qps[i] = h.word(1)
		mmap(48, 16*abi.SQELen)
		mmap(56, 16*abi.RQELen)
	}
	if err != nil {
		return err
	}
	if err := h.connect(qps); err != nil {
		return err
	}
	h.connections++

	var stop atomic.Bool
	var wg sync.WaitGroup
	sane := mrand.IntN(2) == 0
	wg.Go(func() {
		for !stop.Load() {
			h.scribble(maps, stag, sane)
			time.Sleep(time.Duration(mrand.IntN(200)) * time.Microsecond)
		}
	})
	for range 100 {
		if e := h.random(pd, cq); errors.Is(e, errSupervisorGone) {
			err = e
		}
	}
	stop.Store(true)
	wg.Wait()
	// Close the files the stream of commands has opened.
	unix.CloseRange(100, 959, 0)
	return err
}

// connect connects two queue pairs with each other.
func (h *rdmaAbuser) connect(qps [2]uint32) error {
	if _, err := h.listen(); err != nil {
		return err
	}
	if _, err := h.dial(qps[0]); err != nil {
		return err
	}
	if err := h.accept(qps[1]); err != nil {
		return err
	}
	for range 2 {
		if _, err := h.event(abi.EvEstablished); err != nil {
			return err
		}
	}
	return nil
}

// create creates an rdma_cm identifier whose events carry uid.
func (h *rdmaAbuser) create(uid uint64) (uint32, error) {
	b := le.AppendUint64(le.AppendUint64(nil, uid), h.at(0))
	err := h.cmCommand(abi.CMCreateID, 4, append(b, 6, 1, 2, 0, 0, 0, 0, 0))
	return h.word(0), err
}

// listen listens at the port. If no port is chosen yet, listen chooses a free port.
func (h *rdmaAbuser) listen() (id uint32, err error) {
	if id, err = h.create(1); err != nil {
		return 0, err
	}
	bind := append(make([]byte, 8), h.address()...)
	bind = le.AppendUint32(bind, id)
	// The previous round has been closed, but the port is released a little later.
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(5 * time.Millisecond) {
		err := h.cmCommand(abi.CMBindIP, 0, bind)
		if err == nil {
			break
		}
		if err != unix.EADDRINUSE || time.Now().After(end) {
			return 0, fmt.Errorf("bind: %w", err)
		}
	}
	if err := h.cmCommand(abi.CMListen, 0, le.AppendUint32(le.AppendUint32(nil, id), 5)); err != nil {
		return 0, fmt.Errorf("listen: %w", err)
	}
	if h.port == 0 {
		query := le.AppendUint64(nil, h.at(0))
		if err := h.cmCommand(abi.CMQueryRoute, abi.QueryRouteLen, append(le.AppendUint32(query, id), 0, 0, 0, 0)); err != nil {
			return 0, fmt.Errorf("query_route: %w", err)
		}
		h.port = uint16(h.scratch[138])<<8 | uint16(h.scratch[139])
	}
	return id, nil
}

// dial requests a connection of a queue pair to the port.
func (h *rdmaAbuser) dial(qp uint32) (id uint32, err error) {
	if id, err = h.create(2); err != nil {
		return 0, err
	}
	resolve := append(make([]byte, 28), h.address()...)
	if err := h.cmCommand(abi.CMResolveIP, 0, le.AppendUint32(le.AppendUint32(resolve, id), 1000)); err != nil {
		return 0, fmt.Errorf("resolve_ip: %w", err)
	}
	if _, err := h.event(abi.EvAddrResolved); err != nil {
		return 0, err
	}
	if err := h.cmCommand(abi.CMResolveRoute, 0, le.AppendUint32(le.AppendUint32(nil, id), 1000)); err != nil {
		return 0, fmt.Errorf("resolve_route: %w", err)
	}
	if _, err := h.event(abi.EvRouteResolved); err != nil {
		return 0, err
	}
	b := le.AppendUint32(connParam(qp), id)
	if err := h.cmCommand(abi.CMConnect, 0, append(b, make([]byte, 12)...)); err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	return id, nil
}

// accept accepts the next connection for a queue pair.
func (h *rdmaAbuser) accept(qp uint32) error {
	id, err := h.event(abi.EvConnectRequest)
	if err != nil {
		return err
	}
	b := append(le.AppendUint64(nil, 3), connParam(qp)...)
	b = le.AppendUint32(b, id)
	if err := h.cmCommand(abi.CMAccept, 0, append(b, make([]byte, 12)...)); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

func connParam(qp uint32) []byte {
	b := make([]byte, 272)
	le.PutUint32(b, qp)
	b[266], b[267], b[271] = 4, 4, 1
	return b
}

// scribble writes entries into the rings. Sane entries name the region, so that some data is moved.
// Other entries are random bytes.
func (h *rdmaAbuser) scribble(maps [][]byte, stag uint32, sane bool) {
	half := len(h.scratch) / 2
	for i, m := range maps {
		if i == 0 || !sane && mrand.IntN(4) > 0 {
			for range 20 {
				m[mrand.IntN(len(m))] = byte(mrand.Uint32())
			}
			continue
		}
		size, sge := abi.SQELen, 24
		if i%2 == 0 {
			size, sge = abi.RQELen, 16
		}
		for at := 0; at+size <= len(m); at += size {
			e := abi.Body(m[at : at+size])
			if sge == 24 {
				e.Put32(12, stag)
				e.Put64(16, h.at(half+mrand.IntN(half/2)))
			}
			e.Put64(sge, h.at(half+mrand.IntN(half/2)))
			e.Put32(sge+8, uint32(mrand.IntN(5000)))
			e.Put32(sge+12, stag)
			op := []uint32{0, 1, 3, 3, 0, 1, 3, 5}[mrand.IntN(8)]
			if op == 5 && mrand.IntN(20) > 0 {
				op = 3
			}
			e.Put32(8, abi.Valid|abi.Signalled|1<<16|op<<24)
		}
	}
}

// random sends one command: random bytes, or the right lengths with small numbers, often valid
// handles.
func (h *rdmaAbuser) random(pd, cq uint32) error {
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(mrand.Uint32())
		}
		return b
	}
	small := func(n int) []byte {
		b := make([]byte, (n+3)&^3)
		for i := 0; i < len(b); i += 4 {
			v := uint32(mrand.IntN(3))
			if mrand.IntN(12) == 0 {
				v = mrand.Uint32()
			} else if mrand.IntN(8) == 0 {
				v = uint32(mrand.IntN(64))
			}
			le.PutUint32(b[i:], v)
		}
		return b
	}
	switch mrand.IntN(9) {
	case 7:
		return h.descriptor(noise(64))
	case 8: // an ioctl method, sometimes with correct attributes
		if !h.ioctls {
			break
		}
		attrs := make([]ioctlAttr, mrand.IntN(15))
		for i := range attrs {
			a := &attrs[i]
			a.ID, a.Flags = uint16(i), uint16(mrand.IntN(2))
			a.Len = []uint16{0, 0, 4, 8, 20, 48, uint16(mrand.Uint32())}[mrand.IntN(7)]
			a.Data = []uint64{0, uint64(pd), uint64(cq), mrand.Uint64N(40), h.at(mrand.IntN(1 << 16)), mrand.Uint64()}[mrand.IntN(6)]
			if mrand.IntN(20) == 0 {
				a.ID = uint16(mrand.Uint32())
			}
		}
		return h.ioctl([]uint16{0, 1, 3, 4, 5, 7, 16, uint16(mrand.IntN(20))}[mrand.IntN(8)],
			uint16(mrand.IntN(7)), attrs...)
	case 0: // an unknown command
		fd := h.uverbs
		if mrand.IntN(2) == 0 {
			fd = h.cm
		}
		b := noise(mrand.IntN(300))
		if len(b) > 3 {
			b[1], b[2], b[3] = 0, 0, b[3]&0x80
		}
		if fd == h.cm && len(b) > 0 && (b[0] == byte(abi.CMResolveIP) || b[0] == byte(abi.CMBindIP)) {
			b[0] = byte(abi.CMQuery) // not the addresses of other programs
		}
		return h.write(fd, b)
	case 1, 2: // rdma_cm
		c := abi.CMCommand(mrand.IntN(24))
		b := small(300)
		if mrand.IntN(8) > 0 {
			le.PutUint64(b, h.at(mrand.IntN(1<<16)))
		}
		switch c {
		case abi.CMBindIP:
			copy(b[8:], h.address())
		case abi.CMResolveIP:
			copy(b, make([]byte, 28))
			copy(b[28:], h.address())
		case abi.CMBind, abi.CMResolveAddr, abi.CMJoinMcast:
			c = abi.CMGetEvent
		case abi.CMCreateID:
			le.PutUint64(b[8:], h.at(mrand.IntN(1<<16)))
			le.PutUint16(b[16:], 0x106)
		}
		return h.cmCommand(c, mrand.IntN(400), b)
	}
	all := abi.Commands()
	c := all[mrand.IntN(len(all))]
	in, out := c.Lengths()
	in, out = in+8, out+32 // including the provider's part
	b := small(in)
	if f := c.Fields()[0]; f.Kind == abi.Reply {
		switch mrand.IntN(10) {
		case 0: // no address
			le.PutUint64(b, mrand.Uint64()|1<<63)
		default:
			le.PutUint64(b, h.at(mrand.IntN(1<<16)))
		}
	}
	switch c {
	case abi.RegMR:
		at := h.at(len(h.scratch)/2 + mrand.IntN(1<<16))
		le.PutUint64(b[8:], at)
		le.PutUint64(b[16:], uint64(mrand.IntN(1<<17)))
		le.PutUint64(b[24:], at+uint64(mrand.IntN(2))<<12)
		le.PutUint32(b[32:], pd)
		le.PutUint32(b[36:], mrand.Uint32N(32))
	case abi.CreateQP:
		le.PutUint32(b[16:], pd)
		le.PutUint32(b[20:], cq)
		le.PutUint32(b[24:], cq)
		b[53] = abi.TypeRC
		b[54] &= 1
	case abi.CreateCQ:
		le.PutUint32(b[24:], ^uint32(0)*uint32(mrand.IntN(2)))
	}
	// Ask for a small ring instead of a large ring, because a large ring needs much memory. Sizes
	// above 1<<20 stay, because the device refuses them.
	if c == abi.CreateCQ && le.Uint32(b[16:]) > 64 && le.Uint32(b[16:]) <= 1<<20 {
		le.PutUint32(b[16:], 5)
	}
	return h.command(c, out, b)
}

// descriptor writes to the number of a duplicate of a device's file. Just before, the duplicate may
// have been closed, or replaced by another file.
func (h *rdmaAbuser) descriptor(b []byte) error {
	fd, err := unix.Dup([]int{h.uverbs, h.cm}[mrand.IntN(2)])
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	by := fd
	switch mrand.IntN(4) {
	case 0:
		unix.Close(fd)
	case 1:
		by = h.uverbs
	case 2:
		by = h.cm
	default:
		if by, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		defer unix.Close(by)
	}
	if by != fd {
		if err := unix.Dup3(by, fd, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	le.PutUint32(b, uint32(abi.QueryPort))
	return h.write(fd, b)
}

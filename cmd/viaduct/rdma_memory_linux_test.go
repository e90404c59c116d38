//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/testkit"
)

// asRDMAMemory makes the test binary one of the programs of TestRDMAMemory. The value is "first
// MODE PORT", "second ..." or "after SOCKET".
const asRDMAMemory = "VIADUCT_TEST_RDMA_MEMORY"

// A program registers memory and lets a child process use the queues. Then the program executes
// another program, with other memory at the same addresses. Requests still in the queues must not
// access the new memory, neither over a connection nor by the unchanged process number.
func TestRDMAMemory(t *testing.T) {
	lengthy(t, "11 s")
	t.Parallel()
	for _, mode := range []string{"read", "write"} {
		for _, flags := range [][]string{nil, {"--tcp"}} {
			t.Run(strings.Join(append([]string{mode}, flags...), " "), func(t *testing.T) {
				args := append(append([]string{"run", "--rdma"}, flags...), "--", "env", calm,
					fmt.Sprintf("%s=first %s %d", asRDMAMemory, mode, freePort(t)), os.Args[0])
				r := goodLong(t, args...)
				if !strings.Contains(r.stdout, "second: done") {
					t.Errorf("the second process says %q", r.stdout)
				}
				t.Log(strings.TrimSpace(r.stdout))
			})
		}
	}
}

func rdmaMemory(arg string) error {
	var role, mode string
	var port uint16
	switch role, _, _ = strings.Cut(arg, " "); role {
	case "first":
		if _, err := fmt.Sscan(arg, &role, &mode, &port); err != nil {
			return err
		}
		return rdmaFirst(mode, port)
	case "second":
		return rdmaSecond(arg)
	}
	return rdmaAfter(arg)
}

const (
	sharedAt  = 0x2000000000 // both programs of the first process map memory there
	sharedLen = 64 << 10
	// Descriptor numbers in the second process.
	uverbsFD, cmFD, socketFD = 3, 4, 5
)

// fixedMemory maps sharedLen bytes at sharedAt and fills them with a byte.
func fixedMemory(with byte) ([]byte, error) {
	b, err := mapAt(sharedAt, sharedLen)
	for i := range b {
		b[i] = with
	}
	return b, err
}

// mapAt maps n bytes of private memory at addr. It fails if the range is in use.
func mapAt(addr uintptr, n int) ([]byte, error) {
	at, _, e := unix.Syscall6(unix.SYS_MMAP, addr, uintptr(n), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	if e != 0 {
		return nil, e
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n), nil
}

// An rdmaEnd is a queue pair of a program, and the queue pair's memory.
type rdmaEnd struct {
	*rdmaAbuser
	stag, handle, qp    uint32
	pd, mr, cqHandle    uint32
	sqKey, rqKey, cqKey int64
	sq, cq              []byte
	posted, taken       uint32
	doorbell            int // descriptor to which doorbells are written
}

const endEntries = 16

// newRDMAEnd creates an end whose memory is at addr. First it creates and destroys skip objects of
// each kind, so that the end gets greater handles.
func newRDMAEnd(port uint16, addr uint64, n, skip int) (*rdmaEnd, error) {
	h := &rdmaAbuser{port: port}
	e := &rdmaEnd{rdmaAbuser: h}
	var err error
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	if h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if h.cm, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return nil, err
	}
	e.doorbell = h.uverbs
	must := func(e error, what string) {
		if e != nil && err == nil {
			err = fmt.Errorf("%s: %w", what, e)
		}
	}
	answer := h.at(0)
	must(h.command(abi.GetContext, 16, answer), "get_context")
	for i := range skip + 1 {
		must(h.command(abi.AllocPD, 8, answer), "alloc_pd")
		e.pd = h.word(0)
		must(h.command(abi.RegMR, 20, answer, addr, uint64(n), addr, e.pd, uint32(7), uint64(1)), "reg_mr")
		e.mr, e.stag = h.word(0), h.word(1)
		must(h.command(abi.CreateCQ, 24, answer, uint64(1), uint32(64), uint32(0), int32(-1), uint32(0), uint64(0)),
			"create_cq")
		e.cqHandle = h.word(0)
		e.cqKey = int64(le.Uint64(h.scratch[16:]))
		must(h.command(abi.CreateQP, 64, answer, uint64(2), e.pd, e.cqHandle, e.cqHandle,
			uint32(0), uint32(endEntries-1), uint32(endEntries),
			uint32(4), uint32(4), uint32(0), uint32(2<<8), uint32(0)), "create_qp")
		e.handle, e.qp = h.word(0), h.word(1)
		e.sqKey, e.rqKey = int64(le.Uint64(h.scratch[48:])), int64(le.Uint64(h.scratch[56:]))
		if i < skip {
			must(e.endObjects(), "the end of what is skipped")
		}
	}
	if err != nil {
		return nil, err
	}
	return e, e.mapRings(h.uverbs)
}

// endObjects destroys the objects created by newRDMAEnd.
func (e *rdmaEnd) endObjects() error {
	return errors.Join(e.command(abi.DestroyQP, 4, e.at(0), e.handle, uint32(0)),
		e.command(abi.DestroyCQ, 8, e.at(0), e.cqHandle, uint32(0)),
		e.command(abi.DeregMR, 0, e.mr), e.command(abi.DeallocPD, 0, e.pd))
}

// close unmaps the memory and closes the device's files.
func (e *rdmaEnd) close() {
	for _, m := range [][]byte{e.sq, e.cq, e.scratch} {
		unix.Munmap(m)
	}
	unix.Close(e.uverbs)
	unix.Close(e.cm)
}

func (e *rdmaEnd) mapRings(fd int) (err error) {
	if e.sq, err = unix.Mmap(fd, e.sqKey, endEntries*abi.SQELen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	e.cq, err = unix.Mmap(fd, e.cqKey, 64*abi.CQELen+abi.CQCtrlLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

func wordAt(b []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&b[at])) }

// writes posts n Writes of size bytes each, from addr to raddr, before ringing the doorbell once.
func (e *rdmaEnd) writes(n, size int, stag uint32, addr uint64, rkey uint32, raddr uint64) error {
	for i := range n {
		e.post(abi.WROpWrite, size, stag, addr+uint64(i*size*2), rkey, raddr+uint64(i*size)) // not adjacent
	}
	return e.ring()
}

// post writes a request with one element into the send queue. post does not ring the doorbell.
func (e *rdmaEnd) post(op abi.WROp, size int, stag uint32, addr uint64, rkey uint32, raddr uint64) {
	at := int(e.posted%endEntries) * abi.SQELen
	b := abi.Body(e.sq[at : at+abi.SQELen])
	b.Put64(0, uint64(e.posted))
	b.Put32(12, rkey)
	b.Put64(16, raddr)
	b.Put64(24, addr)
	b.Put32(32, uint32(size))
	b.Put32(36, stag)
	atomic.StoreUint32(wordAt(b, abi.FlagsAt), abi.Valid|abi.Signalled|1<<16|uint32(op)<<24)
	e.posted++
}

// ring rings the doorbell.
func (e *rdmaEnd) ring() error {
	b := le.AppendUint32(nil, uint32(abi.PostSend))
	b = append(b, 8, 0, 1, 0)
	b = le.AppendUint64(b, e.at(0))
	b = le.AppendUint32(b, e.handle)
	b = append(b, make([]byte, 32-len(b))...)
	return e.rdmaAbuser.write(e.doorbell, b)
}

// completions waits up to a minute for n completions, and returns their statuses.
func (e *rdmaEnd) completions(n int) (got []abi.WCStatus, err error) {
	for end := time.Now().Add(testkit.Patience); len(got) < n; time.Sleep(time.Millisecond) {
		at := int(e.taken%64) * abi.CQELen
		w := wordAt(e.cq, at+abi.FlagsAt)
		if v := atomic.LoadUint32(w); v&abi.Valid != 0 {
			got = append(got, abi.WCStatus(v>>16))
			atomic.StoreUint32(w, 0)
			e.taken++
		} else if time.Now().After(end) {
			return got, fmt.Errorf("%d of %d completions", len(got), n)
		}
	}
	return got, nil
}

func expect(fd int, want byte) ([]byte, error) {
	b := make([]byte, 64)
	n, err := unix.Read(fd, b)
	if err != nil || n == 0 || b[0] != want {
		return nil, fmt.Errorf("%q in place of %q: %v", b[:max(n, 0)], want, err)
	}
	return b[1:n], nil
}

// rdmaFirst registers memory, starts and connects to the second process, and executes another
// program.
func rdmaFirst(mode string, port uint16) error {
	if _, err := fixedMemory('A'); err != nil {
		return err
	}
	e, err := newRDMAEnd(port, sharedAt, sharedLen, 0)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=second %s %d %d %d %d %d", asRDMAMemory, mode,
		port, e.stag, e.handle, e.sqKey, e.cqKey))
	for _, fd := range []int{e.uverbs, e.cm, pair[1]} {
		c.ExtraFiles = append(c.ExtraFiles, os.NewFile(uintptr(fd), "passed"))
	}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	unix.Close(pair[1])
	if _, err := expect(pair[0], 'L'); err != nil {
		return err
	}
	id, err := e.dial(e.qp)
	if err != nil {
		return err
	}
	if got, err := e.event(abi.EvEstablished); err != nil || got != id {
		return fmt.Errorf("not connected: %w", err)
	}
	if _, err := unix.Write(pair[0], []byte("C")); err != nil {
		return err
	}
	if _, err := expect(pair[0], 'X'); err != nil {
		return err
	}
	os.Setenv(asRDMAMemory, fmt.Sprintf("after %d", pair[0]))
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETFD, 0); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args[:1], os.Environ())
}

// rdmaAfter is the program executed by the first process, and fails if the second process fails.
func rdmaAfter(arg string) error {
	var role string
	var fd int
	if _, err := fmt.Sscan(arg, &role, &fd); err != nil {
		return err
	}
	b, err := fixedMemory('S')
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("R")); err != nil {
		return err
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(-1, &ws, 0, nil); err != nil {
		return err
	}
	for i := range b {
		if b[i] != 'S' {
			return fmt.Errorf("after: byte %d was written", i)
		}
	}
	if ws.ExitStatus() != 0 {
		return fmt.Errorf("after: the second process ended with %d", ws.ExitStatus())
	}
	return nil
}

// rdmaSecond accepts the connection, and uses the queues of both processes.
func rdmaSecond(arg string) error {
	var role, mode string
	var port uint16
	first := &rdmaEnd{}
	if _, err := fmt.Sscan(arg, &role, &mode, &port, &first.stag, &first.handle, &first.sqKey, &first.cqKey); err != nil {
		return err
	}
	mem, err := unix.Mmap(-1, 0, sharedLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	for i := range mem {
		mem[i] = 'C'
	}
	own, err := newRDMAEnd(port, at, len(mem), 0)
	if err != nil {
		return err
	}
	first.rdmaAbuser = own.rdmaAbuser
	if err := first.mapRings(uverbsFD); err != nil {
		return err
	}
	first.doorbell = 1000 // a number in the reserved range
	if err := unix.Dup3(uverbsFD, first.doorbell, unix.O_CLOEXEC); err != nil {
		return err
	}
	if _, err := own.listen(); err != nil {
		return err
	}
	if _, err := unix.Write(socketFD, []byte("L")); err != nil {
		return err
	}
	if err := own.accept(own.qp); err != nil {
		return err
	}
	if _, err := own.event(abi.EvEstablished); err != nil {
		return err
	}
	if _, err := expect(socketFD, 'C'); err != nil {
		return err
	}
	e := first
	post := func(to int) error { return first.writes(4, 100, first.stag, sharedAt, own.stag, at+uint64(to)) }
	if mode == "write" {
		e = own
		post = func(to int) error { return own.writes(4, 100, own.stag, at, first.stag, sharedAt+uint64(to)) }
	}
	if err := post(0); err != nil {
		return err
	}
	before, err := e.completions(4)
	if err != nil {
		return err
	}
	for _, s := range before {
		if s != abi.WCSuccess {
			return fmt.Errorf("second: statuses %v of what is right", before)
		}
	}
	if mode == "read" {
		// Over TCP, Writes complete when sent, so that the bytes may arrive later.
		for end := time.Now().Add(testkit.Patience); !bytes.Equal(mem[:400], bytes.Repeat([]byte("A"), 400)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Errorf("second: %q was written", mem[:400])
			}
		}
	}
	if _, err := unix.Write(socketFD, []byte("X")); err != nil {
		return err
	}
	if _, err := expect(socketFD, 'R'); err != nil {
		return err
	}
	if err := post(8192); err != nil {
		return err
	}
	after, err := e.completions(4)
	if err != nil {
		return err
	}
	if i := bytes.IndexFunc(mem[400:], func(r rune) bool { return r != 'C' }); i >= 0 {
		return fmt.Errorf("second: %q was written to byte %d", mem[400+i], 400+i)
	}
	if mode == "read" && after[0] == abi.WCSuccess {
		return errors.New("second: memory that is gone was read with success")
	}
	fmt.Printf("second: done, statuses %v, then %v\n", before, after)
	return nil
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/iwarp"
)

// ownProcess returns this process in the role of a program with registered memory.
func ownProcess(t *testing.T, ps *processes) *process {
	t.Helper()
	return processByNumber(t, ps, os.Getpid())
}

func processByNumber(t *testing.T, ps *processes, pid int) *process {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{pid: pid, fd: fd}
	ps.add(p)
	return p
}

// batchOf returns entries of Writes, each with the parts of a list.
func (e *linkEnd) batchOf(lists ...[]part) []taken {
	batch := make([]taken, len(lists))
	for i, parts := range lists {
		raw := make(abi.Body, abi.SQELen)
		raw.Put32(abi.FlagsAt, abi.Valid|uint32(len(parts))<<16|uint32(abi.WROpWrite)<<24)
		e.sges(raw[24:], parts)
		batch[i].valid = abi.ParseSend((*[abi.SQELen]byte)(raw), &batch[i].entry)
	}
	return batch
}

// TestGather: a single call reads the payload of all valid and short requests before any Read,
// whatever is wrong with the others.
func TestGather(t *testing.T) {
	a, _ := linkedPair(t, true)
	fill(a)
	other := a.register(0, 4096, abi.AccessLocalWrite, newDomain(a.q.x.dev))
	lists := [][]part{
		{{off: 0, n: 64}},
		{{off: 64, n: 64}}, // adjacent to the one before
		{{off: 5000, n: 1}, {off: 9000, n: 0}, {off: 70, n: 9}}, // several pieces
		{{off: 3000, n: gatherEach + 1}},                        // long
		{{off: 3000, n: gatherEach - 1}, {off: 0, n: 2}},
		{{off: 3000, n: gatherEach}},
		{{off: 100, n: 20, r: other}}, // another domain's
		{{off: linkMemory - 8, n: 9}}, // beyond the end
		{{off: 7, n: 7}},
		{},               // no element
		{{off: 1, n: 1}}, // with a fence
		{{off: 2, n: 2}}, // inline
		{{off: 3, n: 3}}, // unknown operation
		{{off: 4, n: 4}},
		{{off: 5, n: 5}}, // a Read
		{{off: 6, n: 6}}, // after the Read
	}
	batch := a.batchOf(lists...)
	batch[10].entry.Flags |= abi.ReadFence
	batch[11].entry.Flags |= abi.Inline
	batch[12].entry.Op = 9
	batch[14].entry.Op = abi.WROpRead
	var g gatherer
	g.gather(a.q, batch)
	for i, parts := range lists {
		var want []byte
		switch i {
		case 0, 1, 2, 5, 8, 13:
			for _, p := range parts {
				want = append(want, a.mem[p.off:][:p.n]...)
			}
		}
		if got := batch[i].data; !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("request %d: %d bytes %x, want %d bytes %x", i, len(got), got, len(want), want)
		}
	}
	for _, r := range []*region{a.whole, other} {
		if r.holds != 0 {
			t.Errorf("%d holds are left", r.holds)
		}
	}
	batch = a.batchOf([]part{{off: 0, n: 64}})
	g.gather(a.q, batch)
	if batch[0].data != nil {
		t.Error("a single request was read ahead")
	}
}

// TestGatherBuffers: a buffer is reused once the stream needs the payload of no request in the
// buffer, and not earlier.
func TestGatherBuffers(t *testing.T) {
	a, _ := linkedPair(t, true)
	fill(a)
	var g gatherer
	two := func(off int) []taken {
		b := a.batchOf([]part{{off: off, n: 64}}, []part{{off: off + 1000, n: 64}})
		g.gather(a.q, b)
		if b[1].data == nil {
			t.Fatal("not read")
		}
		return b
	}
	first := two(0)
	for i := range first {
		first[i].buf.uses++
	}
	second := two(2000)
	if first[0].buf == second[0].buf {
		t.Fatal("a buffer that is in use was used again")
	}
	g.done(first[0].buf)
	second[0].buf.uses++
	third := two(4000)
	if third[0].buf == first[0].buf || third[0].buf == second[0].buf {
		t.Fatal("a buffer that is in use was used again")
	}
	if !bytes.Equal(first[1].data, a.mem[1000:1064]) {
		t.Error("payload was written over")
	}
	g.done(first[1].buf)
	third[0].buf.uses++
	if fourth := two(6000); fourth[0].buf != first[0].buf {
		t.Error("a buffer that is free was not used again")
	}
}

// A request whose memory is gone fails alone and with a separate status, although the payload would
// have been read together with others. The earlier requests complete, and no byte of the others is
// lost or changed.
func TestGatherFault(t *testing.T) {
	const n, bad = 12, 7 // the completion queue has 16 entries
	for _, linked := range []bool{false, true} {
		t.Run(fmt.Sprintf("linked %v", linked), func(t *testing.T) {
			a, b := linkedPair(t, linked)
			fill(a, b)
			want := bytes.Clone(b.mem)
			page := os.Getpagesize()
			hole := 64 * page // offset of a page that is missing in the memory of a
			if _, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(a.at(hole)), uintptr(page), 0); e != 0 {
				t.Fatal(e)
			}
			defer func() { // map the page again, so that the whole memory can be freed
				if _, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(a.at(hole)), uintptr(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANON, ^uintptr(0), 0); e != 0 {
					t.Error(e)
				}
			}()
			for i := range n {
				off := 3000 * i
				if i == bad {
					off = hole + 100
				} else if i < bad {
					copy(want[500*i:][:200], a.mem[off:][:200])
				}
				a.post(uint64(i), abi.WROpWrite, 0, b.at(500*i), b.whole.iw.STag(), part{off: off, n: 200})
			}
			a.ringDoorbell()
			got := a.poll(n)
			for i, o := range got {
				s := abi.WCSuccess
				switch {
				case i == bad:
					s = abi.WCLocProt
				case i > bad:
					s = abi.WCFlush
				}
				if o.ID != uint64(i) || o.Status != s {
					t.Errorf("completion %d is %+v, want status %d", i, o, s)
				}
			}
			within(t, "the end of both", func() { <-a.iw.Ended(); <-b.iw.Ended() })
			if i := firstDifference(want, b.mem); i >= 0 {
				t.Errorf("the peer's memory differs from byte %d on", i)
			}
		})
	}
}

// Writes adjacent in the peer's memory are executed together, up to the first forbidden Write.
func TestLinkWrites(t *testing.T) {
	a, b := linkedPair(t, true)
	fill(a, b)
	half := b.register(0, 8192, abi.AccessLocalWrite|abi.AccessRemoteWrite, b.q.pd)
	want := bytes.Clone(b.mem)
	for i := range 10 { // the sixth begins within the region and ends beyond it
		at := 8192 - 5*100 - 50 + 100*i
		if i < 5 {
			copy(want[at:], a.mem[2000*i:][:100])
		}
		a.post(uint64(i), abi.WROpWrite, 0, b.at(at), half.iw.STag(), part{off: 2000 * i, n: 100})
	}
	a.ringDoorbell()
	within(t, "the end of both", func() { <-a.iw.Ended(); <-b.iw.Ended() })
	for i, o := range a.poll(10) {
		if o.ID != uint64(i) || i < 5 && o.Status != abi.WCSuccess {
			t.Errorf("completion %d is %+v", i, o)
		}
	}
	if i := firstDifference(want, b.mem); i >= 0 {
		t.Errorf("the peer's memory differs from byte %d on", i)
	}
	if e, ok := errors.AsType[*iwarp.TerminateError](b.iw.Err()); !ok || e.Remote {
		t.Errorf("the peer's stream ended by %v, want a Terminate of its own", b.iw.Err())
	}
}

// The number of a process is not used any more after an exec or the end of the process.
func TestProcess(t *testing.T) {
	var ps processes
	src := []byte("the payload of a request")
	to := make([]byte, len(src))
	at := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&src[0])), Len: len(src)}}
	own := ownProcess(t, &ps)
	if n := own.read(to, at); n != len(src) || !bytes.Equal(to, src) {
		t.Fatalf("%d bytes %q", n, to[:n])
	}
	if got := ps.of(unix.Gettid()); !reflect.DeepEqual(got, []*process{own}) {
		t.Errorf("a thread of it is one of %v", got)
	}
	if got := ps.of(1); got != nil {
		t.Errorf("another process is one of %v", got)
	}
	own.end()
	if n := own.read(to, at); n != 0 {
		t.Errorf("%d bytes after the process was said to execute another program", n)
	}
	ps.drop(own)
	if got := ps.of(os.Getpid()); got != nil {
		t.Errorf("%v is left", got)
	}

	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := processByNumber(t, &ps, c.Process.Pid)
	defer ps.drop(p)
	if !p.lives() {
		t.Error("a process that runs does not live")
	}
	in.Close()
	// The process has ended and was not waited for, so that the number cannot be used again yet.
	within(t, "its end", func() {
		for p.lives() {
		}
	})
	// Pretend that another process has the number. Bytes read from the other process are discarded.
	p.pid = os.Getpid()
	clear(to)
	if n := p.read(to, at); n != 0 {
		t.Errorf("%d bytes by the number of a process that has ended", n)
	}
	c.Wait()
}

// Long payload is moved by the number of the process if allowed, and otherwise, or if memory is
// missing, like short payload.
func TestMoveLong(t *testing.T) {
	a, _ := linkedPair(t, true)
	m := a.whole.mem
	to := make([]byte, 4*long)
	at := []unix.RemoteIovec{{Base: uintptr(a.at(100)), Len: len(to)}}
	if n := m.by.read(to, at); n != len(to) {
		t.Fatalf("%d bytes by the number of the process", n)
	}
	for _, c := range []struct{ child, over bool }{{}, {child: true}, {child: true, over: true}} {
		m.by.child = c.child
		if c.over {
			m.by.end()
		}
		fill(a)
		clear(to)
		if err := m.ReadAt(to, a.at(100)); err != nil || !bytes.Equal(to, a.mem[100:][:len(to)]) {
			t.Errorf("%+v: wrong bytes, or %v", c, err)
		}
		if m.by.write(to, a.at(200)) != (c.child && !c.over) {
			t.Errorf("%+v: written by the number or not: wrong", c)
		}
		for i := range to {
			to[i] = ^to[i]
		}
		if err := m.WriteAt(to, a.at(100)); err != nil || !bytes.Equal(to, a.mem[100:][:len(to)]) {
			t.Errorf("%+v: wrong bytes written, or %v", c, err)
		}
		for _, move := range []func([]byte, uint64) error{m.ReadAt, m.WriteAt} {
			if err := move(to, 4096); err != errFault {
				t.Errorf("%+v: %v of memory that is not there, want %v", c, err, errFault)
			}
		}
	}
}

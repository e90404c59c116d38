package nvme

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/nvmewire"
)

func mapped(t *testing.T, f *os.File) Namespace {
	t.Helper()
	n, err := MapFile(f, false)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this system has no mapped files")
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMappedFile: bytes written by a host to a mapped file appear in the file, and the host reads
// bytes written to the file.
func TestMappedFile(t *testing.T) {
	f := newFile(t, 1<<20)
	_, addr := serveWith(t, crcConfig(false), mapped(t, f))
	_, io := attach(t, addr, 8)
	want := pattern(256<<10, 7)
	io.write(8, want)
	io.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpFlush, NSID: 1})
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 8*512); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file does not have what was written: %v", err)
	}
	want = pattern(64<<10, 8)
	if _, err := f.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(io.read(0, len(want)), want) {
		t.Error("the host does not read what the file has")
	}
}

// TestMappedFileShorter truncates a mapped file while a host uses it. Commands beyond the new end
// must fail or end their queue. The process and the other queue must continue.
func TestMappedFileShorter(t *testing.T) {
	for _, crc := range []bool{true, false} {
		for name, do := range map[string]func(*hostQueue) nvmewire.SQE{
			"read":    func(h *hostQueue) nvmewire.SQE { return h.rw(nvmewire.OpRead, 1024, 128<<10) },
			"write":   func(h *hostQueue) nvmewire.SQE { return h.rw(nvmewire.OpWrite, 1024, 128<<10) },
			"short":   func(h *hostQueue) nvmewire.SQE { return h.rw(nvmewire.OpRead, 1024, 512) },
			"compare": func(h *hostQueue) nvmewire.SQE { return h.rw(nvmewire.OpCompare, 1024, 4096) },
			"capsule": func(h *hostQueue) nvmewire.SQE {
				s := h.rw(nvmewire.OpWrite, 1024, 4096)
				s.SGL = nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 4096}
				return s
			},
		} {
			t.Run(fmt.Sprintf("%s, CRC %v", name, crc), func(t *testing.T) {
				f := newFile(t, 1<<20)
				tg, addr := serveWith(t, crcConfig(crc), mapped(t, f))
				adm, id := admin(t, addr, defaultNQN)
				setQueues(adm, 2)
				a, b := ioQueue(t, addr, id, 1, 8), ioQueue(t, addr, id, 2, 8)
				a.read(1024, 4096)
				if err := f.Truncate(64 << 10); err != nil {
					t.Fatal(err)
				}
				s := do(a)
				var inline []byte
				if s.SGL.Type == nvmewire.SGLOffset {
					inline = make([]byte, 4096)
				}
				a.post(s, inline)
				if e, ok := a.next(); ok && e.Status != nvmewire.InternalError {
					t.Errorf("%v, want an error or the end of the queue", e.Status)
				}
				b.write(0, pattern(4096, 1))
				if n := len(tg.Queues()); n < 2 {
					t.Errorf("%d queues are left", n)
				}
			})
		}
	}
}

// A slowDisk delays each read until the test lets the read proceed.
type slowDisk struct {
	onlyReader
	reading chan struct{}
	proceed chan struct{}
}

func (d *slowDisk) ReadAt(p []byte, off int64) (int, error) {
	d.reading <- struct{}{}
	<-d.proceed
	return d.onlyReader.ReadAt(p, off)
}

// TestRelease checks that Release is called once per namespace: for a removed namespace after the
// end of the command that reads there, for others in Close. Resize must not call it.
func TestRelease(t *testing.T) {
	tg, addr := serve(t)
	var slow, kept, resized atomic.Int32
	disk := &slowDisk{onlyReader{make([]byte, 4096)}, make(chan struct{}), make(chan struct{})}
	add := func(n Namespace, count *atomic.Int32) uint32 {
		t.Helper()
		n.Release = func() { count.Add(1) }
		id, err := tg.Add(n)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := add(Namespace{Data: disk, Size: 4096}, &slow)
	add(Memory(4096), &kept)
	third := add(Memory(8192), &resized)
	_, io := attach(t, addr, 8)
	io.post(io.rw(nvmewire.OpRead, 0, 512), nil)
	<-disk.reading
	if err := tg.Remove(id); err != nil {
		t.Fatal(err)
	}
	if slow.Load() != 0 {
		t.Error("released while a command reads it")
	}
	close(disk.proceed)
	if e, ok := io.next(); !ok || e.Status != nvmewire.OK {
		t.Errorf("%v, %v", e.Status, ok)
	}
	reaches(t, &slow, 1)
	s := io.rw(nvmewire.OpRead, 0, 512)
	io.want(nvmewire.InvalidNamespace, s)
	if err := tg.Resize(third, 4096); err != nil {
		t.Fatal(err)
	}
	s.NSID = third
	io.want(nvmewire.OK, s)
	io.want(nvmewire.OK, nvmewire.SQE{Opcode: nvmewire.OpFlush, NSID: 0xffffffff})
	if err := tg.Remove(third); err != nil {
		t.Fatal(err)
	}
	reaches(t, &resized, 1)
	s.NSID = 2 // keeps the namespace in use until its queue ends
	io.post(s, nil)
	io.qp.Abort()
	left(t, tg, 1)
	if kept.Load() != 0 {
		t.Error("released before its time")
	}
	tg.Close()
	if slow.Load() != 1 || kept.Load() != 1 || resized.Load() != 1 {
		t.Errorf("released %d, %d and %d times, want once each", slow.Load(), kept.Load(), resized.Load())
	}
	if _, err := tg.Add(Memory(4096)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed target adds a namespace: %v", err)
	}
}

func reaches(t *testing.T, n *atomic.Int32, want int32) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience); n.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d, want %d", n.Load(), want)
		}
	}
}

// TestReadWhileWritten reads memory that changes all the time, as if other hosts wrote to it. The
// bytes may be a mixture of old and new bytes, but the CRC must match the sent bytes.
func TestReadWhileWritten(t *testing.T) {
	if raceEnabled {
		t.Skip("the race is the host's, and wanted")
	}
	const n, reads = 128 << 10, 400
	ns := Memory(n)
	_, addr := serveWith(t, crcConfig(true), ns)
	_, io := attach(t, addr, 16)
	disk := ns.Data.(*memory).b
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				for j := 0; j < n; j += 512 {
					disk[j] = byte(i)
				}
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	l := newLoop(io, io.rw(nvmewire.OpRead, 0, n), 0)
	for range reads {
		l.post(t)
		l.response(t)
	}
}

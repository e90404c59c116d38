package nvme

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// A loop repeats a command without allocating.
type loop struct {
	h       *hostQueue
	capsule []byte
	sg      []iwarp.SGE
	recv    [][]iwarp.SGE
}

func newLoop(h *hostQueue, s nvmewire.SQE, data int) *loop {
	s.Flags = 0x40
	l := &loop{h: h, capsule: append(s.Append(nil), make([]byte, data)...)}
	l.sg = []iwarp.SGE{iwarp.Buf(l.capsule)}
	for _, b := range h.bufs {
		l.recv = append(l.recv, []iwarp.SGE{iwarp.Buf(b)})
	}
	return l
}

func (l *loop) post(t testing.TB) {
	if err := l.h.qp.Post(iwarp.SendWR{SG: l.sg, Unsignaled: true}); err != nil {
		t.Fatal(err)
	}
}

func (l *loop) response(t testing.TB) {
	for end := time.Now().Add(time.Minute); ; {
		c, ok := l.h.qp.RecvCQ().Poll()
		switch {
		case !ok && time.Now().After(end):
			t.Fatal("no response")
		case !ok:
			runtime.Gosched()
			continue
		case c.Status != iwarp.StatusOK:
			t.Fatal(l.h.qp.Err())
		}
		if e, _ := nvmewire.ParseCQE(l.h.bufs[c.ID]); e.Status != nvmewire.OK {
			t.Fatal(e.Status)
		}
		if err := l.h.qp.PostRecv(iwarp.RecvWR{ID: c.ID, SG: l.recv[c.ID]}); err != nil {
			t.Fatal(err)
		}
		return
	}
}

// TestNoAllocations repeats commands with each kind of data transfer, and counts the allocations of
// both ends.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools at random, and has memory of its own")
	}
	_, addr := serve(t, Memory(1<<20))
	_, h := attach(t, addr, 32)
	inline := h.rw(nvmewire.OpWrite, 0, 4096)
	inline.SGL = nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 4096}
	for name, l := range map[string]*loop{
		"read":                 newLoop(h, h.rw(nvmewire.OpRead, 0, 4096), 0),
		"write":                newLoop(h, h.rw(nvmewire.OpWrite, 0, 4096), 0),
		"write in the capsule": newLoop(h, inline, 4096),
		"compare":              newLoop(h, h.rw(nvmewire.OpCompare, 8, 512), 0),
	} {
		clear(h.mem[:4096])
		once := func() { l.post(t); l.response(t) }
		for range 200 {
			once()
		}
		// The garbage collector empties pools, and commands fill the pools again: less than one
		// allocation per command is allowed.
		if n := testing.AllocsPerRun(1000, once); n >= 1 {
			t.Errorf("%s: %v allocations per command", name, n)
		}
	}
}

const idleQueues = 128

// TestIdleMemory measures the memory of a target with 128 idle I/O queues of 128 commands each. The
// host is another process.
func TestIdleMemory(t *testing.T) {
	if addr := os.Getenv("VIADUCT_NVME_HOST"); addr != "" {
		for range idleQueues / maxQueues {
			adm, id := admin(t, addr, defaultNQN)
			setQueues(adm, maxQueues)
			for q := range maxQueues {
				ioQueue(t, addr, id, uint16(q+1), 128).read(0, 4096)
			}
		}
		os.Stdout.WriteString("ready\n")
		io.Copy(io.Discard, os.Stdin)
		return
	}
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	tg, addr := serve(t, Memory(1<<20))
	before := settled()
	cmd := exec.Command(os.Args[0], "-test.run=^TestIdleMemory$")
	cmd.Env = append(os.Environ(), "VIADUCT_NVME_HOST="+addr)
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait(); left(t, tg, 0) }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	n := len(tg.Queues())
	got := inUse() - before
	t.Logf("%d queues: %d KiB", n, got>>10)
	if n < idleQueues || got > 4<<20 {
		t.Errorf("%d queues take %d bytes, want at most 4 MiB", n, got)
	}
}

// settled returns the memory in use once earlier tests have given back theirs.
func settled() int64 {
	before := inUse()
	for end := time.Now().Add(10 * time.Second); ; {
		time.Sleep(200 * time.Millisecond)
		now := inUse()
		if before-now < 64<<10 || time.Now().After(end) {
			return now
		}
		before = now
	}
}

// inUse returns the number of bytes of objects and stacks.
func inUse() int64 {
	var m runtime.MemStats
	for range 3 { // a pool is empty after two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

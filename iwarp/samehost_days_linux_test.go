package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// TestSameHostStopped stops a process while data is being sent. The streams must stay open, and
// continue after the process runs again. VIADUCT_TEST_STOPPED is the time for which it is stopped,
// 300 ms by default.
func TestSameHostStopped(t *testing.T) {
	stopped := 300 * time.Millisecond
	if s := os.Getenv("VIADUCT_TEST_STOPPED"); s != "" {
		var err error
		if stopped, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, listens := range []bool{false, true} {
		p := pumper{lends: listens}
		q, child, stop := p.withChild(t, listens, samehost.Require, nil)
		ended := make(chan int, 1)
		go func() { ended <- p.run(q) }()
		testkit.Eventually(t, "messages come", func() bool { return p.came.Load() > 100 })
		child.Process.Signal(syscall.SIGSTOP)
		awaitStopped(t, child.Process.Pid)
		testkit.Eventually(t, "what was under way has come", func() bool {
			before := p.came.Load()
			time.Sleep(stopped)
			return p.came.Load() == before
		})
		select {
		case n := <-ended:
			t.Fatalf("the stream has ended after %d messages: %v", n, q.Err())
		default:
		}
		before := p.came.Load()
		child.Process.Signal(syscall.SIGCONT)
		testkit.Eventually(t, "messages come again", func() bool { return p.came.Load() > before+100 })
		stop()
		testkit.Await(t, "the stream ends", ended)
		q.Close()
	}
}

// TestSameHostDetached sends messages from memory of samehost.Alloc to a stopped peer. The memory
// must be deregistered and released at once, and the peer must get the messages unchanged.
func TestSameHostDetached(t *testing.T) {
	p := pumper{}
	q, child, stop := p.withChild(t, true, samehost.Require, nil)
	defer stop()
	if !q.Path().SharedMemory {
		t.Fatal(q.Path())
	}
	referred := 0
	for n := uint64(0); referred < 3; n++ {
		if n == 1000 {
			t.Fatalf("%d of %d messages were referred to", referred, n)
		}
		b, err := samehost.Alloc(pumpSize)
		if err != nil {
			t.Fatal(err)
		}
		r, err := q.Register(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint64(b, n)
		child.Process.Signal(syscall.SIGSTOP)
		awaitStopped(t, child.Process.Pid)
		if err := q.Post(SendWR{SG: []SGE{r.SGE(0, pumpSize)}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		c, err := q.SendCQ().Wait(ctx)
		cancel()
		done := err == nil
		if !done {
			referred++
		}
		within(t, "Close of the region", func() { // the peer stays stopped until then
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		for i := range b {
			b[i] = 0xee
		}
		if err := samehost.Free(b); err != nil {
			t.Error(err)
		}
		child.Process.Signal(syscall.SIGCONT)
		if !done {
			if c, err = q.SendCQ().Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if c.Status != StatusOK {
			t.Fatal(c.Status)
		}
		// The child ends if this is not message n.
		if c, err = q.RecvCQ().Wait(t.Context()); err != nil || c.Status != StatusOK {
			t.Fatalf("message %d: %v, %v", n, c.Status, err)
		}
		if err := q.PostRecv(RecvWR{ID: c.ID, SG: []SGE{Buf(p.bufs[c.ID])}}); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitStopped waits until process pid is stopped.
func awaitStopped(t *testing.T, pid int) {
	testkit.Eventually(t, "the child is stopped", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(b), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})
}

// TestSameHostOtherSession checks that a process of another session, and so of another process
// group, gets shared memory.
func TestSameHostOtherSession(t *testing.T) {
	for _, listens := range []bool{false, true} {
		var p pumper
		q, _, stop := p.withChild(t, listens, samehost.Require, &syscall.SysProcAttr{Setsid: true})
		if got := q.Path(); !got.SharedMemory {
			t.Errorf("the other session listens %v: %v", listens, got)
		}
		ended := make(chan int, 1)
		go func() { ended <- p.run(q) }()
		testkit.Eventually(t, "messages come", func() bool { return p.came.Load() > 100 })
		stop()
		testkit.Await(t, "the stream ends", ended)
		q.Close()
	}
}

// otherUser is the ID of a user that owns no process. It is not the ID that stands for unknown
// users.
const otherUser = 62345

// TestSameHostOtherUser checks that a process of another user gets TCP, as listener and as dialer,
// and no connection if shared memory is required.
func TestSameHostOtherUser(t *testing.T) {
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	try := exec.Command("/proc/self/exe", "-test.run=^$")
	try.SysProcAttr = attr
	if err := try.Run(); err != nil { // even root of a user namespace may lack the right
		t.Skip("SKIPPED: no process of another user can be started:", err)
	}
	for _, listens := range []bool{false, true} {
		var p pumper
		q, _, stop := p.withChild(t, listens, samehost.Auto, attr)
		if got := q.Path(); got.SharedMemory ||
			!strings.Contains(got.Why, "another user") && !strings.Contains(got.Why, "did not ask") {
			t.Errorf("the other user listens %v: %v", listens, got)
		}
		ended := make(chan int, 1)
		go func() { ended <- p.run(q) }()
		testkit.Eventually(t, "messages come", func() bool { return p.came.Load() > 100 })
		stop()
		testkit.Await(t, "the stream ends", ended)
		q.Close()
	}
}

// mixedSlots is the number of messages that fit into the memory for Writes. A pumper is at
// most pumpDepth messages ahead, so the peer has checked a slot before it is used again.
const mixedSlots = 2 * pumpDepth

// A mixer sends messages of random lengths, Writes and Reads, each followed by a message that
// describes it, and compares all received bytes.
type mixer struct {
	pumper
	q       *QueuePair
	pattern []byte // the same bytes at both ends
	into    []byte // memory that the peer writes to
	moved   uint64 // bytes that this end has sent, written or read
	remote  struct{ pattern, into RemoteAddr }
}

const mixedHeader = 16

// run sends count messages. The peer must send the same number.
func (m *mixer) run(ctx context.Context, seed uint64, count uint32) error {
	source, err := m.q.Register(m.pattern, RemoteRead)
	if err != nil {
		return err
	}
	sink := make([]byte, pumpSize)
	reads, err := m.q.Register(sink, 0)
	if err != nil {
		return err
	}
	m.into = make([]byte, mixedSlots*pumpSize)
	into, err := m.q.Register(m.into, RemoteWrite)
	if err != nil {
		return err
	}
	post := func(wr SendWR) error {
		if err := m.q.Post(wr); err != nil {
			return err
		}
		c, err := m.q.SendCQ().Wait(ctx)
		if err == nil {
			err = c.Err()
		}
		return err
	}
	r := mrand.New(mrand.NewPCG(seed, 0))
	var header [mixedHeader]byte
	sent := uint32(0)
	send := func() error {
		n, off := r.IntN(pumpSize-mixedHeader)>>r.IntN(4)+1, r.IntN(len(m.pattern)-pumpSize)
		part := m.pattern[off : off+n]
		op := sent % 3
		sg := []SGE{Buf(header[:])}
		switch op {
		case 0:
			sg = append(sg, Buf(part))
		case 1:
			at := m.remote.into
			at.TO += uint64(sent % mixedSlots * pumpSize)
			if err := post(SendWR{Op: OpWrite, SG: []SGE{Buf(part)}, Remote: at}); err != nil {
				return err
			}
		case 2:
			from := m.remote.pattern
			from.TO += uint64(off)
			if err := post(SendWR{Op: OpRead, SG: []SGE{reads.SGE(0, n)}, Remote: from}); err != nil {
				return err
			}
			if !bytes.Equal(sink[:n], part) {
				return fmt.Errorf("a Read of %d bytes is not what is there", n)
			}
		}
		for i, v := range []uint32{sent, op, uint32(off), uint32(n)} {
			binary.BigEndian.PutUint32(header[4*i:], v)
		}
		sent++
		m.moved += uint64(n)
		return post(SendWR{SG: sg})
	}
	receive := func(f func(b []byte) error) error {
		c, err := m.q.RecvCQ().Wait(ctx)
		if err == nil {
			err = c.Err()
		}
		if err == nil {
			err = f(m.bufs[c.ID][:c.Len])
		}
		if err != nil {
			return err
		}
		return m.q.PostRecv(RecvWR{ID: c.ID, SG: []SGE{Buf(m.bufs[c.ID])}})
	}
	var hello []byte
	for _, mr := range []*MemoryRegion{source, into} {
		hello = binary.BigEndian.AppendUint32(hello, mr.STag())
		hello = binary.BigEndian.AppendUint64(hello, mr.TO())
	}
	if err := post(SendWR{SG: []SGE{Buf(hello)}}); err != nil {
		return err
	}
	if err := receive(func(b []byte) error {
		for _, a := range []*RemoteAddr{&m.remote.pattern, &m.remote.into} {
			a.STag, a.TO = binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
			b = b[12:]
		}
		return nil
	}); err != nil {
		return err
	}
	for range pumpDepth / 2 {
		if err := send(); err != nil {
			return err
		}
	}
	for came := range count {
		if err := receive(func(b []byte) error {
			var h [4]uint32
			for i := range h {
				h[i] = binary.BigEndian.Uint32(b[4*i:])
			}
			if h[0] != came {
				return fmt.Errorf("message %d instead of %d", h[0], came)
			}
			got, want := b[mixedHeader:], m.pattern[h[2]:][:h[3]]
			switch h[1] {
			case 1:
				got = m.into[came%mixedSlots*pumpSize:][:h[3]]
			case 2:
				return nil
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("%d bytes of message %d are not what was sent", h[3], came)
			}
			return nil
		}); err != nil {
			return err
		}
		if sent < count {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestSameHostIntact sends messages, Writes and Reads of random lengths in both directions at once,
// and checks that no byte changes. VIADUCT_TEST_MIXED is the approximate number of MiB, 64 by
// default.
func TestSameHostIntact(t *testing.T) {
	mib := 64
	if s := os.Getenv("VIADUCT_TEST_MIXED"); s != "" {
		var err error
		if mib, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, lends := range []bool{false, true} {
		t.Run(fmt.Sprintf("lends=%t", lends), func(t *testing.T) { sameHostIntact(t, mib/2, lends) })
	}
}

func sameHostIntact(t *testing.T, mib int, lends bool) {
	const mean = 24 << 10 // mean size of a message in bytes
	count := uint32(mib << 20 / 2 / mean)
	pattern := make([]byte, 4<<20+12345)
	if lends {
		var err error
		if pattern, err = samehost.Alloc(len(pattern)); err != nil {
			t.Fatal(err)
		}
		defer samehost.Free(pattern)
	}
	mrand.NewChaCha8([32]byte{}).Read(pattern)
	ends := [2]mixer{{pattern: pattern}, {pattern: pattern}}
	l, err := Listen("127.0.0.1:0", ends[0].config(samehost.Require))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, 2)
	run := func(i int, q *QueuePair, err error) {
		if err == nil {
			ends[i].q = q
			err = ends[i].run(ctx, uint64(i), count)
		}
		if err != nil {
			cancel() // the other end would wait for this end for ever
		}
		errs <- err
	}
	go func() {
		q, err := l.Accept(ctx)
		run(0, q, err)
	}()
	q, err := Dial(ctx, l.Addr().String(), ends[1].config(samehost.Require))
	go run(1, q, err)
	for range ends {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	for i := range ends {
		if p := ends[i].q.Path(); !p.SharedMemory {
			t.Error(p)
		}
	}
	closeBoth(ends[0].q, ends[1].q)
	t.Logf("%d MiB", (ends[0].moved+ends[1].moved)>>20)
}

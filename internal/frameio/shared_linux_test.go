package frameio

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// goroutines returns the number of goroutines that have function f of package attend on their
// stack.
func goroutines(f string) (n int) {
	b := make([]byte, 4<<20)
	for g := range strings.SplitSeq(string(b[:runtime.Stack(b, true)]), "\n\n") {
		if strings.Contains(g, "internal/attend."+f+"(") {
			n++
		}
	}
	return n
}

// The functions of attend's goroutines, and the thresholds of package attend.
const (
	attendants = "(*attendant).run"
	pollers    = "(*sharedPoller).run"
	crowdBytes = 64 << 10               // bytes from several connections that make a poller pause
	sweepEvery = 100 * time.Millisecond // period of the search for idle attendants
)

// onePoller makes all connections of the test share one poller.
func onePoller(t *testing.T) {
	old := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// TestIdle: an idle connection has no goroutine and no descriptor except its socket, and a busy
// connection has a goroutine and a second descriptor until it has been idle for a moment. Both
// connections must receive arrivals.
func TestIdle(t *testing.T) {
	const pairs = 20
	before := testkit.OpenFiles()
	var got atomic.Uint32
	each := make(chan struct{}, 1000)
	var as, bs []*lengthFramed
	for range pairs {
		a, b := kinds[1].connect(t)
		b.got = func([]byte) { got.Add(1); each <- struct{}{} }
		a.c.Start(nil)
		b.c.Start(nil)
		as, bs = append(as, a), append(bs, b)
	}
	idle := func() {
		t.Helper()
		testkit.Eventually(t, "no goroutine waits for a connection", func() bool { return goroutines(attendants) == 0 })
		testkit.Eventually(t, "each connection has one descriptor",
			func() bool { return testkit.OpenFiles() <= before+2*pairs+4+2*min(runtime.GOMAXPROCS(0), 8) })
	}
	for range 3 {
		idle()
		// A goroutine that another one has relieved may still be about to end.
		testkit.Eventually(t, "few goroutines poll", func() bool {
			n := goroutines(pollers)
			return n >= 1 && n <= (runtime.GOMAXPROCS(0)+1)/2
		})
		before, sent := got.Load(), uint32(0)
		for _, a := range as { // one by one, so that each connection gets few bytes
			a.post([]byte("x"))
			a.c.Kick()
			sent++
			testkit.Eventually(t, "a frame", func() bool { return got.Load() == before+sent })
		}
		if n := goroutines(attendants); n > 0 {
			t.Errorf("%d goroutines for a frame each", n)
		}
		for len(each) > 0 {
			<-each
		}
		testkit.Eventually(t, "a goroutine of its own for the busy connection", func() bool {
			for range 32 {
				as[0].post([]byte("x"))
				as[0].c.Kick()
				sent++
				testkit.Await(t, "a frame of many", each)
			}
			return goroutines(attendants) > 0
		})
		bs[1].c.Poll()
		as[1].post([]byte("x"))
		as[1].c.Kick()
		sent++
		testkit.Eventually(t, "a frame of the connection that was polled",
			func() bool { return got.Load() == before+sent })
	}
	idle()
}

// TestSharedAtWork: no frame is lost, delayed or reordered, whichever goroutine receives and
// wherever the connection waits at that moment.
func TestSharedAtWork(t *testing.T) {
	const pairs = 6
	fs := frames(150)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var cs []*Conn
	var done []<-chan struct{}
	for range pairs {
		a, b := kinds[1].connect(t)
		done = append(done, b.expect(t, fs))
		a.c.Start(nil)
		b.c.Start(nil)
		cs = append(cs, b.c)
		wg.Go(func() {
			for i, f := range fs {
				a.post(f)
				a.c.Kick()
				if i%4 == 3 { // the next arrival finds no goroutine awake
					time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond)
				}
			}
		})
	}
	var consumer sync.WaitGroup
	for _, c := range cs {
		consumer.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rand.IntN(300)) * time.Microsecond):
				}
				switch rand.IntN(8) {
				case 0:
					c.Poll()
				case 1:
					c.Poll()
					c.Unpoll()
				case 2:
					c.Unpoll()
					c.Poll()
				case 3:
					c.att.Dedicate()
				default:
					c.sock.Load().Interrupt()
				}
			}
		})
	}
	for _, d := range done {
		testkit.Await(t, "all frames", d)
	}
	close(stop)
	wg.Wait()
	consumer.Wait()
}

// TestGather: the holder of the receive role pauses before the next read if many bytes arrive for
// one connection after the other. More bytes then arrive for each read.
func TestGather(t *testing.T) {
	onePoller(t)
	var as []*lengthFramed
	got := make(chan struct{}, 10)
	busy, goOn := make(chan struct{}), make(chan struct{})
	for i := range 3 {
		a, b := kinds[1].connect(t)
		b.got = func([]byte) {
			if i == 0 {
				busy <- struct{}{}
				<-goOn
			}
			got <- struct{}{}
		}
		a.c.Start(nil)
		b.c.Start(nil)
		as = append(as, a)
	}
	before := attend.Gathers()
	// If the machine is busy, another goroutine may relieve the receiver, and receive the other frames
	// one by one.
	testkit.Eventually(t, "a nap", func() bool {
		for i, a := range as {
			a.post(make([]byte, crowdBytes/2))
			a.c.Kick()
			if i == 0 {
				testkit.Await(t, "the first frame", busy) // the receiver is busy while the other frames arrive
			}
		}
		goOn <- struct{}{}
		for range as {
			testkit.Await(t, "a frame", got)
		}
		time.Sleep(2 * time.Millisecond) // frames that are close together would get a goroutine of their own
		return attend.Gathers() > before
	})
}

// TestSharedKeepsNoBuffer: a connection with a shared poller keeps no buffer, whether it is polled
// before or after it joins the poller.
func TestSharedKeepsNoBuffer(t *testing.T) {
	a, b := kinds[1].connect(t)
	kept := func(c *Conn) (kept bool) {
		c.WithReceiver(func() { kept = c.rx.stage != nil })
		return kept
	}
	a.c.Start(nil)
	b.c.StartPolled(nil)
	b.c.Poll()
	if !kept(b.c) {
		t.Error("a buffer taken for each poll")
	}
	b.c.Unpoll()
	a.c.Poll()
	if kept(a.c) || kept(b.c) {
		t.Error("a buffer while the shared poller waits")
	}
}

// TestThereAlready: bytes that arrived before the connection joined the shared poller are reported,
// and an end of stream that arrived together with the last bytes is reported too.
func TestThereAlready(t *testing.T) {
	for _, last := range []func(*net.TCPConn){
		func(c *net.TCPConn) { c.CloseWrite() },
		func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		nc, peer := testkit.TCPPair(t)
		defer peer.Close()
		p := newFramed(nc, Options{})
		got := p.expect(t, [][]byte{[]byte("abc")})
		p.c.take()
		peer.Write([]byte{0, 0, 0, 3, 'a', 'b', 'c'})
		testkit.Eventually(t, "it arrives", func() bool { return p.c.sock.Load().Pending() == 7 })
		p.c.Start(nil)
		testkit.Await(t, "the frame", got)
		p.close(t)

		nc, peer = testkit.TCPPair(t)
		defer peer.Close()
		p = newFramed(nc, Options{})
		p.c.take()
		p.got = func([]byte) {}
		peer.Write([]byte{0, 0, 0, 3, 'a', 'b', 'c'})
		last(peer.(*net.TCPConn))
		testkit.Eventually(t, "the end arrives", func() bool {
			v, err := unix.GetsockoptTCPInfo(p.c.sock.Load().FD(), unix.IPPROTO_TCP, unix.TCP_INFO)
			return err == nil && v.State != unix.BPF_TCP_ESTABLISHED
		})
		p.c.Start(nil)
		testkit.Await(t, "the end", p.failed)
		p.close(t)
	}
}

// TestFaultWhileReceiving: unmapped memory ends the connection at once. The read is short then,
// although more bytes have arrived.
func TestFaultWhileReceiving(t *testing.T) {
	const length, size, valid = 120000, 128 << 10, 96 << 10
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(valid); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	// The pages of a file are separate fragments, and the kernel joins at most 17 of them. So the
	// frame arrives in two buffers, and the second one cannot be copied.
	frame := append([]byte{0, 1, (length - 1<<16) >> 8, (length - 1<<16) & 0xff}, make([]byte, length)...)
	name := filepath.Join(t.TempDir(), "frame")
	if err := os.WriteFile(name, frame, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		return rc.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20) })
	}}
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := newFramed(nc, Options{})
	defer p.close(t)
	p.place = mem
	p.c.take()
	peer.(*net.TCPConn).ReadFrom(src)
	testkit.Eventually(t, "it arrives", func() bool { return p.c.sock.Load().Pending() == len(frame) })
	p.c.rx.large = true // the frame is read in pieces
	p.c.Start(nil)
	if err := testkit.Await(t, "the failure", p.failed); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("failed with %v", err)
	}
}

// TestReportWhileRead checks that a poller leaves a report to the holder of the receive role, if
// another goroutine holds the role.
func TestReportWhileRead(t *testing.T) {
	a, b := kinds[1].connect(t)
	got := b.expect(t, [][]byte{[]byte("x")})
	a.c.Start(nil)
	b.c.Start(nil)
	b.c.WithReceiver(func() {
		a.post([]byte("x"))
		a.c.Kick()
		testkit.Eventually(t, "the report is looked into", func() bool { return b.c.att.State() != attend.Shared })
	})
	testkit.Await(t, "the frame", got)
}

// TestRelieved: a consumer that blocks in a method that must not block does not delay other
// connections.
func TestRelieved(t *testing.T) {
	onePoller(t)
	a, b := kinds[1].connect(t)
	x, y := kinds[1].connect(t)
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	n := 0
	b.got = func(p []byte) {
		if int(p[0]) != n {
			t.Errorf("frame %d, want %d", p[0], n)
		}
		n++
		entered <- struct{}{}
		<-release
	}
	others := make(chan struct{}, 10)
	y.got = func([]byte) { others <- struct{}{} }
	for _, p := range []*lengthFramed{a, b, x, y} {
		p.c.Start(nil)
	}
	send := func(p *lengthFramed, b byte) {
		p.post([]byte{b})
		p.c.Kick()
	}
	send(a, 0)
	testkit.Await(t, "the first frame", entered)
	for i := range 3 {
		send(x, 0)
		testkit.Await(t, "a frame of another connection", others)
		send(a, byte(i+1))
	}
	close(release)
	for range 3 {
		testkit.Await(t, "the frames behind", entered)
	}
	send(x, 0)
	testkit.Await(t, "a frame after all that", others)
	testkit.Eventually(t, "one polls", func() bool { return goroutines(pollers) == 1 })
}

// TestSharedPollerCloses: connections that end while others start leave no goroutine waiting and no
// descriptor open.
func TestSharedPollerCloses(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 30 {
				a, b := kinds[1].connect(t)
				got := make(chan struct{}, 1)
				b.got = func([]byte) { got <- struct{}{} }
				a.c.Start(nil)
				b.c.Start(nil)
				a.post([]byte("x"))
				a.c.Kick()
				if i%2 == 0 {
					testkit.Await(t, "the frame", got)
				}
				a.close(t)
				b.close(t)
			}
		})
	}
	wg.Wait()
	closed := func() bool { return goroutines(pollers) == 0 }
	testkit.Eventually(t, "no shared poller is left", closed)
	a, b := kinds[1].connect(t)
	got := make(chan struct{}, 1)
	b.got = func([]byte) { got <- struct{}{} }
	a.c.Start(nil)
	b.c.Start(nil)
	a.post([]byte("x"))
	a.c.Kick()
	testkit.Await(t, "a frame at a shared poller that was opened again", got)
	a.c.Shutdown()
	if err := testkit.Await(t, "the end", b.failed); err != io.EOF {
		t.Errorf("ended with %v", err)
	}
	a.close(t)
	b.close(t)
	testkit.Eventually(t, "no shared poller is left", closed)
}

package attend

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// A pairedConn is a connection of a pair within this process: the sending end, and the Attention of
// the receiving end.
type pairedConn struct {
	nc  net.Conn
	src *sock.Socket // the receiving end
	a   *Attention
	r   *byteReader
}

// send sends a byte, and waits until it has been received.
func (c *pairedConn) send(t *testing.T) {
	t.Helper()
	want := c.r.bytes.Load() + 1
	c.nc.Write([]byte("x"))
	testkit.Eventually(t, "a byte", func() bool { return c.r.bytes.Load() >= want })
}

// pairedConns returns n connections of a pair, whose receiving ends are in state Shared. recv
// returns the Receiver of a connection.
func pairedConns(t *testing.T, n int, recv func(i int, r *byteReader) Receiver) (all []*pairedConn) {
	t.Helper()
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := sock.OwnListener(nl, sock.Tuning{SameHost: samehost.Auto})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for i := range n + 1 {
		client, err := sock.Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			nc, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- nc
		}()
		if err := sock.ShareMemory(t.Context(), client, samehost.Require, ""); err != nil {
			t.Fatal(err)
		}
		server := testkit.Await(t, "the connection", accepted)
		client.Write([]byte("x"))
		if _, err := server.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // it has no pair
			t.Cleanup(func() { client.Close(); server.Close() })
			continue
		}
		c := &pairedConn{nc: client, src: sock.Take(server), a: new(Attention)}
		c.r = &byteReader{src: c.src}
		c.a.Init(c.src, recv(i-1, c.r))
		c.a.Lock()
		c.a.Start()
		c.a.Unlock()
		t.Cleanup(func() {
			client.Close()
			c.a.Close(func() {})
			c.src.Close(false)
			c.a.Join()
		})
		if p, _ := c.src.Pair(); p == nil {
			t.Fatal("no pair")
		}
		all = append(all, c)
	}
	return all
}

func plainReceiver(_ int, r *byteReader) Receiver { return r }

// TestPairServes: the second arrival of a connection is announced by the pair, and further arrivals
// too. After the end of the pair, and with the state Dedicated, they are announced otherwise.
func TestPairServes(t *testing.T) {
	cs := pairedConns(t, 2, plainReceiver)
	before := Drained()
	for range 50 {
		for _, c := range cs {
			c.send(t)
		}
	}
	testkit.Eventually(t, "bits", func() bool { return Drained() > before })
	cs[1].a.Dedicate()
	for range 50 {
		for _, c := range cs {
			c.send(t)
		}
	}
	p, _ := cs[0].src.Pair()
	p.End()
	for range 50 {
		for _, c := range cs {
			c.send(t)
		}
	}
}

// TestPairBitsInVain: a peer that sets bits for nothing does not keep the goroutine of the pair
// busy, and bits without a connection do no harm. Messages are still received.
func TestPairBitsInVain(t *testing.T) {
	c := pairedConns(t, 1, plainReceiver)[0]
	for range 3 {
		c.send(t)
	}
	p, slot := c.src.Pair()
	d := drainerOf(p)
	peer := sock.PairOf(c.nc)
	vain := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.vain
	}
	for _, with := range []bool{true, false} { // with the connection's bit, or only bits without a connection
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for n := slot; ; n = (n + 1) % sock.PairSlots {
				select {
				case <-stop:
					return
				default:
				}
				if with || n != slot {
					peer.Tell(n)
				}
				if with {
					peer.Tell(slot)
				}
			}
		}()
		testkit.Eventually(t, "the goroutine has enough", d.weary)
		start := time.Now() // first, so that the time includes every counted round
		looks, bits := Drained(), vain()
		time.Sleep(20 * vainPause)
		looks, bits = Drained()-looks, vain()-bits
		rounds := int(time.Since(start)/vainPause) + 2 // at most
		if int(looks) > rounds || bits > rounds*sock.PairSlots {
			t.Errorf("%d looks in vain, %d bits in %d rounds", looks, bits, rounds)
		}
		c.send(t)
		close(stop)
		<-stopped
		testkit.Eventually(t, "the goroutine forgives", func() bool {
			if c.a.State() != Shared { // arrivals close together have brought an attendant; it retires
				return false
			}
			c.send(t)
			return !d.weary()
		})
	}
}

// TestPairFlippedBits: a peer that flips bits of the pair's memory at random can stop its own
// connections at most. Those of another pair go on, and all can be closed.
func TestPairFlippedBits(t *testing.T) {
	before := pairMemory(t)
	hostile := pairedConns(t, 4, plainReceiver)
	for range 3 {
		for _, c := range hostile {
			c.send(t)
		}
	}
	var words []atomic.Uint64
	for inode, memory := range pairMemory(t) {
		if before[inode] == nil {
			words = memory
		}
	}
	if words == nil {
		t.Fatal("no memory of a pair")
	}
	others := pairedConns(t, 2, plainReceiver)
	flips := 300 * time.Millisecond
	if testkit.LongRuns() {
		flips = 3 * time.Second
	}
	for start := time.Now(); time.Since(start) < flips; {
		for range 1000 {
			w := &words[rand.IntN(len(words))]
			for bit := uint64(1) << rand.IntN(64); ; {
				if old := w.Load(); w.CompareAndSwap(old, old^bit) {
					break
				}
			}
		}
		for _, c := range hostile {
			c.nc.Write([]byte("x"))
		}
		for _, c := range others {
			c.send(t)
		}
	}
}

// pairMemory returns the memory of the pairs of this process, by the number of its file.
func pairMemory(t *testing.T) map[uint64][]atomic.Uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[uint64][]atomic.Uint64)
	for line := range strings.Lines(string(b)) {
		var from, to uintptr
		var rights, offset, device string
		var inode uint64
		_, err := fmt.Sscanf(line, "%x-%x %s %s %s %d", &from, &to, &rights, &offset, &device, &inode)
		if err == nil && strings.Contains(line, "viaduct-pair") {
			all[inode] = unsafe.Slice((*atomic.Uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&from))), (to-from)/8)
		}
	}
	return all
}

// A blockingReceiver blocks in Deliver, as the callback of a consumer may.
type blockingReceiver struct {
	*byteReader
	armed          *atomic.Bool
	block, blocked chan struct{}
}

func (r blockingReceiver) Deliver() bool {
	if r.armed.Swap(false) {
		close(r.blocked)
		<-r.block
	}
	return false
}

// TestPairTakenOver: a consumer that blocks the goroutine of a pair does not delay the other
// connections of the pair for long.
func TestPairTakenOver(t *testing.T) {
	var armed atomic.Bool
	block, blocked := make(chan struct{}), make(chan struct{})
	cs := pairedConns(t, 2, func(i int, r *byteReader) Receiver {
		if i == 0 {
			return blockingReceiver{r, &armed, block, blocked}
		}
		return r
	})
	defer close(block)
	for range 3 { // by now the pair announces the arrivals
		for _, c := range cs {
			c.send(t)
		}
	}
	armed.Store(true)
	cs[0].nc.Write([]byte("x"))
	testkit.Await(t, "a blocked goroutine", blocked)
	for range 10 {
		cs[1].send(t)
	}
}

// TestPairRoleTaken: an arrival that is announced while somebody has the receive role is received
// after that.
func TestPairRoleTaken(t *testing.T) {
	c := pairedConns(t, 1, plainReceiver)[0]
	for range 3 {
		c.send(t)
	}
	for range 100 {
		want := c.r.bytes.Load() + 1
		func() {
			c.a.Lock()
			defer c.a.Unlock()     // after a failure too, because Close waits for the role
			c.a.shared.closely = 0 // otherwise arrivals close together bring an attendant
			c.nc.Write([]byte("x"))
			testkit.Eventually(t, "the report finds the role taken", func() bool { return c.a.missed.Load() })
		}()
		testkit.Eventually(t, "a byte", func() bool { return c.r.bytes.Load() >= want })
	}
	if s := c.a.State(); s != Shared {
		t.Errorf("state %v", s)
	}
}

// TestPairSlotTaken: a bit that is still set when a slot has another connection makes the
// connection be read in vain, and the former connection still finds its end.
func TestPairSlotTaken(t *testing.T) {
	cs := pairedConns(t, 2, plainReceiver)
	for range 3 {
		for _, c := range cs {
			c.send(t)
		}
	}
	p, slot := cs[0].src.Pair()
	d := drainerOf(p)
	d.enter(cs[1].a, slot) // as if its dialer had given it the slot
	cs[0].nc.Close()
	testkit.Eventually(t, "the end", cs[0].r.ended.Load)
	cs[1].send(t)
	cs[1].nc.Close()
	testkit.Eventually(t, "the end", cs[1].r.ended.Load)
}

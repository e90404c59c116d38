package roce

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// devices returns two devices on different loopback addresses. It skips the test on systems other
// than Linux.
func devices(t testing.TB) (a, b *Device) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: this system has one loopback address, and two devices need two")
	}
	open := func() *Device {
		for range 100 {
			d, err := Open(netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)),
				byte(1 + rand.IntN(250))}))
			if err == nil {
				t.Cleanup(func() { d.Close() })
				return d
			}
		}
		t.Fatal("no loopback address with a free port 4791")
		return nil
	}
	return open(), open()
}

// connected returns two connected queue pairs on two devices.
func connected(t testing.TB, cfg Config) (a, b *QueuePair) {
	t.Helper()
	da, db := devices(t)
	return connect(t, da, db, cfg)
}

// connect returns two connected queue pairs. Unless cfg says otherwise, they are patient.
func connect(t testing.TB, da, db *Device, cfg Config) (a, b *QueuePair) {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	make := func(d *Device) *QueuePair {
		q, err := d.NewQueuePair(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	a, b = make(da), make(db)
	if err := errors.Join(a.Connect(b.Local()), b.Connect(a.Local())); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func wait(t testing.TB, cq *CompletionQueue) Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	c, err := cq.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// good waits for a completion, and fails the test unless its status is StatusOK.
func good(t testing.TB, cq *CompletionQueue) Completion {
	t.Helper()
	c := wait(t, cq)
	if err := c.Err(); err != nil {
		t.Fatalf("%v of request %d: %v", c.Op, c.ID, err)
	}
	return c
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func TestOperations(t *testing.T) {
	for _, mtu := range []int{256, 1024, 4096} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			a, b := connected(t, Config{MTU: mtu})
			far, err := b.PD().Register(make([]byte, 1<<20), RemoteRead|RemoteWrite|RemoteAtomic)
			if err != nil {
				t.Fatal(err)
			}
			place := func(off int) RemoteAddr { return RemoteAddr{far.Addr() + uint64(off), far.Key()} }
			near, err := a.PD().Register(random(300_000), LocalOnly)
			if err != nil {
				t.Fatal(err)
			}

			got := make([]byte, 300_000)
			if err := b.PostRecv(RecvWR{ID: 7, SG: []SGE{Buf(got[:100]), Buf(got[100:])}}); err != nil {
				t.Fatal(err)
			}
			if err := a.Post(SendWR{ID: 1, SG: []SGE{near.SGE(0, 5000), near.SGE(5000, 200_000)}, HasImm: true, Imm: [4]byte{1, 2, 3, 4}, Solicited: true}); err != nil {
				t.Fatal(err)
			}
			if c := good(t, a.SendCQ()); c.ID != 1 || c.Op != OpSend || c.QP != a {
				t.Errorf("%+v", c)
			}
			if c := good(t, b.RecvCQ()); c.ID != 7 || c.Op != OpRecv || c.Len != 205_000 ||
				!c.HasImm || c.Imm != [4]byte{1, 2, 3, 4} || !c.Solicited ||
				!bytes.Equal(got[:c.Len], near.Bytes()[:c.Len]) {
				t.Errorf("%+v", c)
			}

			if err := a.Post(
				SendWR{ID: 2, Op: OpWrite, SG: []SGE{near.SGE(0, 300_000)}, Remote: place(1000), Unsignaled: true},
				SendWR{ID: 3, Op: OpRead, SG: []SGE{Buf(got)}, Remote: place(1000)},
				SendWR{ID: 4, Op: OpFetchAdd, Remote: place(0), SwapAdd: 5},
				SendWR{ID: 5, Op: OpCmpSwap, Remote: place(0), Compare: 5, SwapAdd: 9, SG: []SGE{Buf(make([]byte, 8))}},
			); err != nil {
				t.Fatal(err)
			}
			c := good(t, a.SendCQ())
			b.Stats() // takes the lock under which the memory was written, for the race detector
			if c.ID != 3 || c.Len != 300_000 || !bytes.Equal(got, near.Bytes()) ||
				!bytes.Equal(far.Bytes()[1000:301_000], got) {
				t.Errorf("%+v", c)
			}
			if c := good(t, a.SendCQ()); c.ID != 4 || c.Value != 0 {
				t.Errorf("%+v", c)
			}
			c = good(t, a.SendCQ())
			b.Stats()
			if c.ID != 5 || c.Value != 5 || binary.NativeEndian.Uint64(far.Bytes()) != 9 {
				t.Errorf("%+v, word %d", c, far.Bytes()[0])
			}

			if err := b.PostRecv(RecvWR{ID: 8}); err != nil {
				t.Fatal(err)
			}
			if err := a.Post(SendWR{ID: 6, Op: OpWrite, SG: []SGE{near.SGE(0, 10)}, Remote: place(50), HasImm: true, Imm: [4]byte{9}}); err != nil {
				t.Fatal(err)
			}
			if c := good(t, b.RecvCQ()); c.ID != 8 || c.Op != OpRecvWrite || c.Len != 10 || c.Imm != [4]byte{9} {
				t.Errorf("%+v", c)
			}
			good(t, a.SendCQ())

			if err := far.Close(); err != nil {
				t.Fatal(err)
			}
			a.Post(SendWR{ID: 7, Op: OpWrite, SG: []SGE{near.SGE(0, 10)}, Remote: place(50)}, SendWR{ID: 8})
			if c := wait(t, a.SendCQ()); c.ID != 7 || c.Status != StatusRemoteAccess {
				t.Errorf("%+v", c)
			}
			if c := wait(t, a.SendCQ()); c.ID != 8 || c.Status != StatusFlushed {
				t.Errorf("%+v", c)
			}
		})
	}
}

// Concurrent atomic operations of several queue pairs on one word lose no update. [ROCE-RESP-17]
func TestAtomicsTogether(t *testing.T) {
	da, db := devices(t)
	pd := db.NewPD()
	far, err := pd.Register(make([]byte, 8), RemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	const pairs, adds = 4, 100
	var g sync.WaitGroup
	for range pairs {
		a, err := da.NewQueuePair(Config{Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		b, err := db.NewQueuePair(Config{PD: pd})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Connect(b.Local()), b.Connect(a.Local())); err != nil {
			t.Fatal(err)
		}
		g.Go(func() {
			defer b.Stats() // takes the lock under which the memory was written, for the race detector
			for i := range adds {
				if err := a.Post(SendWR{ID: uint64(i), Op: OpFetchAdd, Remote: RemoteAddr{far.Addr(), far.Key()}, SwapAdd: 1}); err != nil {
					t.Error(err)
					return
				}
				if c := wait(t, a.SendCQ()); c.Status != StatusOK {
					t.Errorf("%+v", c)
					return
				}
			}
		})
	}
	g.Wait()
	if n := binary.NativeEndian.Uint64(far.Bytes()); n != pairs*adds {
		t.Errorf("%d", n)
	}
}

// A message sent before its receive is posted is retransmitted and arrives intact. [ROCE-RESP-9]
// [ROCE-REQ-12]
func TestLateReceive(t *testing.T) {
	a, b := connected(t, Config{})
	if err := a.Post(SendWR{SG: []SGE{Buf([]byte("hello"))}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "RNR NAK", func() bool { return a.Stats().ReceivedRNR > 0 })
	got := make([]byte, 5)
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(got)}}); err != nil {
		t.Fatal(err)
	}
	good(t, a.SendCQ())
	if good(t, b.RecvCQ()); string(got) != "hello" {
		t.Errorf("%q", got)
	}
}

func TestUnreliable(t *testing.T) {
	a, b := connected(t, Config{Transport: UC})
	got := make([]byte, 3000)
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(got)}}); err != nil {
		t.Fatal(err)
	}
	data := random(3000)
	if err := a.Post(SendWR{SG: []SGE{Buf(data)}}); err != nil {
		t.Fatal(err)
	}
	good(t, a.SendCQ())
	if good(t, b.RecvCQ()); !bytes.Equal(got, data) {
		t.Error("data")
	}
	if err := a.Post(SendWR{Op: OpRead}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestDatagrams(t *testing.T) {
	da, db := devices(t)
	const key = 0x11111111
	a, err := da.NewQueuePair(Config{Transport: UD, QKey: key})
	if err != nil {
		t.Fatal(err)
	}
	b, err := db.NewQueuePair(Config{Transport: UD, QKey: key})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1064)
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(got)}}); err != nil {
		t.Fatal(err)
	}
	data := random(1024)
	if err := a.Post(SendWR{SG: []SGE{Buf(data)}, To: b.Local(), QKey: key + 1}, SendWR{SG: []SGE{Buf(data)}, To: b.Local(), QKey: key}); err != nil {
		t.Fatal(err)
	}
	c := good(t, b.RecvCQ())
	if c.Len != 1064 || c.SourceQPN != a.Local().QPN || !bytes.Equal(got[40:], data) ||
		netip.AddrFrom4([4]byte(got[32:36])) != da.Addr() {
		t.Errorf("%+v", c)
	}
	if b.Stats().Refused != 1 { // the datagram with the wrong key
		t.Errorf("%+v", b.Stats())
	}
	if err := a.Post(SendWR{SG: []SGE{Buf(make([]byte, 1025))}, To: b.Local()}); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}

// A request to a silent peer fails after all timeouts, and not earlier. [ROCE-REQ-9]
func TestSilence(t *testing.T) {
	a, b := connected(t, Config{Timeout: 20 * time.Millisecond, Retries: 2})
	b.Close()
	begin := time.Now()
	if err := a.Post(SendWR{ID: 1}, SendWR{ID: 2}); err != nil {
		t.Fatal(err)
	}
	if err := a.PostRecv(RecvWR{ID: 3}); err != nil {
		t.Fatal(err)
	}
	if c := wait(t, a.SendCQ()); c.Status != StatusRetryExceeded {
		t.Errorf("%+v", c)
	}
	if d := time.Since(begin); d < 60*time.Millisecond {
		t.Errorf("after %v", d)
	}
	if c := wait(t, a.SendCQ()); c.Status != StatusFlushed {
		t.Errorf("%+v", c)
	}
	for i := range 2 {
		if i == 1 {
			a.PostRecv(RecvWR{ID: 4})
		}
		if c := wait(t, a.RecvCQ()); c.Status != StatusFlushed || c.ID != uint64(3+i) {
			t.Errorf("%+v", c)
		}
	}
}

// TestConnectOnce: only one of several concurrent Connects succeeds.
func TestConnectOnce(t *testing.T) {
	da, db := devices(t)
	for range 500 {
		q, err := da.NewQueuePair(Config{SendDepth: 1, RecvDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		start, errs := make(chan struct{}), make(chan error)
		for range 2 {
			go func() {
				<-start
				errs <- q.Connect(Endpoint{Addr: db.Addr(), QPN: 77})
			}()
		}
		close(start)
		first, second := <-errs, <-errs
		if first != nil {
			first, second = second, first
		}
		if first != nil || !errors.Is(second, ErrInvalid) {
			t.Fatalf("%v, %v", first, second)
		}
		q.Close()
	}
}

func TestWrongUse(t *testing.T) {
	da, db := devices(t)
	q, err := da.NewQueuePair(Config{SendDepth: 2, RecvDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	other, err := db.NewPD().Register(make([]byte, 8), LocalOnly)
	if err != nil {
		t.Fatal(err)
	}
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = q.PD().Register(nil, LocalOnly)
	is("empty region", err, ErrInvalid)
	is("post before Connect", q.Post(SendWR{}), ErrNotConnected)
	is("another family", q.Connect(Endpoint{Addr: netip.MustParseAddr("::1")}), ErrInvalid)
	is("connect", q.Connect(Endpoint{Addr: db.Addr(), QPN: 77}), nil)
	is("connect again", q.Connect(Endpoint{Addr: db.Addr()}), ErrInvalid)
	is("region of another", q.Post(SendWR{SG: []SGE{other.SGE(0, 8)}}), ErrInvalid)
	is("too many elements", q.Post(SendWR{SG: make([]SGE, MaxSGE+1)}), ErrInvalid)
	is("operation", q.Post(SendWR{Op: OpRecv}), ErrInvalid)
	is("word", q.Post(SendWR{Op: OpFetchAdd, SG: []SGE{Buf(make([]byte, 7))}}), ErrInvalid)
	is("two", q.Post(SendWR{}, SendWR{}), nil)
	is("three", q.Post(SendWR{}), ErrQueueFull)
	is("receive", q.PostRecv(RecvWR{}), nil)
	is("receives", q.PostRecv(RecvWR{}), ErrQueueFull)
	for _, cfg := range []Config{{MTU: 1000}, {Transport: 3}, {Reads: 256}, {RNRTimer: 32}, {PD: db.NewPD()}} {
		_, err := da.NewQueuePair(cfg)
		is(fmt.Sprintf("%+v", cfg), err, ErrInvalid)
	}
	q.Close()
	is("closed", q.Post(SendWR{}), ErrClosed)
	is("closed", q.PostRecv(RecvWR{}), net.ErrClosed)
	da.Close()
	is("device", da.Close(), ErrClosed)
	_, err = da.NewQueuePair(Config{})
	is("device", err, ErrClosed)
}

func TestIPv6(t *testing.T) {
	d, err := Open(netip.IPv6Loopback())
	if err != nil {
		t.Skipf("SKIPPED: no port 4791 of ::1: %v", err)
	}
	t.Cleanup(func() { d.Close() })
	a, b := connect(t, d, d, Config{}) // two queue pairs of one device
	got := make([]byte, 5000)
	if err := b.PostRecv(RecvWR{SG: []SGE{Buf(got)}}); err != nil {
		t.Fatal(err)
	}
	data := random(5000)
	if err := a.Post(SendWR{SG: []SGE{Buf(data)}}); err != nil {
		t.Fatal(err)
	}
	good(t, a.SendCQ())
	if good(t, b.RecvCQ()); !bytes.Equal(got, data) {
		t.Error("data")
	}
	if g := a.Local().GID(); g != [16]byte{15: 1} { // [ROCE-NET-7]
		t.Errorf("%x", g)
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{64, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p, q := connected(b, Config{MTU: 4096})
			far, err := q.PD().Register(make([]byte, size), RemoteWrite)
			if err != nil {
				b.Fatal(err)
			}
			data := random(size)
			b.SetBytes(int64(size))
			const ahead = 8
			posted, done := 0, 0
			for b.Loop() {
				if posted-done == ahead {
					good(b, p.SendCQ())
					done++
				}
				if err := p.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(data)}, Remote: RemoteAddr{far.Addr(), far.Key()}}); err != nil {
					b.Fatal(err)
				}
				posted++
			}
			for ; done < posted; done++ {
				good(b, p.SendCQ())
			}
			b.ReportMetric(float64(p.Stats().Resent), "resent")
			b.ReportMetric(float64(p.Stats().Timeouts), "timeouts")
		})
	}
}

// Devices of one address reach each other, and a device at another address.
func TestSharedAddress(t *testing.T) {
	if os.Geteuid() == 65534 {
		t.Skip("SKIPPED: ports of user 65534 are not shared")
	}
	a, far := devices(t)
	b, err := Open(a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, pair := range [][2]*Device{{a, b}, {b, far}, {far, a}} {
		qa, qb := connect(t, pair[0], pair[1], Config{})
		for _, q := range [][2]*QueuePair{{qa, qb}, {qb, qa}} {
			in := make([]byte, 10_000)
			if err := q[1].PostRecv(RecvWR{SG: []SGE{Buf(in)}}); err != nil {
				t.Fatal(err)
			}
			out := bytes.Repeat([]byte("shared"), len(in)/6)
			if err := q[0].Post(SendWR{SG: []SGE{Buf(out)}}); err != nil {
				t.Fatal(err)
			}
			if c := wait(t, q[1].RecvCQ()); c.Status != StatusOK || !bytes.Equal(in[:c.Len], out) {
				t.Errorf("%v, %d bytes", c.Status, c.Len)
			}
		}
		qa.Close()
		qb.Close()
	}
}

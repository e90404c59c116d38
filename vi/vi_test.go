package vi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"viaduct/internal/testkit"
	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

func open(t testing.TB, network *memvi.Network, name string, cfg *vi.Config) *vi.NIC {
	t.Helper()
	n, err := vi.Open(network, name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func create(t testing.TB, n *vi.NIC, a vi.Attributes) *vi.VI {
	t.Helper()
	v, err := n.CreateVI(a, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// connected returns two connected VIs of a new network.
func connected(t testing.TB, a vi.Attributes) (x, y *vi.VI) {
	t.Helper()
	network := memvi.New()
	n, m := open(t, network, "mem0", nil), open(t, network, "mem1", nil)
	x, y = create(t, n, a), create(t, m, a)
	connect(t, x, y)
	return x, y
}

func connect(t testing.TB, x, y *vi.VI) {
	t.Helper()
	address := func(v *vi.VI) vi.Address {
		return vi.Address{Host: v.NIC().Query().LocalAddress, Discriminator: []byte("d")}
	}
	for _, c := range [2][2]*vi.VI{{x, y}, {y, x}} {
		if err := c[0].ConnectPeerRequest(address(c[0]), address(c[1]), testkit.Patience); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range [...]*vi.VI{x, y} {
		if _, err := v.ConnectPeerWait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestValues checks the values of VIPL. C programs have them compiled in.
func TestValues(t *testing.T) {
	type value struct {
		got  any
		want uint32
		name string
	}
	for row, values := range map[string][]value{
		"VIA-2.1-1": {
			{vi.Idle, 0, "Idle"}, {vi.Connected, 1, "Connected"}, {vi.ConnectPending, 2, "Connect Pending"},
			{vi.Error, 3, "Error"}, {vi.State(9), 9, "State(0x9)"},
		},
		"VIA-3.2-1": {
			{vi.OpSendReceive, 0, "send/receive"}, {vi.OpRDMAWrite, 1, "rdma-write"}, {vi.OpRDMARead, 2, "rdma-read"},
			{vi.OpMask, 3, "reserved"}, {vi.Immediate, 4, "send/receive|immediate"}, {vi.QueueFence, 8, "send/receive|fence"},
			{vi.Control(0x8001), 0x8001, "rdma-write|0x8000"},
		},
		"VIA-3.3-1": {
			{vi.StatusDone, 1, "send: done"},
			{vi.StatusDone | vi.StatusFormatError, 1 | 2, "send: format error"},
			{vi.StatusDone | vi.StatusProtectionError, 1 | 4, "send: protection error"},
			{vi.StatusDone | vi.StatusLengthError, 1 | 8, "send: length error"},
			{vi.StatusDone | vi.StatusPartialError, 1 | 0x10, "send: partial packet"},
			{vi.StatusDone | vi.StatusFlushed, 1 | 0x20, "send: flushed"},
			{vi.StatusDone | vi.StatusTransportError, 1 | 0x40, "send: transport error"},
			{vi.StatusDone | vi.StatusRDMAProtection, 1 | 0x80, "send: remote protection error"},
			{vi.StatusDone | vi.StatusRemoteDescriptor, 1 | 0x100, "send: remote descriptor error"},
			{vi.StatusErrorMask, 0x1fe, "send: pending"},
			{vi.StatusOpReceive, 0x10000, "receive: pending"},
			{vi.StatusOpRDMAWrite | vi.StatusDone, 0x20001, "rdma-write: done"},
			{vi.StatusOpRemoteRDMAWrite | vi.StatusDone, 0x30001, "remote-rdma-write: done"},
			{vi.StatusOpRDMARead | vi.StatusDone | vi.StatusLengthError | vi.StatusFlushed, 0x40029, "rdma-read: length error, flushed"},
			{vi.StatusOpMask | vi.StatusDone, 0x70001, "op 0x70000: done"},
			{vi.StatusImmediate | vi.StatusDone, 0x80001, "send: done"},
		},
		"VIA-4.5-1": {
			{vi.UnreliableDelivery, 1, "unreliable delivery"}, {vi.ReliableDelivery, 2, "reliable delivery"},
			{vi.ReliableReception, 4, "reliable reception"},
			{vi.UnreliableDelivery | vi.ReliableReception, 5, "unreliable delivery|reliable reception"},
			{vi.Reliability(0), 0, "0x0"}, {vi.Reliability(0x12), 0x12, "reliable delivery0x10"},
		},
		"VIA-5.2-1": {
			{vi.ErrorPostDesc, 0, "post descriptor error"}, {vi.ErrorConnLost, 1, "connection lost"},
			{vi.ErrorRecvQEmpty, 2, "receive queue empty"}, {vi.ErrorVIOverrun, 3, "VI overrun"},
			{vi.ErrorRDMAWProt, 4, "RDMA Write protection error"}, {vi.ErrorRDMAWData, 5, "RDMA Write data error"},
			{vi.ErrorRDMAWAbort, 6, "RDMA Write abort"}, {vi.ErrorRDMARProt, 7, "RDMA Read protection error"},
			{vi.ErrorCompProt, 8, "completion protection error"}, {vi.ErrorRDMATransport, 9, "RDMA transport error"},
			{vi.ErrorCatastrophic, 10, "catastrophic error"}, {vi.ErrorCode(11), 11, "ErrorCode(0xb)"},
			{vi.ResourceNIC, 0, ""}, {vi.ResourceVI, 1, ""}, {vi.ResourceCQ, 2, ""}, {vi.ResourceDescriptor, 3, ""},
		},
	} {
		t.Run(row, func(t *testing.T) {
			for _, v := range values {
				if got := fmt.Sprintf("%d", v.got); got != fmt.Sprint(v.want) {
					t.Errorf("%v is %s, want %d", v.got, got, v.want)
				}
				if got := fmt.Sprint(v.got); v.name != "" && got != v.name {
					t.Errorf("%d is called %q, want %q", v.want, got, v.name)
				}
			}
		})
	}
}

// TestErrorsOfNet checks that errors match the errors of packages net and os with the same meaning.
func TestErrorsOfNet(t *testing.T) {
	if !errors.Is(vi.ErrClosed, net.ErrClosed) || !errors.Is(vi.ErrTimeout, os.ErrDeadlineExceeded) {
		t.Error("errors do not match those of package net and os")
	}
	var ne net.Error
	if !errors.As(vi.ErrTimeout, &ne) || !ne.Timeout() {
		t.Error("a timeout does not say so")
	}
	if (vi.StatusDone | vi.StatusFlushed).Err().Error() != "vi: send: flushed" {
		t.Error("text of a status error")
	}
}

func TestAddress(t *testing.T) {
	a := vi.IPAddress(netip.MustParseAddrPort("10.1.2.3:4711"), "disc")
	b := vi.IPAddress(netip.MustParseAddrPort("10.1.2.3:4711"), "disc\x00")
	c := vi.IPAddress(netip.MustParseAddrPort("10.1.2.4:4711"), "disc")
	if !a.Equal(a) || a.Equal(b) || b.Equal(a) || a.Equal(c) { // [VIA-7-1]
		t.Error("equality")
	}
	none := vi.Address{Host: a.Host}
	if !none.Equal(vi.Address{Host: a.Host, Discriminator: []byte{}}) || none.Equal(a) || none.Equal(vi.Address{Host: a.Host, Discriminator: []byte{0}}) { // [VIA-7-2]
		t.Error("equality without a discriminator")
	}
	for _, c := range []struct {
		ap, text string
		host     int
	}{
		{"10.1.2.3:0", "10.1.2.3/disc", 4},
		{"10.1.2.3:4711", "10.1.2.3:4711/disc", 6},
		{"[2001:db8::1]:0", "2001:db8::1/disc", 16},
		{"[2001:db8::1]:4711", "[2001:db8::1]:4711/disc", 18},
		{"[::ffff:10.1.2.3]:4711", "10.1.2.3:4711/disc", 6},
	} {
		a := vi.IPAddress(netip.MustParseAddrPort(c.ap), "disc")
		if a.String() != c.text || len(a.Host) != c.host {
			t.Errorf("%s is %v with %d bytes, want %s with %d", c.ap, a, len(a.Host), c.text, c.host)
		}
		got, ok := a.AddrPort()
		want := netip.MustParseAddrPort(c.ap)
		if !ok || got != netip.AddrPortFrom(want.Addr().Unmap(), want.Port()) {
			t.Errorf("%s came back as %v, %t", c.ap, got, ok)
		}
	}
	for _, n := range []int{0, 1, 3, 5, 8, 17, 19} {
		if ap, ok := (vi.Address{Host: make([]byte, n)}).AddrPort(); ok {
			t.Errorf("a host of %d bytes is %v", n, ap)
		}
	}
	if s := (vi.Address{Host: []byte{1, 2, 3}, Discriminator: []byte{0, 1}}).String(); s != "010203/0x0001" {
		t.Error(s)
	}
	for d, want := range map[string]string{
		"": "", "abc": "abc", "a b": "a b", "größe": "größe", "\x00": "0x00", "ab\x00": "0x616200",
		"\xff": "0xff", "tab\t": "0x74616209", `quote"`: "0x71756f746522", "\ufffd": "0xefbfbd",
	} {
		if got := (vi.Address{Discriminator: []byte(d)}).String(); got != "/"+want {
			t.Errorf("discriminator %q is shown as %s, want %s", d, got, want)
		}
	}
}

// TestDescriptor checks control and segments of a descriptor against the form of the architecture.
// [VIA-3.1-1]
func TestDescriptor(t *testing.T) {
	s := []vi.Segment{{Address: 1, Handle: 2, Length: 3}, {Address: 4, Handle: 5, Length: 6}}
	r := vi.RemoteSegment{Address: 7, Handle: 8}
	for _, c := range []struct {
		d      *vi.Descriptor
		op     vi.Control
		remote vi.RemoteSegment
	}{
		{vi.NewSend(s...), vi.OpSendReceive, vi.RemoteSegment{}},
		{vi.NewRecv(s...), vi.OpSendReceive, vi.RemoteSegment{}},
		{vi.NewRDMAWrite(r, s...), vi.OpRDMAWrite, r},
		{vi.NewRDMARead(r, s...), vi.OpRDMARead, r},
	} {
		d := c.d.WithImmediate(9).WithFence()
		if d.Control != c.op|vi.Immediate|vi.QueueFence || d.Control.Op() != c.op || d.ImmediateData != 9 ||
			d.Remote != c.remote || d.Length != 9 || d.Capacity() != 9 || len(d.Segments) != 2 || d.Status() != 0 {
			t.Errorf("%+v", d)
		}
	}
	if unsafe.Sizeof(vi.MemHandle(0)) != 4 { // [VIA-1.4-1]
		t.Error("a memory handle is not 32 bits")
	}
}

// TestLimits: exactly as many objects can be created as the NIC advertises, and another after a
// release. [VIA-8.2-1] [VIA-8.3-2]
func TestLimits(t *testing.T) {
	network := memvi.New()
	network.Limits = func(a *vi.NICAttributes) {
		a.MaxRegisterBytes, a.MaxRegisterBlockBytes, a.MaxRegisterRegions = 1000, 600, 3
		a.MaxVI, a.MaxCQ, a.MaxPtags, a.MaxCQEntries, a.MaxDescriptorsPerQueue = 2, 2, 2, 10, 5
		a.RDMAReadSupport = 0
	}
	n := open(t, network, "", nil)
	reg := func(size int) (*vi.Region, error) { return n.RegisterMem(make([]byte, size), vi.MemAttributes{}) }
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := reg(601)
	want("a region too long", err, vi.ErrResource)
	a, err := reg(600)
	want("the longest", err, nil)
	_, err = reg(401)
	want("too much together", err, vi.ErrResource)
	_, err = reg(400)
	want("all there is", err, nil)
	want("giving back", n.DeregisterMem(a), nil)
	_, err = reg(600)
	want("again", err, nil)
	_, err = n.RegisterMem(make([]byte, 1), vi.MemAttributes{EnableRDMARead: true})
	want("read where there is none", err, vi.ErrInvalidRDMARead)
	for range 2 {
		if _, err := n.CreateCQ(10); err != nil {
			t.Fatal(err)
		}
	}
	_, err = n.CreateCQ(1)
	want("a completion queue too many", err, vi.ErrResource)
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	_, err = n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
	want("a VI too many", err, vi.ErrResource)
	for range 3 {
		want("a receive", v.PostRecv(vi.NewRecv()), nil)
	}
	more := []*vi.Descriptor{vi.NewRecv(), vi.NewRecv(), vi.NewRecv(), vi.NewRecv(), vi.NewRecv()}
	if posted, err := v.PostRecvs(more); posted != 2 || !errors.Is(err, vi.ErrOverrun) {
		t.Errorf("posted %d of room for 2: %v", posted, err)
	}
	drain := func() {
		for {
			if d, _ := v.RecvDone(); d == nil {
				break
			}
		}
	}
	drain()
	for i, d := range more { // unposted descriptors still belong to the consumer
		want(fmt.Sprint("descriptor ", i, " again"), v.PostRecv(d), nil)
	}
	drain()
	twice := vi.NewRecv()
	if posted, err := v.PostRecvs([]*vi.Descriptor{twice, twice}); posted != 1 ||
		!errors.Is(err, vi.ErrInvalidParameter) {
		t.Errorf("posted %d of one descriptor twice: %v", posted, err)
	}
	_, err = n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery, ReadWindow: -1}, nil, nil)
	want("a read window below 0", err, vi.ErrInvalidParameter)

	_, err = vi.Open(network, "no such device", nil)
	want("an unknown device", err, vi.ErrInvalidParameter)
	q := n.Query()
	q.LocalAddress[0] ^= 0xff
	if bytes.Equal(q.LocalAddress, n.Query().LocalAddress) {
		t.Error("the NIC's address can be written through Query")
	}
}

// TestTransportFailure checks that a failed connection completes started descriptors with a
// transport error, and all other descriptors as flushed. [VIA-2.3-10] [VIA-4.6-16]
func TestTransportFailure(t *testing.T) {
	x, y := connected(t, vi.Attributes{Reliability: vi.ReliableReception})
	resume := memvi.Stall(y)
	const n = 80
	for range n {
		if err := x.PostSend(vi.NewSend()); err != nil {
			t.Fatal(err)
		}
	}
	const started = 64 // the capacity of memvi's wire
	testkit.Eventually(t, "the wire is full", func() bool { return memvi.Backlog(y) == started })
	memvi.Cut(x)
	for i := range n {
		d, err := x.SendWait(t.Context())
		if d == nil {
			t.Fatal(err)
		}
		want := vi.StatusDone | vi.StatusTransportError
		if i >= started {
			want = vi.StatusDone | vi.StatusFlushed
		}
		if d.Status() != want {
			t.Errorf("send %d: %v, want %v", i, d.Status(), want)
		}
	}
	resume()
	testkit.Eventually(t, "the other side sees it", func() bool { return y.State() == vi.Error })
}

// TestReadWindow: no more RDMA Reads are outstanding than the peer serves. [VIA-4.3-4]
func TestReadWindow(t *testing.T) {
	const window = 3
	x, y := connected(t, vi.Attributes{Reliability: vi.ReliableDelivery, EnableRDMARead: true, ReadWindow: window})
	mem, err := y.NIC().RegisterMem(make([]byte, 10), vi.MemAttributes{EnableRDMARead: true})
	if err != nil {
		t.Fatal(err)
	}
	into, err := x.NIC().RegisterMem(make([]byte, 10), vi.MemAttributes{})
	if err != nil {
		t.Fatal(err)
	}
	resume := memvi.Stall(y)
	for range 10 {
		if err := x.PostSend(vi.NewRDMARead(mem.Remote(0), into.Segment(0, 10))); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the window is full", func() bool { return memvi.Backlog(y) == window })
	time.Sleep(3 * time.Millisecond)
	if n := memvi.Backlog(y); n != window {
		t.Errorf("%d reads under way", n)
	}
	resume()
	for range 10 {
		if _, err := x.SendWait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPollers: a connected VI can be polled. After a disconnect, the VI has nothing to poll, no
// link and no peer.
func TestPollers(t *testing.T) {
	x, y := connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
	if err := y.PostRecv(vi.NewRecv()); err != nil {
		t.Fatal(err)
	}
	if err := x.PostSend(vi.NewSend()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the message",
		func() bool { y.Poll(); y.Unpoll(); _, err := y.RecvDone(); return err == nil })
	if err := y.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if y.Poll() || y.Link() != nil {
		t.Error("something to poll after a disconnect")
	}
	y.Unpoll()
	if _, ok := y.RemoteAddress(); ok {
		t.Error("a peer after a disconnect")
	}
	if y.NIC() == nil || y.NIC().Device() == nil || y.NIC().Logger() == nil {
		t.Error("accessors")
	}
}

// TestErrorWhilePending: an error of the VI itself ends a connection attempt. [VIA-5.3-3]
func TestErrorWhilePending(t *testing.T) {
	network := memvi.New()
	network.Limits = func(a *vi.NICAttributes) { a.MaxDescriptorsPerQueue = 2 }
	n := open(t, network, "", nil)
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	here := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("a")}
	there := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("b")}
	if err := v.ConnectPeerRequest(here, there, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.PostRecv(vi.NewRecv()); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.PostRecv(vi.NewRecv()); !errors.Is(err, vi.ErrOverrun) {
		t.Fatal(err)
	}
	if _, err := v.ConnectPeerWait(t.Context()); !errors.Is(err, vi.ErrInvalidState) {
		t.Errorf("the attempt ended with %v", err)
	}
	if s := v.State(); s != vi.Error {
		t.Errorf("state %v", s)
	}
	if d, err := v.RecvDone(); d == nil || !errors.Is(err, vi.ErrDescriptor) {
		t.Errorf("a receive: %v", err)
	}
}

// TestDoneDoesNotAllocate: a poll without a result allocates no memory.
func TestDoneDoesNotAllocate(t *testing.T) {
	network := memvi.New()
	n := open(t, network, "", nil)
	q, err := n.CreateCQ(10)
	if err != nil {
		t.Fatal(err)
	}
	v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, q, q)
	if err != nil {
		t.Fatal(err)
	}
	d, r := vi.NewSend(), vi.NewRecv()
	buf := make([]vi.Completion, 4)
	if allocs := testing.AllocsPerRun(500, func() {
		if v.PostSend(d) != nil || v.PostRecv(r) != nil { // the send is flushed at once
			t.Fatal("posting")
		}
		if _, err := v.RecvDone(); err != vi.ErrNotDone {
			t.Fatal(err)
		}
		if c, err := q.Done(); err != nil || c.VI != v {
			t.Fatal(err)
		}
		if _, err := q.Done(); err != vi.ErrNotDone {
			t.Fatal(err)
		}
		q.DoneN(buf)
		v.SendDone()
		v.Disconnect()
		q.DoneN(buf)
		v.RecvDone()
	}); allocs > 4 {
		// At most four allocations are permitted: two for each of the two errors of the flushed
		// descriptors.
		t.Errorf("%v allocations per round", allocs)
	}
}

// TestErrorOrder: errors are reported in order and never two at once, even if the handler is slow
// or sets another handler. [VIA-5.4-2]
func TestErrorOrder(t *testing.T) {
	n := open(t, memvi.New(), "", nil)
	var mu sync.Mutex
	var got []*vi.Descriptor
	var handler func(vi.ErrorDescriptor)
	handler = func(e vi.ErrorDescriptor) {
		time.Sleep(time.Millisecond)
		mu.Lock()
		got = append(got, e.Descriptor)
		mu.Unlock()
		n.ErrorCallback(handler)
		if e.String() != "vi: post descriptor error" {
			t.Error(e)
		}
	}
	n.ErrorCallback(handler)
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	var want []*vi.Descriptor
	for range 20 {
		d := vi.NewSend()
		want = append(want, d)
		v.ReportPostError(d)
	}
	testkit.Eventually(t, "all errors", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == len(want) })
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("error %d is another one", i)
		}
	}
}

// TestErrorsAreBounded uses a handler that never returns. The number of pending errors is bounded,
// and the loss of a connection is still reported.
func TestErrorsAreBounded(t *testing.T) {
	n := open(t, memvi.New(), "", nil)
	entered, release := make(chan struct{}), make(chan struct{})
	var first sync.Once
	var dropped, lost int
	done := make(chan struct{})
	n.ErrorCallback(func(e vi.ErrorDescriptor) {
		first.Do(func() { close(entered); <-release })
		switch e.Code {
		case vi.ErrorRecvQEmpty:
			dropped++
		case vi.ErrorConnLost:
			lost++
			close(done)
		}
	})
	v := create(t, n, vi.Attributes{Reliability: vi.UnreliableDelivery})
	vi.Raise(v, vi.ErrorRecvQEmpty)
	<-entered
	for range 3 * vi.MaxPendingErrors {
		vi.Raise(v, vi.ErrorRecvQEmpty)
	}
	vi.Raise(v, vi.ErrorConnLost)
	close(release)
	<-done
	if dropped != 1+vi.MaxPendingErrors || lost != 1 {
		t.Errorf("%d errors and %d losses were told, want %d and 1", dropped, lost, 1+vi.MaxPendingErrors)
	}
}

// TestLogger checks that the states of VIs are logged to the Logger of the NIC only.
func TestLogger(t *testing.T) {
	var buf bytes.Buffer
	network := memvi.New()
	n := open(t, network, "", &vi.Config{Logger: slog.New(slog.NewTextHandler(&buf,
		&slog.HandlerOptions{Level: slog.LevelDebug}))})
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	told := make(chan struct{})
	n.ErrorCallback(func(vi.ErrorDescriptor) { close(told) })
	v.ReportPostError(vi.NewSend())
	if err := v.Disconnect(); err != nil {
		t.Fatal(err)
	}
	<-told
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if s := buf.String(); !strings.Contains(s, "from=Idle to=Error") || !strings.Contains(s, "from=Error to=Idle") {
		t.Error(s)
	}
}

// TestCloseWaitsForNotify: the handlers of a NIC have run when Close returns, including those of
// flushed descriptors. [VIA-6.4-1]
func TestCloseWaitsForNotify(t *testing.T) {
	n := open(t, memvi.New(), "", nil)
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	ran := 0
	for range 5 {
		if err := v.RecvNotify(func(d *vi.Descriptor) {
			time.Sleep(time.Millisecond)
			if d.Status() == vi.StatusDone|vi.StatusOpReceive|vi.StatusFlushed {
				ran++
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := v.PostRecv(vi.NewRecv()); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if ran != 5 {
		t.Errorf("%d handlers of 5 had run", ran)
	}
}

// TestCloseConcurrently lets many goroutines close a NIC at once while all its objects are in use.
// [VIA-6.4-1] [VIA-6.7-1]
func TestCloseConcurrently(t *testing.T) {
	for range 20 {
		network := memvi.New()
		a := vi.Attributes{Reliability: vi.ReliableReception}
		n, m := open(t, network, "mem0", nil), open(t, network, "mem1", nil)
		x, y := create(t, n, a), create(t, m, a)
		connect(t, x, y)
		other := create(t, n, a)
		var wg sync.WaitGroup
		for _, v := range []*vi.VI{x, y} {
			wg.Go(func() {
				for v.PostRecv(vi.NewRecv()) == nil && v.PostSend(vi.NewSend()) == nil {
					v.SendDone()
					v.RecvWait(t.Context())
				}
			})
		}
		wg.Go(func() {
			other.ConnectPeerRequest(vi.Address{Host: n.Query().LocalAddress},
				vi.Address{Host: m.Query().LocalAddress}, 0)
		})
		for _, nic := range []*vi.NIC{n, n, m, m} {
			wg.Go(func() {
				if err := nic.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, v := range []*vi.VI{x, y, other} {
			if err := v.Destroy(); !errors.Is(err, vi.ErrClosed) {
				t.Errorf("after closing: %v", err)
			}
		}
	}
}

// A holder is a log handler. It blocks at the first message of a VI's return to Idle.
type holder struct {
	slog.Handler
	hold       atomic.Bool // set once Handle has blocked
	held, free chan struct{}
}

func (h *holder) Enabled(context.Context, slog.Level) bool { return true }

func (h *holder) Handle(_ context.Context, r slog.Record) error {
	idle := false
	r.Attrs(func(a slog.Attr) bool {
		idle = idle || a.Key == "to" && a.Value.String() == vi.Idle.String()
		return true
	})
	if idle && h.hold.CompareAndSwap(false, true) {
		close(h.held)
		<-h.free
	}
	return nil
}

// TestNoAttemptWhileClosing: no attempt to connect begins while a NIC closes. Close would not find
// the attempt in an already visited VI, and would wait for the attempt forever. [VIA-6.4-1]
func TestNoAttemptWhileClosing(t *testing.T) {
	h := &holder{Handler: slog.DiscardHandler, held: make(chan struct{}), free: make(chan struct{})}
	n := open(t, memvi.New(), "", &vi.Config{Logger: slog.New(h)})
	a := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("a")}
	b := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("b")}
	var vis [2]*vi.VI
	for i := range vis {
		vis[i] = create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
		if err := vis[i].ConnectPeerRequest(a, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- n.Close() }()
	<-h.held
	other := vis[0] // Close has not reached this VI yet
	if other.State() == vi.Idle {
		other = vis[1]
	}
	if err := other.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := other.ConnectPeerRequest(a, b, 0); !errors.Is(err, vi.ErrClosed) {
		t.Errorf("peer request while the NIC closes: %v", err)
	}
	if _, err := other.ConnectRequest(t.Context(), a, b); !errors.Is(err, vi.ErrClosed) {
		t.Errorf("request while the NIC closes: %v", err)
	}
	if s := other.State(); s != vi.Idle {
		t.Errorf("the VI is %v", s)
	}
	close(h.free)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestStaleEntries covers a completion reported a moment after the reap of its descriptor, when the
// VI is already destroyed. [VIA-4.7-3]
func TestStaleEntries(t *testing.T) {
	n := open(t, memvi.New(), "", nil)
	q, err := n.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	attached := func() *vi.VI {
		v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, q)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	old, live := attached(), attached()
	if err := old.Destroy(); err != nil {
		t.Fatal(err)
	}
	vi.ReportRecvs(old, 2)
	if c, err := q.Done(); err != vi.ErrNotDone {
		t.Errorf("done: %+v, %v", c, err)
	}
	want := vi.Completion{VI: live, Recv: true}
	vi.ReportRecvs(old, 3)
	vi.ReportRecvs(live, 1)
	if c, err := q.Done(); err != nil || c != want {
		t.Errorf("done: %+v, %v", c, err)
	}
	vi.ReportRecvs(old, 2)
	vi.ReportRecvs(live, 1)
	if c, err := q.Wait(t.Context()); err != nil || c != want {
		t.Errorf("wait: %+v, %v", c, err)
	}
	vi.ReportRecvs(old, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if c, err := q.Wait(ctx); !errors.Is(err, vi.ErrTimeout) {
		t.Errorf("wait: %+v, %v", c, err)
	}
	got := make(chan vi.Completion, 1)
	if err := q.Notify(func(c vi.Completion) { got <- c }); err != nil {
		t.Fatal(err)
	}
	vi.ReportRecvs(old, 1)
	vi.ReportRecvs(live, 1)
	if c := <-got; c != want {
		t.Errorf("notify: %+v", c)
	}
}

// slowProvider is a provider whose peer requests end late.
type slowProvider struct {
	*memvi.Network
	ended *atomic.Bool
}

func (p slowProvider) Open(name string, n *vi.NIC) (vi.Device, error) {
	d, err := p.Network.Open(name, n)
	return slowDevice{d, p.ended}, err
}

type slowDevice struct {
	vi.Device
	ended *atomic.Bool
}

func (d slowDevice) ConnectPeer(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	l, g, err := d.Device.ConnectPeer(ctx, ep, local, remote)
	time.Sleep(5 * time.Millisecond)
	d.ended.Store(true)
	return l, g, err
}

// TestCloseWaitsForAttempts: Close waits for the attempts it has cancelled. [VIA-6.4-1]
func TestCloseWaitsForAttempts(t *testing.T) {
	var ended atomic.Bool
	n, err := vi.Open(slowProvider{memvi.New(), &ended}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	v := create(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
	a := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("a")}
	b := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("b")}
	if err := v.ConnectPeerRequest(a, b, 0); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if !ended.Load() {
		t.Error("Close returned while an attempt was under way")
	}
}

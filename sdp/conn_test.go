package sdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/testkit"
	"viaduct/iwarp"
)

func TestD40_Transfers(t *testing.T) {
	opt := Options{SendThreshold: 1000, RecvThreshold: 2048, RecvBufferSize: 2048,
		SendPolicy: PinPipelined, RecvPolicy: PinPipelined}
	a, b := pair(t, opt, opt)
	ctx := context.Background()
	data := bytes.Repeat([]byte("0123456789"), 5000)
	var ts []*Transfer
	for i := range 5 {
		x, err := a.StartWrite(data[i*10000 : (i+1)*10000])
		if err != nil {
			t.Fatal(err)
		}
		ts = append(ts, x)
	}
	got := make([]byte, 0, len(data))
	for len(got) < len(data) {
		p := make([]byte, 7777)
		x, err := b.StartRead(p)
		if err != nil {
			t.Fatal(err)
		}
		n, err := x.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p[:n]...)
	}
	for _, x := range ts {
		if n, err := x.Wait(ctx); n != 10000 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if !bytes.Equal(got, data) {
		t.Error("bytes differ")
	}
	// If a read offers its buffer before the write, the buffer is filled directly. [SDP-11.3-8]
	p := make([]byte, 20000)
	x, err := b.StartRead(p)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := a.Write(data[:20000]); n != 20000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := x.Wait(ctx); n == 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	} else if _, err := b.ReadFull(p[n:]); err != nil && n < len(p) {
		t.Error(err)
	}
	if !bytes.Equal(p, data[:20000]) {
		t.Error("bytes differ")
	}
	// A cancelled transfer has an exact count.
	x, err = b.StartRead(make([]byte, 5000))
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if n, err := x.Wait(short); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d, %v", n, err)
	}
	select {
	case <-x.Done():
	default:
		t.Error("not done")
	}
	if _, err := a.StartWrite(nil); err != nil {
		t.Error(err)
	}
	shut(t, a, b)
	if _, err := a.StartWrite(data); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestSDP_9_4_ExchangeFails checks that the error of an Exchange names the failed half. Later bytes
// must go to the next Read. [SDP-9.4-1]
func TestSDP_9_4_ExchangeFails(t *testing.T) {
	told := func(what string, n int, err, want error, op string) {
		t.Helper()
		var oe *net.OpError
		if n != 0 || !errors.Is(err, want) || !errors.As(err, &oe) || oe.Op != op {
			t.Errorf("%s: %d bytes, %v, want %v of a %s", what, n, err, want, op)
		}
	}
	a, b := pair(t, Options{}, Options{RecvBuffers: 4, RecvBufferSize: 512, NoResize: true, ReceiveBuffer: 1})
	resp := make([]byte, 100)
	a.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	n, err := a.Exchange([]byte("ask"), resp)
	told("no answer", n, err, os.ErrDeadlineExceeded, "read")
	a.SetReadDeadline(time.Time{})
	ask := make([]byte, 3)
	if _, err := b.ReadFull(ask); err != nil || string(ask) != "ask" {
		t.Fatalf("%q, %v", ask, err)
	}
	if _, err := b.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(resp); err != nil || string(resp[:n]) != "late" {
		t.Errorf("the answer that came late: %q, %v", resp[:n], err)
	}
	a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	n, err = a.Exchange(make([]byte, 4<<20), resp) // more than the other end accepts
	told("no room", n, err, os.ErrDeadlineExceeded, "write")
	if _, err := b.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(resp); err != nil || string(resp[:n]) != "more" {
		t.Errorf("behind a request that did not go: %q, %v", resp[:n], err)
	}
	shutOne(t, a)
	n, err = a.Exchange([]byte("ask"), resp)
	told("closed", n, err, net.ErrClosed, "write")
	shutOne(t, b)
}

// TestReadFullEnds checks that ReadFull returns io.ErrUnexpectedEOF if the stream ends after some
// bytes, and io.EOF before the first byte.
func TestReadFullEnds(t *testing.T) {
	t.Run("SDP-9.3-15", func(t *testing.T) {
		a, b := pair(t, Options{}, Options{})
		if _, err := a.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 8)
		if n, err := b.ReadFull(p); n != 4 || err != io.ErrUnexpectedEOF || string(p[:n]) != "half" {
			t.Errorf("%q, %v", p[:n], err)
		}
		if n, err := b.ReadFull(p); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v", n, err)
		}
		shut(t, a, b)
	})
}

func TestSDP_9_4_Exchange(t *testing.T) {
	opt := Options{SendThreshold: 1000, RecvThreshold: 2048, RecvBufferSize: 2048,
		SendPolicy: PinPipelined, RecvPolicy: PinPipelined}
	a, b := pair(t, opt, opt)
	answer := strings.Repeat("answer", 1000)
	go func() {
		p := make([]byte, 100)
		for {
			n, err := b.Read(p)
			if err != nil {
				return
			}
			b.Write([]byte(string(p[:n]) + answer))
		}
	}()
	resp := make([]byte, 10000)
	for range 20 {
		n, err := a.Exchange([]byte("ask"), resp)
		if err != nil {
			t.Fatal(err)
		}
		for n < 3+len(answer) {
			k, err := a.Read(resp[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		if string(resp[:n]) != "ask"+answer {
			t.Fatalf("%d bytes", n)
		}
	}
	if s := a.Stats(); s.SentBytesTransact == 0 || s.RecvBytesWrite == 0 { // [SDP-9.4-1] [SDP-9.4-3] [SDP-9.4-4]
		t.Errorf("%+v", s.Counters)
	}
	shut(t, a, b)
}

func TestSDP_9_5_3_Conn(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	a.Write([]byte("abc"))
	if n, err := a.WriteUrgent([]byte("d!")); n != 2 || err != nil {
		t.Fatal(err)
	}
	a.Write([]byte("efg"))
	a.CloseWrite()
	select { // [SDP-9.5.3-9]
	case <-b.Urgent():
	case <-time.After(testkit.Patience):
		t.Fatal("no notice")
	}
	deadline := time.Now().Add(testkit.Patience)
	for {
		if n, ok := b.UrgentMark(); ok {
			if n != 4 {
				t.Errorf("urgent byte is %d ahead", n)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no mark")
		}
	}
	if got, err := io.ReadAll(b); string(got) != "abcd!efg" || err != nil { // [SDP-9.5.3-1] [SDP-4.1-3]
		t.Errorf("%q, %v", got, err)
	}
	if _, ok := b.UrgentMark(); ok {
		t.Error("mark still there")
	}
	shut(t, a, b)
	// Urgent bytes are read out of band. [D-29]
	a, b = pair(t, Options{}, Options{UrgentApart: true})
	if _, err := b.ReadUrgent(); !errors.Is(err, ErrNoUrgent) {
		t.Error(err)
	}
	a.Write([]byte("abc"))
	a.WriteUrgent([]byte("!"))
	a.CloseWrite()
	if got, err := io.ReadAll(b); string(got) != "abc" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if u, err := b.ReadUrgent(); u != '!' || err != nil {
		t.Errorf("%q, %v", u, err)
	}
	shut(t, a, b)
}

// TestReadMarked: a read returns the position of the urgent byte, even if the byte arrives during
// the read.
func TestReadMarked(t *testing.T) { // [SDP-9.5.3-1] [SDP-9.5.3-9]
	a, b := pair(t, Options{}, Options{})
	a.Write([]byte("abc"))
	a.WriteUrgent([]byte("d!"))
	a.Write([]byte("efg"))
	a.WriteUrgent([]byte("?"))
	a.CloseWrite()
	var got, marked []byte
	for {
		p := make([]byte, 2)
		n, mark, err := b.ReadMarked(p)
		got = append(got, p[:n]...)
		if mark >= n {
			t.Fatalf("mark %d of %d bytes", mark, n)
		}
		if mark >= 0 {
			marked = append(marked, p[mark])
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// The newer byte may have arrived before the older one was read.
	if m := string(marked); string(got) != "abcd!efg?" || m != "!?" && m != "?" {
		t.Errorf("%q, of which %q are urgent", got, m)
	}
	shut(t, a, b)
	a, b = pair(t, Options{}, Options{UrgentApart: true})
	a.WriteUrgent([]byte("ab!"))
	a.CloseWrite()
	p := make([]byte, 3)
	if n, mark, err := b.ReadMarked(p); n != 2 || mark != -1 || err != nil {
		t.Errorf("urgent byte kept apart: %d bytes, mark %d, %v", n, mark, err)
	}
	shut(t, a, b)
}

// TestSDP_9_5_6_Conn checks that writes return while their bytes fit the buffers of both ends,
// although nobody reads. [SDP-9.5.6-1] [SDP-9.5.6-2]
func TestSDP_9_5_6_Conn(t *testing.T) {
	opt := Options{SendBuffer: 100_000, ReceiveBuffer: 100_000, RecvBuffers: 8, RecvBufferSize: 1024, NoResize: true}
	a, b := pair(t, opt, opt)
	a.SetWriteDeadline(time.Now().Add(testkit.Patience))
	for range 1000 {
		if n, err := a.Write(make([]byte, 100)); n != 100 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	// More bytes block the write, and its count at the deadline is exact.
	a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	sent := 100_000
	for {
		n, err := a.Write(make([]byte, 10_000))
		sent += n
		if err != nil {
			if !os.IsTimeout(err) {
				t.Fatal(err)
			}
			break
		}
	}
	testkit.Eventually(t, "what nobody reads is compacted", func() bool { return b.Stats().CompactedBytes > 0 }) // [D-79]
	a.CloseWrite()
	got, err := io.Copy(io.Discard, b)
	if int(got) != sent || err != nil {
		t.Errorf("%d of %d, %v", got, sent, err)
	}
	if s := a.Stats(); s.CreditStalls == 0 {
		t.Error("no stall counted")
	}
	shut(t, a, b)
}

func TestSDP_9_2_29_Conn(t *testing.T) {
	// Both ends write, and then both read. With zero copy alone, neither write could end. [D-38]
	// [SDP-9.2-29]
	opt := Options{SendThreshold: 1000, RecvThreshold: 50_000, SendPolicy: PinCombined, RecvPolicy: PinCombined}
	a, b := pair(t, opt, opt)
	run := func(c *Conn, ch chan<- error) {
		p := make([]byte, 200_000)
		if _, err := c.Write(p); err != nil {
			ch <- err
			return
		}
		_, err := c.ReadFull(p)
		ch <- err
	}
	ch := make(chan error, 2)
	go run(a, ch)
	go run(b, ch)
	for range 2 {
		select {
		case err := <-ch:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testkit.Patience):
			t.Fatal("deadlock")
		}
	}
	shut(t, a, b)
}

func TestSDP_8_2_Conn(t *testing.T) {
	t.Run("half close", func(t *testing.T) { // [SDP-4.1-3] [SDP-8.2.1-10] [SDP-8.2.1-16]
		a, b := pair(t, Options{}, Options{})
		a.Write([]byte("question"))
		a.CloseWrite()
		if p, err := io.ReadAll(b); string(p) != "question" || err != nil {
			t.Errorf("%q, %v", p, err)
		}
		b.Write([]byte("answer"))
		b.Close()
		if p, err := io.ReadAll(a); string(p) != "answer" || err != nil {
			t.Errorf("%q, %v", p, err)
		}
		a.Close()
		<-a.Done()
		<-b.Done()
		if n := a.qp.PD().Device().Regions(); n != 0 { // [SDP-8.2.1-14] [SDP-8.2.1-24]
			t.Errorf("%d regions left", n)
		}
	})
	t.Run("reset", func(t *testing.T) { // [SDP-8.2.2-3] [D-78]
		a, b := pair(t, Options{}, Options{})
		a.SetLinger(0)
		a.Close()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, ErrReset) {
			t.Error(err)
		}
		b.Close()
		<-a.Done()
		<-b.Done()
	})
	t.Run("linger", func(t *testing.T) { // [SDP-8.2.1-11]
		a, b := pair(t, Options{SendBuffer: 1 << 20},
			Options{RecvBuffers: 4, RecvBufferSize: 512, NoResize: true, ReceiveBuffer: 1})
		a.Write(make([]byte, 100_000)) // more than the other end holds
		a.SetLinger(1)
		start := time.Now()
		err := a.Close()
		if !os.IsTimeout(err) || time.Since(start) < 900*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		shutOne(t, b)
		<-a.Done()
	})
	t.Run("close read", func(t *testing.T) { // [D-49]
		a, b := pair(t, Options{}, Options{})
		b.CloseRead()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		a.Write([]byte("unwanted"))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, ErrReset) {
			t.Error(err)
		}
		shutOne(t, a)
		shutOne(t, b)
	})
	t.Run("twice", func(t *testing.T) {
		a, b := pair(t, Options{}, Options{})
		shut(t, a, b)
		for _, err := range []error{a.Close(), a.CloseWrite(), a.CloseRead(), a.SetDeadline(time.Now()), a.SetLinger(1), a.SetReadBuffer(1), a.SetWriteBuffer(1)} {
			if !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := a.WriteUrgent([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestConnSettings(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	for _, err := range []error{a.SetKeepAlive(true), a.SetKeepAlivePeriod(time.Minute), a.SetNoDelay(false), a.SetReadBuffer(1000), a.SetWriteBuffer(1000)} { // [SDP-14.3-1] [SDP-14.3-2] [D-77]
		if err != nil {
			t.Error(err)
		}
	}
	a.SetPolicies(PinBuffered, PinCombined)
	a.SetThresholds(-1, 5)
	if !a.RequestPeerBufferSize(40_000) { // [SDP-10.6-1] [SDP-10.6.2-1] [SDP-10.6.2-2] [D-46]
		t.Error("not asked")
	}
	if _, err := a.Write(make([]byte, 35_000)); err != nil {
		t.Error(err)
	}
	if _, err := b.ReadFull(make([]byte, 35_000)); err != nil {
		t.Error(err)
	}
	if s := a.Path().String(); !strings.Contains(s, "sdp 127.0.0.1") {
		t.Error(s)
	}
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Error(err)
	}
	if n, err := a.Write(nil); n != 0 || err != nil {
		t.Error(err)
	}
	shut(t, a, b)
	if s := b.Stats(); s.Resizes != 1 || s.Stream.ReceivedMessages == 0 {
		t.Errorf("%+v", s)
	}
}

func TestOptions(t *testing.T) { // [D-39] [D-42]
	var o Options
	err := o.Set(map[string]string{"send-policy": "pipelined", "recv-policy": "buffered",
		"send-threshold": "64k", "recv-threshold": "1m", "recv-buffers": "9",
		"recv-buffer-size": "4096", "send-buffer": "100k", "receive-buffer": "0", "max-adverts": "3", "read-depth": "4", "crc": "off", "keepalive": "1m",
		"setup-timeout": "3s", "congestion": "reno"})
	want := Options{SendPolicy: PinPipelined, RecvPolicy: PinBuffered, SendThreshold: 64 << 10,
		RecvThreshold: 1 << 20, RecvBuffers: 9, RecvBufferSize: 4096,
		SendBuffer: 100 << 10, MaxAdverts: 3, ReadDepth: 4, NoCRC: true, KeepAlive: time.Minute,
		SetupTimeout: 3 * time.Second, Congestion: "reno"}
	if err != nil || o.SendPolicy != want.SendPolicy || o.SendThreshold != want.SendThreshold ||
		o.RecvThreshold != want.RecvThreshold || o.SendBuffer != want.SendBuffer ||
		!o.NoCRC || o.KeepAlive != want.KeepAlive || o.SetupTimeout != want.SetupTimeout ||
		o.Congestion != "reno" || o.ReadDepth != 4 || o.MaxAdverts != 3 {
		t.Errorf("%+v, %v", o, err)
	}
	for k, v := range map[string]string{"send-policy": "fast", "send-threshold": "-1", "recv-buffers": "2", "recv-buffer-size": "36", "crc": "maybe", "nonsense": "1",
		"max-adverts": "70000", "send-buffer": "9999g", "keepalive": "soon"} { // [SDP-10-2] [SDP-10-5] [SDP-6.1.3-2]
		before := o
		if err := o.Set(map[string]string{k: v}); err == nil || o.RecvBuffers != before.RecvBuffers {
			t.Errorf("%s=%s accepted", k, v)
		}
	}
	o = Options{}
	if o.Set(map[string]string{"send-threshold": "0"}); o.SendThreshold != -1 {
		t.Error("0 does not mean never")
	}
	// RecvThreshold is raised to the size of a Private Buffer. [SDP-9-1] [SDP-9.5.1-2] [SDP-10-6]
	c, err := (&Options{RecvThreshold: 5, RecvBufferSize: 100}).complete()
	if err != nil {
		t.Fatal(err)
	}
	s := setup{opt: c}
	if m := sdpcore.New(s.params(sdpcore.Connecting, 3, 100, 1, 1)); m == nil {
		t.Error("no machine")
	}
}

func TestIPv6(t *testing.T) { // [SDP-4.1-2]
	l, err := Listen("[::1]:0", nil)
	if err != nil {
		t.Skip("no IPv6 loopback:", err)
	}
	defer l.Close()
	a, b := pairOn(t, l, &Dialer{})
	a.Write([]byte("six"))
	p := make([]byte, 3)
	if _, err := b.ReadFull(p); err != nil || string(p) != "six" {
		t.Error(err)
	}
	shut(t, a, b)
}

// A fakeMapper is a Resolver with a table of services.
type fakeMapper struct {
	table  map[netip.AddrPort]netip.AddrPort // SDP addresses of services
	asked  []netip.AddrPort                  // local addresses of the calls
	at     time.Time                         // time of the last answer
	forgot int
	err    error
}

func (f *fakeMapper) Resolve(ctx context.Context, local, service netip.AddrPort) (netip.AddrPort, error) {
	f.asked = append(f.asked, local)
	if a, ok := f.table[service]; ok {
		f.at = time.Now()
		return a, nil
	}
	if f.err != nil {
		return netip.AddrPort{}, f.err
	}
	return netip.AddrPort{}, errors.New("denied")
}

func (f *fakeMapper) Forget(netip.AddrPort) { f.forgot++ }

// [D-71]
func TestD71_Resolver(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	deadAddr := testkit.ClosedPort(t)
	service := netip.MustParseAddrPort(tcp.Addr().String())
	ctx := context.Background()

	// The dial uses SDP, from the port passed to the Resolver. [SDP-7-1] [SDP-7.3.1.7-1] [D-57]
	// [D-58] [SDP-7.4-10] [SDP-7.4-12]
	f := &fakeMapper{table: map[netip.AddrPort]netip.AddrPort{service: netip.MustParseAddrPort(l.Addr().String())}}
	for _, mode := range []ResolveMode{ResolvePrefer, ResolveRequire} {
		d := &Dialer{Resolve: mode, Resolver: f}
		c, err := d.DialContext(ctx, "tcp", service.String())
		if err != nil {
			t.Fatal(err)
		}
		sc := c.(*Conn)
		if p := sc.Path(); !p.SDP || !p.Mapped || p.Local.String() != f.asked[len(f.asked)-1].String() {
			t.Errorf("path %+v, asked from %v", p, f.asked)
		}
		s, err := l.AcceptConn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// The answer is used at once, so no lifetime passes except the time of a set-up.
		// [SDP-7.3.1.4-5]
		if d := time.Since(f.at); d > 10*time.Second {
			t.Errorf("connected %v after the answer", d)
		}
		shut(t, sc, s)
	}
	// The dial falls back to TCP if the mapper denies the service, if nothing listens at the mapped
	// port, or if the port does not speak SDP. [SDP-7.5.1-7] [SDP-7.5.1-8]
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, f := range map[string]*fakeMapper{
		"denied": {},
		"dead":   {table: map[netip.AddrPort]netip.AddrPort{service: netip.MustParseAddrPort(deadAddr)}},
		"silent": {table: map[netip.AddrPort]netip.AddrPort{service: netip.MustParseAddrPort(silent.Addr().String())}},
	} {
		d := &Dialer{Resolve: ResolvePrefer, Resolver: f, Options: Options{SetupTimeout: 100 * time.Millisecond}}
		c, err := d.DialContext(ctx, "tcp", service.String())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tc, ok := c.(*TCPConn)
		if !ok || tc.Path().SDP || tc.Path().Err == nil || tc.Path().Why == "" {
			t.Errorf("%s: %T %+v", name, c, tc.Path())
		}
		c.Write([]byte("hi"))
		p := make([]byte, 2)
		if _, err := io.ReadFull(c, p); err != nil || string(p) != "hi" {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
		if name != "denied" && f.forgot != 1 { // [D-64]
			t.Errorf("%s: mapping kept", name)
		}
		d.Resolve = ResolveRequire
		if c, err := d.DialContext(ctx, "tcp", service.String()); err == nil {
			t.Errorf("%s: required SDP, got %T", name, c)
		}
	}
	// One deadline limits both attempts; half of the time is left for the fallback. On a busy machine
	// that may be too little, so the test tries again with more.
	d := &Dialer{Resolve: ResolvePrefer, Resolver: &slowMapper{}, Net: net.Dialer{Timeout: time.Second}}
	var c net.Conn
	for ; ; d.Net.Timeout *= 2 {
		start := time.Now()
		c, err = d.DialContext(ctx, "tcp", service.String())
		took := time.Since(start)
		if err == nil && took < d.Net.Timeout {
			break
		}
		if c != nil {
			c.Close()
		}
		if d.Net.Timeout > testkit.Patience {
			t.Fatalf("%v after %v of %v", err, took, d.Net.Timeout)
		}
	}
	c.Close()
	if _, err := (&Dialer{Resolve: ResolvePrefer}).DialContext(ctx, "tcp", service.String()); err == nil {
		t.Error("no resolver, no error")
	}
	d = &Dialer{Resolve: ResolveRequire, Resolver: f, NoCpPort: true}
	c, err = d.DialContext(ctx, "tcp", service.String())
	if err != nil || f.asked[len(f.asked)-1].Port() != 0 { // [D-57]
		t.Fatal(err, f.asked)
	}
	s, err := l.AcceptConn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	shut(t, c.(*Conn), s)
}

type slowMapper struct{}

func (slowMapper) Resolve(ctx context.Context, local, service netip.AddrPort) (netip.AddrPort, error) {
	<-ctx.Done()
	return netip.AddrPort{}, ctx.Err()
}
func (slowMapper) Forget(netip.AddrPort) {}

// TestSDP_13_1_Conn moves a connection to another listener, as to another process, while both ends
// have bytes under way. [SDP-8.1.1-32] [SDP-13.1-1] [SDP-13.1-2] [SDP-13.1-3] [D-51] [D-56]
func TestSDP_13_1_Conn(t *testing.T) {
	for _, mover := range []string{"accepted", "dialled"} {
		t.Run(mover, func(t *testing.T) {
			a, b := pair(t, Options{}, Options{})
			stays, goes := a, b
			if mover == "dialled" {
				stays, goes = b, a
			}
			for round := range 2 { // the connection can move again [SDP-13.2-5]
				nl, err := Listen("127.0.0.1:0", &Options{RecvBufferSize: 9000}) // the new holder [SDP-13.1.1-1] [SDP-13.2-3]
				if err != nil {
					t.Fatal(err)
				}
				goes.Write([]byte("sent before;"))
				stays.Write([]byte("unread before;"))
				first := make([]byte, 7)
				if _, err := goes.ReadFull(first); err != nil || string(first) != "unread " {
					t.Fatalf("%q, %v", first, err)
				}
				local := netip.MustParseAddrPort(goes.LocalAddr().String())
				remote := netip.MustParseAddrPort(goes.RemoteAddr().String())
				exp, err := nl.Expect(local, remote, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
				defer cancel()
				st, err := goes.Suspend(ctx, uint16(nl.Addr().(*net.TCPAddr).Port))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := goes.Write([]byte("x")); !errors.Is(err, net.ErrClosed) { // [SDP-13.1.1-5]
					t.Errorf("old holder writes: %v", err)
				}
				// The peer may write while no process holds the connection. [SDP-13.1.1-13]
				wrote := make(chan error, 1)
				go func() {
					_, err := stays.Write([]byte("written meanwhile;"))
					wrote <- err
				}()
				blob, err := st.MarshalBinary() // [SDP-13.1.1-11]
				if err != nil {
					t.Fatal(err)
				}
				var st2 State
				if err := st2.UnmarshalBinary(blob); err != nil || string(st2.Held) != "before;" ||
					st2.core != st.core || st2.Remote != st.Remote {
					t.Fatalf("%+v, %v", st2, err)
				}
				moved, err := exp.Resume(ctx, &st2) // [SDP-13.1.1-12]
				if err != nil {
					t.Fatal(err)
				}
				// [SDP-13.1.1-14] [SDP-13.1.1-15]
				if moved.opt.RecvBufferSize != st.core.RecvSize || moved.qp.ORD() != st.core.ORD {
					t.Errorf("buffers of %d, ORD %d, handed over %+v", moved.opt.RecvBufferSize,
						moved.qp.ORD(), st.core)
				}
				if err := <-wrote; err != nil {
					t.Fatal(err)
				}
				want := "before;written meanwhile;" // [SDP-13.1.1-16] [SDP-13.1.1-17]
				got := make([]byte, len(want))
				if _, err := moved.ReadFull(got); err != nil || string(got) != want {
					t.Fatalf("%q, %v", got, err)
				}
				moved.Write([]byte("sent after"))
				want = "sent before;sent after"
				got = make([]byte, len(want))
				if _, err := stays.ReadFull(got); err != nil || string(got) != want {
					t.Fatalf("%q, %v", got, err)
				}
				if port := stays.RemoteAddr().(*net.TCPAddr).Port; port != nl.Addr().(*net.TCPAddr).Port { // [SDP-13.1.1-4] [SDP-13.1.1-9] [SDP-13.2-1] [SDP-13.2-2] [SDP-13.2-4]
					t.Errorf("round %d: came back to port %d", round, port)
				}
				<-goes.Done()
				goes = moved
				nl.Close()
			}
			goes.Write(bytes.Repeat([]byte("z"), 300_000))
			goes.CloseWrite()
			if n, err := io.Copy(io.Discard, stays); n != 300_000 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			shut(t, stays, goes)
		})
	}
	var st State
	for _, b := range [][]byte{nil, []byte("vdsdp1"), make([]byte, 100)} {
		if err := st.UnmarshalBinary(b); err == nil {
			t.Errorf("%x accepted", b)
		}
	}
}

// TestSDP_13_1_BothMove: an end that is to move while the other end is moving waits until that one has
// come back, and then moves too. [SDP-13.1.2-3]
func TestSDP_13_1_BothMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	a, b := pair(t, Options{}, Options{})
	expect := func(c *Conn) (*Expectation, uint16) {
		l, err := Listen("127.0.0.1:0", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		x, err := l.Expect(netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String()), false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return x, uint16(l.Addr().(*net.TCPAddr).Port)
	}
	first, port := expect(a)
	stateA, err := a.Suspend(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	until(t, b, "b follows", func() bool { return b.m.Suspended() })
	second, port := expect(b)
	type result struct {
		st  *State
		err error
	}
	moved := make(chan result, 1)
	go func() {
		st, err := b.Suspend(ctx, port)
		moved <- result{st, err}
	}()
	until(t, b, "b is to move", func() bool { return b.suspendTo != nil })
	select {
	case r := <-moved:
		t.Fatalf("b moved before a had come back: %v", r.err)
	default:
	}
	a2, err := first.Resume(ctx, stateA)
	if err != nil {
		t.Fatal(err)
	}
	r := <-moved
	if r.err != nil {
		t.Fatal(r.err)
	}
	b2, err := second.Resume(ctx, r.st)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]*Conn{{a2, b2}, {b2, a2}} {
		go c[0].Write([]byte("hello"))
		got := make([]byte, 5)
		if _, err := c[1].ReadFull(got); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	shut(t, a2, b2)
}

// TestSDP_13_1_QueueFull: a connection with a full send queue follows a moving peer after sending
// the SuspCommAck. [SDP-13.1.1-8] [SDP-13.1.1-9]
func TestSDP_13_1_QueueFull(t *testing.T) {
	stays, goes := pair(t, Options{}, Options{})
	nl, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	exp, err := nl.Expect(netip.MustParseAddrPort(goes.LocalAddr().String()),
		netip.MustParseAddrPort(goes.RemoteAddr().String()), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	stays.mu.Lock()
	// The backlog has one request, so the SuspCommAck must wait.
	stays.send.backlog = []backlogged{{wr: iwarp.SendWR{Op: iwarp.OpWrite, More: true}}}
	stays.mu.Unlock()
	got := make(chan error, 1)
	go func() {
		b := make([]byte, 5)
		_, err := stays.ReadFull(b)
		if err == nil && string(b) != "after" {
			err = fmt.Errorf("%q came", b)
		}
		got <- err
	}()
	states := make(chan *State, 1)
	go func() {
		st, err := goes.Suspend(ctx, uint16(nl.Addr().(*net.TCPAddr).Port))
		if err != nil {
			t.Error(err)
		}
		states <- st
	}()
	until(t, stays, "the SuspCommAck waits for room",
		func() bool { return len(stays.send.backlog) == 2 })
	stays.mu.Lock()
	if stays.state != streamUp {
		t.Error("the stream was given up with the SuspCommAck still here")
	}
	stays.sendsDone(0) // the queue has room now
	stays.mu.Unlock()
	st := <-states
	if st == nil {
		stays.Abort()
		t.Fatal("not moved")
	}
	moved, err := exp.Resume(ctx, st)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := moved.Write([]byte("after")); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	shut(t, stays, moved)
}

// TestD50_Expect: a peer with other addresses, another port or another token does not get the
// connection. [SDP-13.1.1-2] [D-50]
func TestD50_Expect(t *testing.T) {
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here := netip.MustParseAddrPort("127.0.0.1:1")
	for _, c := range []struct {
		strict bool
		token  []byte
	}{{true, nil}, {false, []byte("0123456789abcdef")}} {
		exp, err := l.Expect(here, here, c.strict, c.token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Expect(here, here, false, nil); err == nil {
			t.Error("two at once")
		}
		var ref *RefusedError
		if _, err := Dial(l.Addr().String(), nil); !errors.As(err, &ref) || ref.Reason != ReasonToken {
			t.Error(err)
		}
		exp.Cancel()
	}
	a, b := pairOn(t, l, &Dialer{}) // after the failed attempts, the listener accepts new connections
	shut(t, a, b)
}

// TestD55_NoSuspend: a connection with NoSuspend is reset instead of following the peer. [D-55]
func TestD55_NoSuspend(t *testing.T) {
	a, b := pair(t, Options{NoSuspend: true}, Options{})
	if _, err := b.Suspend(context.Background(), 5000); err == nil {
		t.Error("suspended")
	}
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("no error")
	}
	shutOne(t, a)
	shutOne(t, b)
}

// TestTLS runs TLS above a connection. [SDP-15-3] [D-80]
func TestTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	srv.Listener.Close()
	srv.Listener = l
	srv.StartTLS()
	defer srv.Close()
	client := srv.Client()
	client.Transport.(*http.Transport).DialContext = (&Dialer{}).DialContext
	body := strings.Repeat("secret", 50_000)
	resp, err := client.Post(srv.URL, "text/plain", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || string(got) != body {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	client.CloseIdleConnections()
}

// [D-69]
func TestD69_Plain(t *testing.T) {
	lc := ListenConfig{Plain: true}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, first := range []string{"hi\n", "MP", "GET / HTTP/1.0\r\n\r\n"} {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		nc.Write([]byte(first))
		if first == "MP" { // these bytes may begin an MPA Request or plain text
			nc.Write([]byte("X"))
			first += "X"
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if tc, ok := c.(*TCPConn); !ok || tc.Path().SDP {
			t.Errorf("%q: %T", first, c)
		}
		p := make([]byte, len(first))
		if _, err := io.ReadFull(c, p); err != nil || string(p) != first {
			t.Errorf("%q, %v", p, err)
		}
		c.Close()
		nc.Close()
	}
	a, b := pairOn(t, l, &Dialer{RawHello: true})
	shut(t, a, b)
}

func TestListenBoth(t *testing.T) { // [D-71] [SDP-7-1]
	l, err := (&ListenConfig{}).ListenBoth(context.Background(), "tcp", "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if _, ok := c.(*TCPConn); !ok || err != nil {
		t.Errorf("%T, %v", c, err)
	}
	nc.Close()
	c.Close()
	sc, err := Dial(l.SDP.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err = l.Accept()
	if _, ok := c.(*Conn); !ok || err != nil {
		t.Fatalf("%T, %v", c, err)
	}
	shut(t, sc, c.(*Conn))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// A shortage of descriptors ends neither a Listener nor one half of a BothListener.
func TestListenShortage(t *testing.T) { // [D-71]
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return testkit.Shortage(l, 3)
	}
	s, err := (&ListenConfig{}).NewListener(listen())
	if err != nil {
		t.Fatal(err)
	}
	l := newBoth(s, listen())
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, err := l.Accept()
	if _, ok := c.(*TCPConn); !ok || err != nil {
		t.Fatalf("%T, %v", c, err)
	}
	c.Close()
	sc, err := Dial(s.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err = l.Accept()
	if _, ok := c.(*Conn); !ok || err != nil {
		t.Fatalf("%T, %v", c, err)
	}
	shut(t, sc, c.(*Conn))
}

// A Listener whose net.Listener fails says so.
func TestListenFails(t *testing.T) {
	broken := errors.New("broken")
	s, err := (&ListenConfig{}).NewListener(&brokenListener{newMemListener(), broken})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Accept(); !errors.Is(err, broken) {
		t.Errorf("before Close: %v", err)
	}
	s.Close()
	if _, err := s.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A brokenListener fails to accept.
type brokenListener struct {
	*memListener
	err error
}

func (l *brokenListener) Accept() (net.Conn, error) { return nil, l.err }

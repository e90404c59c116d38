package vitcp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is the limit of every wait in these tests. No correct wait takes that long.
const patience = testkit.Patience

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// logger returns a logger to standard error if VITCP_LOG is set, and nil otherwise.
func logger() *slog.Logger {
	if os.Getenv("VITCP_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// openProvider returns a provider that listens on a free port of loopback, unless cfg says
// otherwise.
func openProvider(t testing.TB, cfg Config) *Provider {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Logger == nil {
		cfg.Logger = logger()
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A nicUnderTest is a NIC that records its asynchronous errors.
type nicUnderTest struct {
	*vi.NIC
	p     *Provider
	async chan vi.ErrorDescriptor
}

func openNIC(t testing.TB, p *Provider) *nicUnderTest {
	t.Helper()
	nic, err := vi.Open(p, "127.0.0.1", &vi.Config{Logger: logger()})
	if err != nil {
		t.Fatal(err)
	}
	n := &nicUnderTest{NIC: nic, p: p, async: make(chan vi.ErrorDescriptor, 1000)}
	nic.ErrorCallback(func(d vi.ErrorDescriptor) { n.async <- d })
	t.Cleanup(func() { nic.Close() })
	return n
}

// addr returns the NIC's address with discriminator d.
func (n *nicUnderTest) addr(d string) vi.Address {
	return vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte(d)}
}

func (n *nicUnderTest) port() uint16 {
	ap, _ := n.addr("").AddrPort()
	return ap.Port()
}

// expectAsync waits for the given asynchronous errors, in any order.
func (n *nicUnderTest) expectAsync(t testing.TB, codes ...vi.ErrorCode) {
	t.Helper()
	want := make(map[vi.ErrorCode]int)
	for _, c := range codes {
		want[c]++
	}
	timeout := time.After(patience)
	for range codes {
		select {
		case d := <-n.async:
			if want[d.Code]--; want[d.Code] < 0 {
				t.Errorf("unexpected asynchronous error: %v", d.Code)
			}
		case <-timeout:
			t.Fatalf("asynchronous errors missing: %v", want)
		}
	}
}

// noAsync checks that no asynchronous error was reported.
func (n *nicUnderTest) noAsync(t testing.TB) {
	t.Helper()
	select {
	case d := <-n.async:
		t.Errorf("unexpected asynchronous error: %v", d.Code)
	default:
	}
}

func newVI(t testing.TB, n *nicUnderTest, a vi.Attributes) *vi.VI {
	t.Helper()
	v, err := n.CreateVI(a, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func register(t testing.TB, n *nicUnderTest, size int, a vi.MemAttributes) (*vi.Region, []byte) {
	t.Helper()
	buf := make([]byte, size)
	r, err := n.RegisterMem(buf, a)
	if err != nil {
		t.Fatal(err)
	}
	return r, buf
}

// A pair is two connected VIs over loopback.
type pair struct {
	na, nb *nicUnderTest
	a, b   *vi.VI // a has called b
}

func connectPair(t testing.TB, cfg Config, attrs vi.Attributes) *pair {
	t.Helper()
	return connectPairs(t, cfg, cfg, attrs, attrs, nil)
}

func connectPairs(t testing.TB, ca, cb Config, aa, ab vi.Attributes, before func(*pair)) *pair {
	t.Helper()
	p := &pair{na: openNIC(t, openProvider(t, ca)), nb: openNIC(t, openProvider(t, cb))}
	p.a, p.b = newVI(t, p.na, aa), newVI(t, p.nb, ab)
	if before != nil {
		before(p)
	}
	p.connect(t)
	return p
}

func (p *pair) connect(t testing.TB) {
	t.Helper()
	ctx := testContext(t)
	accepted := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		req, err := p.nb.ConnectWait(ctx, p.nb.addr("server"))
		if err == nil {
			err = req.Accept(ctx, p.b)
		}
		accepted <- err
	}()
	<-waiting
	must(t, askFor(ctx, p.a, p.na.addr("client"), p.nb.addr("server")))
	must(t, <-accepted)
}

// askFor repeats a connection request until the other side waits for the request.
func askFor(ctx context.Context, v *vi.VI, local, remote vi.Address) error {
	for {
		_, err := v.ConnectRequest(ctx, local, remote)
		if !errors.Is(err, vi.ErrNoMatch) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// reliableAll has the level Reliable Reception and everything enabled.
var reliableAll = vi.Attributes{
	Reliability: vi.ReliableReception, EnableRDMAWrite: true, EnableRDMARead: true, FlowControl: true,
}

func withLevel(a vi.Attributes, r vi.Reliability) vi.Attributes {
	a.Reliability = r
	if r == vi.UnreliableDelivery {
		a.EnableRDMARead = false
	}
	return a
}

var allRights = vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true}

func segment(r *vi.Region, off, n int) vi.Segment { return r.Segment(off, n) }

func waitSend(t testing.TB, v *vi.VI) (*vi.Descriptor, error) {
	t.Helper()
	d, err := v.SendWait(testContext(t))
	if d == nil {
		t.Fatalf("no send completion: %v", err)
	}
	return d, err
}

func waitRecv(t testing.TB, v *vi.VI) (*vi.Descriptor, error) {
	t.Helper()
	d, err := v.RecvWait(testContext(t))
	if d == nil {
		t.Fatalf("no receive completion: %v", err)
	}
	return d, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitState waits until v is in state s.
func waitState(t testing.TB, v *vi.VI, s vi.State) {
	t.Helper()
	for end := time.Now().Add(patience); v.State() != s; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("state %v, want %v", v.State(), s)
		}
	}
}

func freePort(t testing.TB) uint16 { return uint16(testkit.FreePort(t)) }

// hideDescriptor hides the socket of a connection, so that the portable path is used.
func hideDescriptor(c net.Conn) net.Conn { return struct{ net.Conn }{c} }

var loopback = netip.MustParseAddr("127.0.0.1")

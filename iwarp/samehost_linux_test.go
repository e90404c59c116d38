package iwarp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/shm"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// samePair returns the two ends of a stream between a Listener and Dial with the given policies. On
// a busy machine, one side may find the other too slow for shared memory. Then samePair tries again.
func samePair(t *testing.T, listener, dialer samehost.Policy) (client, server *QueuePair, err error) {
	t.Helper()
	slow := func(why string) bool {
		return strings.Contains(why, "not answered in time") || strings.Contains(why, "not accepted the connection")
	}
	for end := timeUp(); ; {
		client, server, err = tryPair(t, listener, dialer)
		if !(err != nil && slow(err.Error()) || err == nil && slow(client.Path().Why)) || end() {
			return client, server, err
		}
	}
}

func tryPair(t *testing.T, listener, dialer samehost.Policy) (client, server *QueuePair, err error) {
	t.Helper()
	l, err := Listen("127.0.0.1:0", &Config{SameHost: listener})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	accepted := make(chan *QueuePair, 1)
	go func() {
		q, _ := l.Accept(ctx)
		accepted <- q
	}()
	client, err = Dial(ctx, l.Addr().String(), &Config{SameHost: dialer})
	if err != nil {
		cancel()
		if q := <-accepted; q != nil {
			q.Close()
		}
		return nil, nil, err
	}
	if server = <-accepted; server == nil {
		t.Fatal("not accepted")
	}
	t.Cleanup(func() { closeBoth(client, server) })
	return client, server, nil
}

func TestSameHostPath(t *testing.T) {
	for _, c := range []struct {
		listener, dialer samehost.Policy
		shared           bool
		client, server   string // expected reasons for TCP at the two ends
		err              string
	}{
		{samehost.Auto, samehost.Auto, true, "", "", ""},
		{samehost.Require, samehost.Require, true, "", "", ""},
		{samehost.Off, samehost.Off, false, "turned off", "turned off", ""},
		{samehost.Auto, samehost.Off, false, "turned off", "did not ask", ""},
		{samehost.Off, samehost.Auto, false, "does not offer", "turned off", ""},
		{samehost.Off, samehost.Require, false, "", "", "does not offer"},
		{samehost.Require, samehost.Off, false, "", "", "closed"},
	} {
		t.Run(c.listener.String()+" "+c.dialer.String(), func(t *testing.T) {
			client, server, err := samePair(t, c.listener, c.dialer)
			if err != nil || c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) &&
					!errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
					t.Fatalf("%v, not %q", err, c.err)
				}
				return
			}
			for q, why := range map[*QueuePair]string{client: c.client, server: c.server} {
				p := q.Path()
				if p.SharedMemory != c.shared || !strings.Contains(p.Why, why) ||
					p.SharedMemory != (p.String() == "shared memory") {
					t.Errorf("%v", p)
				}
			}
		})
	}
}

const (
	pumpDepth = 8
	pumpSize  = 100 << 10 // longer than a part of a ring, so that both ends wait for room
)

// A pumper sends messages of random lengths: first half as many as the peer has receives, then one
// for each that it receives.
type pumper struct {
	bufs      [pumpDepth][]byte
	came      atomic.Int64  // number of received messages
	distrusts bool          // the peer may send other bytes than expected
	lends     bool          // the sent messages are in memory of samehost.Alloc
	startup   time.Duration // the time for connecting; 0 stands for testkit.Patience
}

// out returns memory for a message to send.
func (p *pumper) out() []byte {
	if p.lends {
		if b, err := samehost.Alloc(pumpSize); err == nil {
			return b
		}
	}
	return make([]byte, pumpSize)
}

// config returns a configuration that posts the receives before the first message can arrive.
func (p *pumper) config(policy samehost.Policy) *Config {
	var first time.Duration
	// Only this timer ends a stream whose peer closes its direction before its first message.
	if p.distrusts {
		first = 500 * time.Millisecond
	}
	return &Config{SameHost: policy, Responder: ResponderConfig{FirstFPDUTimeout: first}, Prepare: func(q *QueuePair) error {
		for i := range p.bufs {
			p.bufs[i] = make([]byte, pumpSize)
			if err := q.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{Buf(p.bufs[i])}}); err != nil {
				return err
			}
		}
		return nil
	}}
}

// run sends and receives until the stream ends, and returns the number of received messages.
func (p *pumper) run(q *QueuePair) (n int) {
	out, r, sent := p.out(), mrand.New(mrand.NewPCG(1, 2)), uint64(0)
	send := func() bool {
		size := 8 + r.IntN(pumpSize-8)>>r.IntN(12)
		binary.BigEndian.PutUint64(out, sent)
		sent++
		if q.Post(SendWR{SG: []SGE{Buf(out[:size])}}) != nil {
			return false
		}
		c, err := q.SendCQ().Wait(context.Background())
		return err == nil && c.Status == StatusOK
	}
	for range pumpDepth / 2 {
		if !send() {
			return n
		}
	}
	for {
		c, err := q.RecvCQ().Wait(context.Background())
		if err != nil || c.Status != StatusOK {
			return n
		}
		if got := binary.BigEndian.Uint64(p.bufs[c.ID]); got != uint64(n) && !p.distrusts {
			panic(fmt.Sprintf("message %d instead of %d", got, n))
		}
		n++
		p.came.Add(1)
		if q.PostRecv(RecvWR{ID: c.ID, SG: []SGE{Buf(p.bufs[c.ID])}}) != nil || !send() {
			return n
		}
	}
}

// sameHostChild is the main function of the other process: it listens, or dials, and runs a pumper.
func sameHostChild(role string, policy samehost.Policy) error {
	p := pumper{distrusts: os.Getenv(hostileVariable) != "", lends: true}
	cfg := p.config(policy)
	ctx := context.Background()
	if at, ok := strings.CutPrefix(role, "dial "); ok {
		q, err := Dial(ctx, at, cfg)
		if err != nil {
			return err
		}
		p.run(q)
		return nil
	}
	l, err := Listen("127.0.0.1:0", cfg)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	q, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	p.run(q)
	return nil
}

const (
	childVariable  = "VIADUCT_TEST_SAMEHOST_CHILD"
	policyVariable = "VIADUCT_TEST_SAMEHOST_POLICY"
)

func init() {
	role := os.Getenv(childVariable)
	if role == "" {
		return
	}
	if seed, err := strconv.ParseUint(os.Getenv(hostileVariable), 10, 64); err == nil {
		go scribble(seed)
	}
	policy, err := samehost.Parse(os.Getenv(policyVariable))
	if err == nil {
		err = sameHostChild(role, policy)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// withChild connects p to another process. The other process listens if listens is true, and dials
// otherwise; attr may start it as another user. stop kills the process; the end of the test calls
// stop too. q is nil if p distrusts the process and the process did not connect.
func (p *pumper) withChild(t *testing.T, listens bool, policy samehost.Policy, attr *syscall.SysProcAttr) (q *QueuePair, child *exec.Cmd, stop func()) {
	t.Helper()
	cfg := p.config(policy)
	child = exec.Command("/proc/self/exe") // other users may execute this path, wherever the file is
	// A process that writes random words to its own memory may report that, or crash.
	if !p.distrusts {
		child.Stderr = os.Stderr
	}
	child.SysProcAttr = attr
	child.Env = append(os.Environ(), policyVariable+"="+policy.String())
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(p.startup, testkit.Patience))
	defer cancel()
	var err error
	if listens {
		child.Env = append(child.Env, childVariable+"=listen")
		out, _ := child.StdoutPipe()
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		var at string
		fmt.Fscan(out, &at)
		q, err = Dial(ctx, at, cfg)
	} else {
		l, lerr := Listen("127.0.0.1:0", cfg)
		if lerr != nil {
			t.Fatal(lerr)
		}
		defer l.Close()
		child.Env = append(child.Env, childVariable+"=dial "+l.Addr().String())
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		q, err = l.Accept(ctx)
	}
	stop = sync.OnceFunc(func() {
		child.Process.Kill()
		child.Wait()
	})
	t.Cleanup(stop)
	if err != nil {
		if p.distrusts {
			return nil, child, stop
		}
		t.Fatal(err)
	}
	return q, child, stop
}

// TestSameHostKill kills a process at random moments. This process must notice, at best within a
// second, and release everything of the streams.
func TestSameHostKill(t *testing.T) {
	rounds := 6
	if s := os.Getenv("VIADUCT_TEST_KILLS"); s != "" {
		fmt.Sscan(s, &rounds)
	}
	files := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		// The timer of a consumer that sleeps at a connection stays open. Whether there is a first
		// such sleep, and when, depends on the machine.
		return len(slices.DeleteFunc(e, func(e os.DirEntry) bool {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			return to == "anon_inode:[timerfd]"
		}))
	}
	mappings := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(b), "viaduct-rings")
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "viaduct-alloc") && strings.Contains(line, " r--s ") {
				n++ // memory that the child has lent
			}
		}
		return n
	}
	best := testkit.Patience
	once := func(i int) {
		p := pumper{lends: i%3 == 0}
		q, child, stop := p.withChild(t, i%2 == 0, samehost.Require, nil)
		defer stop()
		if !q.Path().SharedMemory {
			t.Fatal(q.Path())
		}
		came := make(chan int, 1)
		go func() { came <- p.run(q) }()
		time.Sleep(time.Duration(mrand.IntN(60)) * time.Millisecond)
		child.Process.Kill()
		killed := time.Now()
		n := testkit.Await(t, "the stream ends", came)
		best = min(best, time.Since(killed))
		q.Close()
		t.Logf("%d messages, %v", n, q.Err())
	}
	once(0) // creates what the process keeps for good, for example pollers
	once(1)
	before := files()
	for i := range rounds {
		once(i)
	}
	if best > time.Second { // a busy machine delays single rounds
		t.Errorf("heard after %v at best", best)
	}
	testkit.Eventually(t, "descriptors, mappings and the memory of rings are given back",
		func() bool { return files() <= before && mappings() == 0 && shm.Used() == 0 })
}

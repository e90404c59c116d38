package sdp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// asHolder makes this test binary a holder of a connection instead of a test.
const asHolder = "VIADUCT_TEST_HOLDER"

// Messages between the test and a holder, one JSON text per line.
type (
	// An order goes to a holder. One field is set.
	order struct {
		Accept  bool        // take the first connection that comes
		Expect  *connAddrs  // prepare for this connection
		Resume  *handedOver // and go on with it
		Suspend uint16      // hand the connection over to the listener at this port
		Finish  bool        // write no more, read to the end
		Variant string      // the first order: the name of the listener's options
	}
	connAddrs struct{ Local, Remote netip.AddrPort }
	// An answer comes from a holder for each order, and once at the start.
	answer struct {
		Err      string
		Port     uint16 // where it listens
		Conn     *connAddrs
		Handover *handedOver
		Sums     *sums
		Written  int64 // bytes so far, by all holders
	}
	// What the old holder knows: the state of the connection, and that of the
	// program that uses it.
	handedOver struct {
		State           []byte // of the connection
		Read, Sent, Gen []byte // states of two hashes and of a generator
		Unwritten       []byte // made, and not taken by Write
		Written         int64
	}
	sums struct{ Read, Sent []byte }
)

// An app is a program with a connection that is busy both ways: it generates bytes without end, and
// hashes both directions.
type app struct {
	c          net.Conn
	read, sent hash.Hash
	gen        *rand.ChaCha8
	unwritten  []byte
	written    int64
	stop       chan struct{}
	reading    chan error
	writing    chan error
}

func newApp(seed byte) *app {
	return &app{read: sha256.New(), sent: sha256.New(), gen: rand.NewChaCha8([32]byte{seed})}
}

// run begins to read and write.
func (a *app) run(c net.Conn) {
	a.c, a.stop, a.reading, a.writing = c, make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		b := make([]byte, 100_000)
		for {
			n, err := c.Read(b)
			a.read.Write(b[:n])
			if err != nil {
				a.reading <- err
				return
			}
		}
	}()
	go func() { a.writing <- a.write() }()
}

func (a *app) write() error {
	b := make([]byte, 300_000)
	for k := 1; ; k = (k*7919 + 1) % len(b) {
		if len(a.unwritten) == 0 {
			select {
			case <-a.stop:
				return nil
			default:
			}
			a.gen.Read(b[:k+1])
			a.unwritten = b[:k+1]
		}
		n, err := a.c.Write(a.unwritten)
		a.sent.Write(a.unwritten[:n])
		a.written += int64(n)
		a.unwritten = a.unwritten[n:]
		if err != nil {
			return err
		}
	}
}

// finish writes no more and reads to the end.
func (a *app) finish() (*sums, error) {
	close(a.stop)
	if err := <-a.writing; err != nil {
		return nil, err
	}
	if err := a.c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return nil, err
	}
	if err := <-a.reading; err != io.EOF {
		return nil, err
	}
	return &sums{Read: a.read.Sum(nil), Sent: a.sent.Sum(nil)}, nil
}

// handOver suspends the connection and packs up.
func (a *app) handOver(ctx context.Context, port uint16) (*handedOver, error) {
	st, err := a.c.(*Conn).Suspend(ctx, port)
	if err != nil {
		return nil, err
	}
	if err := <-a.reading; !errors.Is(err, net.ErrClosed) {
		return nil, fmt.Errorf("Read: %w", err)
	}
	if err := <-a.writing; !errors.Is(err, net.ErrClosed) {
		return nil, fmt.Errorf("Write: %w", err)
	}
	h := &handedOver{Unwritten: a.unwritten, Written: a.written}
	for _, v := range []struct {
		p *[]byte
		m any
	}{{&h.State, st}, {&h.Read, a.read}, {&h.Sent, a.sent}, {&h.Gen, a.gen}} {
		if *v.p, err = v.m.(encoding.BinaryMarshaler).MarshalBinary(); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// takeOver unpacks and goes on.
func takeOver(ctx context.Context, exp *Expectation, h *handedOver) (*app, error) {
	a, st := newApp(0), new(State)
	a.unwritten, a.written = h.Unwritten, h.Written
	for _, v := range []struct {
		b []byte
		m any
	}{{h.State, st}, {h.Read, a.read}, {h.Sent, a.sent}, {h.Gen, a.gen}} {
		if err := v.m.(encoding.BinaryUnmarshaler).UnmarshalBinary(v.b); err != nil {
			return nil, err
		}
	}
	c, err := exp.Resume(ctx, st)
	if err != nil {
		return nil, err
	}
	a.run(c)
	return a, nil
}

// holderMain is a process that holds the connection for a while. It ends when its input ends.
func holderMain() int {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var first order
	if err := in.Decode(&first); err != nil {
		return 2
	}
	var opt Options
	for _, v := range processVariants {
		if v.name == first.Variant {
			opt = v.opt
		}
	}
	l, err := Listen("127.0.0.1:0", &opt)
	if err != nil {
		out.Encode(answer{Err: err.Error()})
		return 1
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	out.Encode(answer{Port: port})
	var a *app
	var exp *Expectation
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return 0
		}
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		var ans answer
		err := error(nil)
		switch {
		case o.Accept:
			var c *Conn
			if c, err = l.AcceptConn(ctx); err == nil {
				ans.Conn = &connAddrs{netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String())}
				a = newApp(2)
				a.run(c)
			}
		case o.Expect != nil:
			exp, err = l.Expect(o.Expect.Local, o.Expect.Remote, false, nil)
		case o.Resume != nil:
			if a, err = takeOver(ctx, exp, o.Resume); err == nil {
				ans.Conn = &connAddrs{netip.MustParseAddrPort(a.c.LocalAddr().String()), netip.MustParseAddrPort(a.c.RemoteAddr().String())}
			}
		case o.Suspend != 0:
			ans.Handover, err = a.handOver(ctx, o.Suspend)
		case o.Finish:
			if ans.Sums, err = a.finish(); err == nil {
				a.c.(*Conn).SetLinger(20)
				err = a.c.Close()
			}
			ans.Written = a.written
		}
		cancel()
		if err != nil {
			ans.Err = err.Error()
		}
		out.Encode(ans)
	}
}

// A holder is such a process, seen from the test.
type holder struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	errs bytes.Buffer
	port uint16
}

func startHolder(t *testing.T, variant string) *holder {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{t: t, cmd: exec.Command(exe)}
	h.cmd.Env = append(os.Environ(), asHolder+"=1", "GORACE=atexit_sleep_ms=0 exitcode=66 "+os.Getenv("GORACE"))
	h.cmd.Stderr = &h.errs
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.out = json.NewDecoder(bufio.NewReader(stdout))
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.end(false) })
	h.port = h.ask(order{Variant: variant}).Port
	return h
}

// ask gives an order and returns the answer.
func (h *holder) ask(o order) answer {
	h.t.Helper()
	if err := json.NewEncoder(h.in).Encode(o); err != nil {
		h.t.Fatal(err)
	}
	var a answer
	if err := h.out.Decode(&a); err != nil || a.Err != "" {
		h.t.Fatalf("holder: %v %s\n%s", err, a.Err, h.errs.String())
	}
	return a
}

// end ends the process; it has to end well if it was asked to.
func (h *holder) end(asked bool) {
	h.t.Helper()
	if h.cmd.ProcessState != nil {
		return
	}
	h.in.Close()
	kill := time.AfterFunc(20*time.Second, func() { h.cmd.Process.Kill() })
	defer kill.Stop()
	if err := h.cmd.Wait(); asked && err != nil {
		h.t.Errorf("holder: %v\n%s", err, h.errs.String())
	}
}

var processVariants = []struct {
	name string
	opt  Options
	most int64 // bytes between two moves, at least
}{
	{"auto", Options{}, 3 << 20},
	{"buffered", Options{SendPolicy: PinBuffered, RecvPolicy: PinBuffered}, 3 << 20},
	{"combined", Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 4096, RecvThreshold: 4096, RecvBufferSize: 4096}, 1 << 20},
	{"pipelined", Options{SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 4096, RecvThreshold: 4096, RecvBufferSize: 4096}, 1 << 20},
	{"tiny", Options{RecvBuffers: 3, RecvBufferSize: 37, SendBuffer: 64, ReceiveBuffer: 64}, 3000},
}

// TestSDP_13_1_1_Processes: a connection busy in both directions moves from one
// process to a new one, which the program at its other end does not notice, and
// from there to a third. Both streams arrive whole, by SHA-256 carried along
// from holder to holder. [SDP-13.1.1-1] [SDP-13.1.1-11] [SDP-13.1.1-12]
// [SDP-13.1.1-16] [SDP-13.1.1-17]
func TestSDP_13_1_1_Processes(t *testing.T) {
	for _, v := range processVariants {
		t.Run(v.name, func(t *testing.T) {
			old := startHolder(t, v.name)
			d := &Dialer{Options: v.opt}
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			if err := json.NewEncoder(old.in).Encode(order{Accept: true}); err != nil {
				t.Fatal(err)
			}
			nc, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", old.port))
			if err != nil {
				t.Fatal(err)
			}
			c := nc.(*Conn)
			defer shut(t, c)
			c.SetDeadline(time.Now().Add(50 * time.Second))
			var accepted answer
			if err := old.out.Decode(&accepted); err != nil || accepted.Err != "" {
				t.Fatal(err, accepted.Err)
			}
			at := accepted.Conn
			us := newApp(1)
			us.run(c)
			for range 2 {
				// Both directions have to have moved since the last time.
				moved := func() (in, out int64) {
					st := c.Stats()
					return int64(st.RecvBytesBcopy + st.RecvBytesRead + st.RecvBytesWrite + st.RecvBytesPrefix), int64(st.SentBytesBcopy + st.SentBytesRead + st.SentBytesWrite + st.SentBytesPrefix)
				}
				in, out := moved()
				for {
					i, o := moved()
					if i-in >= v.most && o-out >= v.most {
						break
					}
					select {
					case err := <-us.reading:
						t.Fatalf("Read: %v", err)
					case err := <-us.writing:
						t.Fatalf("Write: %v", err)
					case <-ctx.Done():
						t.Fatalf("moved %d and %d bytes of %d", i-in, o-out, v.most)
					case <-time.After(time.Millisecond):
					}
				}
				fresh := startHolder(t, v.name)
				fresh.ask(order{Expect: at})
				h := old.ask(order{Suspend: fresh.port}).Handover
				old.end(true)
				at = fresh.ask(order{Resume: h}).Conn
				old = fresh
			}
			if err := json.NewEncoder(old.in).Encode(order{Finish: true}); err != nil {
				t.Fatal(err)
			}
			got, err := us.finish()
			if err != nil {
				t.Fatal(err)
			}
			var last answer
			if err := old.out.Decode(&last); err != nil || last.Err != "" {
				t.Fatal(err, last.Err)
			}
			if !bytes.Equal(got.Sent, last.Sums.Read) || !bytes.Equal(got.Read, last.Sums.Sent) || us.written == 0 || last.Written == 0 {
				t.Errorf("the streams differ: %x sent, %x arrived; %x sent, %x arrived", got.Sent, last.Sums.Read, last.Sums.Sent, got.Read)
			}
			if n := c.Stats().Suspensions; n != 2 {
				t.Errorf("%d suspensions", n)
			}
			old.end(true)
		})
	}
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"time"
	"unsafe"

	"viaduct/samehost"
)

// A measure describes a measurement of this project's packages in two processes. This process is
// the initiator, and a new process of the same program is the peer.
type measure struct {
	Transport  string        `json:"transport"` // see endpoints
	Op         string        `json:"op"`        // see ops
	Size       int           `json:"size"`      // bytes of a message
	Depth      int           `json:"depth"`     // outstanding messages per connection
	Bell       int           `json:"bell"`      // messages posted per doorbell
	Footprint  int           `json:"footprint"` // bytes of the buffer that messages cycle through
	Conns      int           `json:"conns"`
	Time       time.Duration `json:"time"`
	Congestion string        `json:"congestion"`
	CRC        bool          `json:"crc"`
	FPDU       int           `json:"fpdu"`  // bytes of the longest FPDU; 0 means the largest possible
	Level      string        `json:"level"` // reliability level of a VI: delivery or reception
	Wait       bool          `json:"wait"`  // wait for completions instead of polling

	OneCPU bool `json:"one_cpu"` // run both processes on one processor
	Rings  bool `json:"rings"`   // use shared memory, and fail if it is not available
	Alloc  bool `json:"alloc"`   // send from memory that samehost.Alloc returned

	profile string

	// Both sides measure the memory of idle connections, and neither may close them before the
	// other has measured. The initiator waits for the peer's figures in peerReported; in hold the
	// peer sends its figures and waits for the end of the initiator.
	peerReported, hold func()

	// over ends in the peer when the initiator has measured. The peer of opSetup, which cannot know
	// how many connections come, and the peers of opHTTP and opGRPC serve until then.
	over context.Context
}

// The operations.
const (
	opWrite  = "write"  // RDMA Writes, rate
	opRead   = "read"   // RDMA Reads, rate
	opSend   = "send"   // Sends, rate
	opStream = "stream" // bytes over a net.Conn, rate
	opPing   = "ping"   // Send and Send back, one-way latency
	opIdle   = "idle"   // memory of idle connections
	opSetup  = "setup"  // connections made and closed per second
	opHTTP   = "http"   // HTTP requests and their answers, rate
	opGRPC   = "grpc"   // unary calls of gRPC over one connection, by Conns callers, rate
	opEcho   = "echo"   // messages there and back on each connection by a goroutine of its own, rate
)

// A result holds the figures of a run. A field not measured by the operation is 0.
type result struct {
	Bytes     float64 `json:"bytes,omitempty"`
	Seconds   float64 `json:"seconds"`
	Messages  float64 `json:"messages"`
	LatencyUS float64 `json:"latency_us,omitempty"` // one way, median
	SlowUS    float64 `json:"slow_us,omitempty"`    // round trip, 99th percentile

	QuantilesUS []float64 `json:"quantiles_us,omitempty"` // one way, at the quantiles of the variable quantiles

	TxCPU    float64 `json:"tx_cpu,omitempty"` // seconds
	RxCPU    float64 `json:"rx_cpu,omitempty"`
	TxAllocs float64 `json:"tx_allocs"` // heap objects per message
	RxAllocs float64 `json:"rx_allocs"`
	TxMemory float64 `json:"tx_memory,omitempty"` // bytes per connection
	RxMemory float64 `json:"rx_memory,omitempty"`
}

// An endpoint measures a transport. dial runs in the initiator, and serve in the peer process.
type endpoint interface {
	// serve is the peer's side. serve passes the data needed by dial to announce, calls mark when
	// the measured part begins, and returns when the initiator has closed all connections.
	serve(m measure, announce func(v any) error, mark func()) error

	// dial connects to the peer whose announcement is hello, and measures.
	dial(m measure, hello json.RawMessage) (result, error)
}

// settled is how long connections are idle before their memory is measured.
const settled = 900 * time.Millisecond

// outlast keeps the peer's side running until the measurement ends. Idle connections stay open
// until both processes have measured their memory.
func (m measure) outlast(wg *sync.WaitGroup, mark func()) {
	if m.Op != opIdle {
		wg.Wait()
		return
	}
	time.Sleep(settled)
	mark()
	m.hold()
}

// idle measures the memory of the initiator's idle connections. before is the usage from before the
// first connection.
func (m measure) idle(before usage) result {
	time.Sleep(settled)
	u := now().sub(before)
	m.peerReported() // the peer must measure while the connections are open
	return result{Seconds: 1, Messages: float64(m.Conns), TxMemory: u.Memory / float64(m.Conns)}
}

var endpoints = map[string]endpoint{
	"vitcp": viEndpoint{openVITCP},
	"fcvi":  viEndpoint{openFCVI},
	"iwarp": iwarpEndpoint{},
	"tcp":   streamEndpoint{dialTCP, listenTCP},
	"sdp":   streamEndpoint{dialSDP, listenSDP},
	"unix":  streamEndpoint{dialUnix, listenUnix},
}

// driveMain runs one measurement with the parameters in args. It is the command drive, run by
// driveApart for every measurement, and by hand for tuning.
func driveMain(args []string) error {
	var m measure
	var peer bool
	var times int
	fs := flag.NewFlagSet("drive", flag.ContinueOnError)
	fs.StringVar(&m.Transport, "transport", "vitcp", "vitcp, iwarp, fcvi, sdp, tcp or unix")
	fs.StringVar(&m.Op, "op", opWrite, "write, read, send, stream, ping, idle, setup, http, grpc or echo")
	fs.IntVar(&m.Size, "size", 64<<10, "bytes of a message")
	fs.IntVar(&m.Depth, "depth", 16, "messages outstanding on a connection")
	fs.IntVar(&m.Bell, "bell", 1, "messages posted per doorbell")
	fs.IntVar(&m.Footprint, "footprint", 0, "bytes of buffer (default: one doorbell's messages)")
	fs.IntVar(&m.Conns, "conns", 1, "connections")
	fs.DurationVar(&m.Time, "time", 400*time.Millisecond, "how long to measure")
	fs.StringVar(&m.Congestion, "congestion", "reno", "congestion control, empty for the system's")
	fs.BoolVar(&m.CRC, "crc", false, "iwarp and sdp: CRC on")
	fs.IntVar(&m.FPDU, "fpdu", 0, "iwarp: bytes of the longest FPDU")
	fs.StringVar(&m.Level, "level", "delivery", "vitcp and fcvi: delivery or reception")
	fs.BoolVar(&m.Rings, "rings", false, "vitcp, iwarp, fcvi and sdp: through shared memory, or fail")
	fs.BoolVar(&m.Alloc, "alloc", false, "vitcp, iwarp and fcvi: send from memory of samehost.Alloc")
	fs.BoolVar(&m.Wait, "wait", false, "wait for completions instead of polling")
	fs.BoolVar(&peer, "peer", false, "be the peer (internal)")
	fs.IntVar(&times, "times", 1, "how often")
	fs.StringVar(&m.profile, "profile", "", "write CPU profiles to `PREFIX`.tx and .rx")
	if err := fs.Parse(args); err != nil {
		return err
	}
	m.fill()
	e, ok := endpoints[m.Transport]
	if !ok {
		return fmt.Errorf("unknown transport %q", m.Transport)
	}
	if peer {
		return drivePeer(e, m)
	}
	for range times {
		r, err := drive(m)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func (m *measure) fill() {
	m.Size = max(m.Size, 1)
	m.Bell = max(m.Bell, 1)
	m.Depth = max(m.Depth, m.Bell)
	m.Depth -= m.Depth % m.Bell
	m.Conns = max(m.Conns, 1)
	m.Footprint = max(m.Footprint, m.Size)
	m.Footprint -= m.Footprint % m.Size
}

// sameHost returns the shared-memory policy of a measurement.
func (m *measure) sameHost() samehost.Policy {
	if m.Rings {
		return samehost.Require
	}
	return samehost.Off
}

// slots returns the number of messages fitting into the footprint.
func (m *measure) slots() int { return m.Footprint / m.Size }

func (m *measure) args() []string {
	args := []string{
		"drive", "-transport", m.Transport, "-op", m.Op, "-size", fmt.Sprint(m.Size),
		"-depth", fmt.Sprint(m.Depth), "-bell", fmt.Sprint(m.Bell), "-footprint", fmt.Sprint(m.Footprint),
		"-conns", fmt.Sprint(m.Conns), "-time", m.Time.String(), "-congestion", m.Congestion,
		fmt.Sprintf("-crc=%t", m.CRC), "-fpdu", fmt.Sprint(m.FPDU), "-level", m.Level,
		fmt.Sprintf("-wait=%t", m.Wait), "-profile", m.profile,
	}
	// The flags below are passed only if set, because older builds lack the flags.
	if m.Rings {
		args = append(args, "-rings")
	}
	if m.Alloc {
		args = append(args, "-alloc")
	}
	return args
}

// drive starts the peer's process, measures, and adds the peer's figures to the result.
func drive(m measure) (result, error) {
	m.fill()
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	cmd := exec.Command(self, append(m.args(), "-peer")...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return result{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	defer func() {
		in.Close() // an idle peer waits for the end of its input
		done := make(chan struct{})
		go func() { cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			cmd.Process.Kill()
			<-done
		}
	}()
	lines := bufio.NewReader(out)
	hello, err := lines.ReadBytes('\n')
	if err != nil {
		return result{}, fmt.Errorf("the peer did not start: %w", err)
	}
	report := sync.OnceValues(func() ([]byte, error) { return lines.ReadBytes('\n') })
	m.peerReported = func() { report() }
	stop := profile(m.profile, ".tx")
	r, err := endpoints[m.Transport].dial(m, hello)
	stop()
	if err != nil {
		return r, err
	}
	if m.Op == opSetup || m.Op == opHTTP || m.Op == opGRPC {
		in.Close() // the peer reports then
	}
	last, err := report()
	if err != nil {
		return r, fmt.Errorf("the peer did not report: %w", err)
	}
	var u usage
	if err := json.Unmarshal(last, &u); err != nil {
		return r, err
	}
	r.RxCPU = u.CPU
	if r.Messages > 0 {
		r.RxAllocs = u.Allocs / r.Messages
	}
	if m.Op == opIdle {
		r.RxMemory = u.Memory / float64(m.Conns)
	}
	return r, nil
}

// driveApart runs drive in a new process, and on one processor if the measurement requires a single
// processor. program is the path of another build of the program; "" means the running build.
func driveApart(program string, m measure) (result, error) {
	m.fill()
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return result{}, err
		}
		program = self
	}
	cmd := exec.Command(program, m.args()...)
	if m.OneCPU {
		last := fmt.Sprint(runtime.NumCPU() - 1)
		cmd = exec.Command("taskset", append([]string{"-c", last, program}, m.args()...)...)
	}
	return jsonOf(output(cmd))
}

// drivePeer is the main function of the peer's process.
func drivePeer(e endpoint, m measure) error {
	var stopped context.CancelFunc
	m.over, stopped = context.WithCancel(context.Background())
	go func() {
		// The end of the input means that the initiator has measured, or has ended.
		io.Copy(io.Discard, os.Stdin)
		stopped()
		time.Sleep(patience)
		os.Exit(1)
	}()
	enc := json.NewEncoder(os.Stdout)
	start := now()
	stop := profile(m.profile, ".rx")
	var end usage
	ended := false
	m.hold = func() {
		enc.Encode(end)
		<-m.over.Done()
	}
	err := e.serve(m, func(v any) error { return enc.Encode(v) }, func() {
		if m.Op == opIdle {
			// The first mark is set before the first connection, the second when all connections
			// are open.
			if u := now().sub(start); !ended && start.marked {
				end, ended = u, true
			}
		}
		if !ended {
			start = now()
			start.marked = true
		}
	})
	if !ended {
		end = now().sub(start)
	}
	stop()
	if err != nil {
		return err
	}
	if m.Op == opIdle {
		return nil // hold has already sent the figures
	}
	return enc.Encode(end)
}

// A usage holds the resources used by a process.
type usage struct {
	CPU    float64 `json:"cpu"`    // seconds
	Allocs float64 `json:"allocs"` // heap objects
	Memory float64 `json:"memory"` // bytes

	marked bool
}

func now() usage {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return usage{
		CPU:    cpuSeconds(),
		Allocs: float64(ms.Mallocs),
		Memory: memoryInUse(),
	}
}

func (u usage) sub(v usage) usage {
	return usage{CPU: u.CPU - v.CPU, Allocs: u.Allocs - v.Allocs, Memory: u.Memory - v.Memory}
}

// memoryInUse returns the bytes of the runtime's memory after a collection: heap, stacks and
// internal data.
func memoryInUse() float64 {
	for range 3 {
		debug.FreeOSMemory() // pools are empty after the second collection
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return float64(ms.Sys - ms.HeapReleased)
}

func profile(prefix, suffix string) (stop func()) {
	if prefix == "" {
		return func() {}
	}
	f, err := os.Create(prefix + suffix)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return func() {}
	}
	runtime.SetCPUProfileRate(1000)
	pprof.StartCPUProfile(f)
	return func() { pprof.StopCPUProfile(); f.Close() }
}

// buffer returns n bytes from a page boundary on. All n bytes were written, so that their pages are
// present.
func buffer(n int) []byte { return fillBuffer(plainBuffer(n)) }

// buffer returns the memory a measurement registers and cycles through.
func (m *measure) buffer() ([]byte, error) {
	if !m.Alloc {
		return buffer(m.Footprint), nil
	}
	b, err := samehost.Alloc(m.Footprint)
	return fillBuffer(b), err
}

func plainBuffer(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	off := 0
	if r := int(uintptr(unsafe.Pointer(&b[0])) % page); r != 0 {
		off = page - r
	}
	return b[off : off+n : off+n]
}

func fillBuffer(b []byte) []byte {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// A stopwatch detects the end of a time limit without reading the clock for every message.
type stopwatch struct {
	start time.Time
	limit time.Duration
	n, of int
	over  bool
	used  usage
}

// watch starts a stopwatch. The stopwatch reads the clock once in the given number of messages.
func watch(limit time.Duration, messages int) *stopwatch {
	w := &stopwatch{limit: limit, of: max(messages, 1), used: now()}
	w.start = time.Now()
	return w
}

func (w *stopwatch) up(n int) bool {
	if w.n += n; w.n >= w.of {
		w.n = 0
		w.over = w.over || time.Since(w.start) > w.limit
	}
	return w.over
}

// setups measures the rate of calls of the function one, at least one call, until limit has passed.
// A call makes and closes a connection.
func setups(limit time.Duration, one func() error) (result, error) {
	n := 0
	for w := watch(limit, 1); ; {
		if err := one(); err != nil {
			return result{}, fmt.Errorf("connection %d: %w", n, err)
		}
		if n++; w.up(1) {
			return w.result(n, 0), nil
		}
	}
}

// every returns the number of messages between two readings of the clock: as many messages of size
// bytes as fit into 256 KiB, at least one.
func every(size int) int { return max(1, 256<<10/size) }

// result returns the result for the given number of messages of size bytes since the start.
func (w *stopwatch) result(messages, size int) result {
	s := time.Since(w.start).Seconds()
	u := now().sub(w.used)
	return result{
		Bytes: float64(messages) * float64(size), Seconds: s, Messages: float64(messages),
		TxCPU: u.CPU, TxAllocs: u.Allocs / float64(max(messages, 1)),
	}
}

// roundTrips calls ping until limit has passed, and returns the median and the quantiles of the
// latency in one direction, half the duration of a ping.
func roundTrips(limit time.Duration, ping func() error) (result, error) {
	for range 100 { // warm up
		if err := ping(); err != nil {
			return result{}, err
		}
	}
	rtt := make([]time.Duration, 0, 1<<20)
	w := watch(limit, 1)
	for last := time.Duration(0); len(rtt) < cap(rtt) && last < limit; {
		if err := ping(); err != nil {
			return result{}, err
		}
		t := time.Since(w.start) // reads one clock, as the compared programs do; time.Now reads two
		rtt = append(rtt, t-last)
		last = t
	}
	r := w.result(len(rtt), 0)
	slices.Sort(rtt)
	oneWay := func(i int) float64 { return float64(rtt[i].Nanoseconds()) / 2e3 }
	r.LatencyUS = oneWay(len(rtt) / 2)
	for _, q := range quantiles {
		r.QuantilesUS = append(r.QuantilesUS, oneWay(int(float64(len(rtt))*q)))
	}
	return r, nil
}

var errUnsupported = errors.New("this transport does not have the operation")

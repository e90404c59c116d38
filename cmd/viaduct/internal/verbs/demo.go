package verbs

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
)

// demoBytes is how much data the demo moves without a file.
const demoBytes = 64 << 20

// demoRounds is the number of rounds per transport. The best time counts, since the first round has
// cold caches.
const demoRounds = 2

// A demoRow is a line of the demo's table.
type demoRow struct {
	Transport string  `json:"transport"`
	Shared    bool    `json:"shared_memory"`
	WhyTCP    string  `json:"why_tcp,omitempty"`
	Direction string  `json:"direction"` // get or put
	Mechanism string  `json:"mechanism"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"bytes_per_second"`
	Relative  float64 `json:"relative_to_tcp"`
	SHA256    string  `json:"sha256"`
	OK        bool    `json:"ok"`
	Error     string  `json:"error,omitempty"`
}

func (r *demoRow) verdict() string {
	if r.OK {
		return "verified"
	}
	return "FAILED: " + r.Error
}

func demoCommand(e *shell.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "demo [FILE]",
		Short: "the tour: a file over every transport, both ways, verified",
		Long: `Start a server process and move FILE, or 64 MiB of random bytes, over every
transport, both ways, over TCP and through shared memory ("shm"), which is the
default between processes of one user on one host. The seconds are those of the
transfer, without the time to hash the file, except that the server hashes
arriving bytes. The table compares each row with plain TCP.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := os.MkdirTemp("", "viaduct-demo-*")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			return runDemo(cmd.Context(), e, dir, args)
		},
	}
}

func runDemo(ctx context.Context, e *shell.Env, dir string, args []string) error {
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	source := filepath.Join(root, "file")
	from, err := demoFrom(args)
	if err != nil {
		return err
	}
	defer from.Close()
	if !e.JSON {
		e.Printf(demoLine, "transport", "path", "mechanism", "bytes", "seconds", "rate", "to TCP", "verdict")
	}
	size, sum, err := demoSource(source, from)
	if err != nil {
		return err
	}
	serve := []string{"serve", "--root", root, "--writable", "--log-level", "error"}
	ts := demoOrder()
	for _, t := range ts {
		serve = append(serve, "--listen", demoURL(t.Scheme))
	}
	c, err := startChild(ctx, e, serve...)
	if err != nil {
		return err
	}
	defer c.stop()
	urls, err := c.listening(ctx, len(ts))
	if err != nil {
		return err
	}
	var rows []demoRow
	base := map[string]float64{}
	failed := 0
	for _, w := range demoWays(e, ts) {
		t := w.t
		for _, dir2 := range []string{"get", "put"} {
			r := demoRow{Transport: t.Scheme, Direction: dir2, Bytes: size}
			if err := demoWay(ctx, e, w, urls[slices.Index(ts, t)], dir, source, size, sum, &r); err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				r.Error = err.Error()
				failed++
			} else {
				r.OK = true
			}
			if r.Seconds > 0 && r.OK {
				r.Rate = float64(size) / r.Seconds
				if t.Scheme == "tcp" {
					base[dir2] = r.Rate
				}
				if base[dir2] > 0 {
					r.Relative = r.Rate / base[dir2]
				}
			}
			rows = append(rows, r)
			if !e.JSON {
				r.print(e)
			}
		}
	}
	if e.JSON {
		if err := e.PrintJSON(map[string]any{"rows": rows}); err != nil {
			return err
		}
	}
	if failed > 0 {
		return shell.Hint(fmt.Errorf("%d of %d rows failed", failed, len(rows)),
			"run viaduct demo --log-level debug to see why")
	}
	return nil
}

// demoOrder puts plain TCP first, since the others are compared with plain TCP.
func demoOrder() (ts []*transport.Transport) {
	for _, t := range transport.All() {
		if t.Scheme == "tcp" {
			ts = append([]*transport.Transport{t}, ts...)
		} else {
			ts = append(ts, t)
		}
	}
	return ts
}

// A demoPath is a transport with a setting for shared memory.
type demoPath struct {
	t        *transport.Transport
	sameHost string // parameter of the address; "" for transports without it
}

// demoWays returns each transport once, or twice if the bytes can take TCP and shared memory here.
// With a capture there is only TCP, because shared memory cannot be captured.
func demoWays(e *shell.Env, ts []*transport.Transport) (ways []demoPath) {
	for _, t := range ts {
		switch {
		case addr.SchemeOf(t.Scheme).Param("samehost") == nil, !sock.SharesByDefault, e.Capture != nil:
			ways = append(ways, demoPath{t: t})
		default:
			ways = append(ways, demoPath{t, "off"}, demoPath{t, "auto"})
		}
	}
	return ways
}

// demoURL returns the address of the demo's server, on a port chosen by the system.
func demoURL(scheme string) string {
	for _, s := range addr.Schemes {
		if s.Name == scheme && s.HasDisc {
			return scheme + "://127.0.0.1:0/demo"
		}
	}
	return scheme + "://127.0.0.1:0"
}

// demoFrom opens the file to move, or demoBytes random bytes if no file was given.
func demoFrom(args []string) (io.ReadCloser, error) {
	if len(args) == 0 {
		return io.NopCloser(io.LimitReader(rand.Reader, demoBytes)), nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, shell.Usagef("%s is not a regular file", args[0])
	}
	return f, nil
}

// demoSource writes the data to move into the root, and returns the length and SHA-256.
func demoSource(path string, from io.Reader) (int64, [32]byte, error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, [32]byte{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, h)}, from, make([]byte, 1<<20))
	if err != nil {
		return 0, [32]byte{}, err
	}
	return n, [32]byte(h.Sum(nil)), f.Close()
}

// demoWay moves the data in the direction of r over the transport of w, and fills in r. The fastest
// of demoRounds rounds counts.
func demoWay(ctx context.Context, e *shell.Env, w demoPath, at, dir, source string, size int64, sum [32]byte, r *demoRow) error {
	t := w.t
	if w.sameHost != "" {
		at += "?samehost=" + w.sameHost
	}
	u, err := addr.Parse(at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(size>>20)*100*time.Millisecond)
	defer cancel()
	fc, err := dialFiles(ctx, e, u, t, &transport.Options{Env: e})
	if err != nil {
		return err
	}
	defer fc.Close()
	r.Shared, r.WhyTCP = fc.Path().SharedMemory, fc.Path().Why
	get, put := fc.Mechanisms()
	r.Mechanism = get
	if r.Direction == "put" {
		r.Mechanism = put
	}
	for round := range demoRounds {
		bar := e.Progress(fmt.Sprintf("%-5s %s %d/%d", t.Scheme, r.Direction, round+1, demoRounds), size, 0)
		var d time.Duration
		var got [32]byte
		if r.Direction == "get" {
			d, got, err = demoGet(ctx, fc, filepath.Join(dir, "got"), bar)
		} else {
			name := fmt.Sprintf("put-%s-%d", t.Scheme, round)
			d, err = demoPut(ctx, fc, source, name, size, bar)
			if err == nil {
				got, err = fileSum(filepath.Join(filepath.Dir(source), name))
				os.Remove(filepath.Join(filepath.Dir(source), name))
			}
		}
		bar.Drop() // the row of the table replaces the bar
		if err != nil {
			return err
		}
		r.SHA256 = fmt.Sprintf("%x", got)
		if got != sum {
			return errors.New("SHA-256 differs")
		}
		if s := d.Seconds(); round == 0 || s < r.Seconds {
			r.Seconds = s
		}
	}
	return nil
}

func demoGet(ctx context.Context, fc fileClient, to string, bar *shell.Bar) (time.Duration, [32]byte, error) {
	f, err := os.Create(to)
	if err != nil {
		return 0, [32]byte{}, err
	}
	defer os.Remove(to)
	defer f.Close()
	h := &laterHash{Hash: sha256.New(), f: f}
	start := time.Now()
	last := start
	err = fc.Get(ctx, "file", 0, f, h, nil, func(n int) { bar.Add(n); last = time.Now() })
	if err != nil {
		return 0, [32]byte{}, err
	}
	return last.Sub(start), [32]byte(h.Sum(nil)), nil
}

func demoPut(ctx context.Context, fc fileClient, source, name string, size int64, bar *shell.Bar) (time.Duration, error) {
	f, err := os.Open(source)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	again, err := os.Open(source)
	if err != nil {
		return 0, err
	}
	defer again.Close()
	start := time.Now()
	last := start
	err = fc.Put(ctx, name, size, f, &laterHash{Hash: sha256.New(), f: again}, func(n int) {
		bar.Add(n)
		last = time.Now()
	})
	return last.Sub(start), err
}

func fileSum(path string) (sum [32]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := &laterHash{Hash: sha256.New(), f: f}
	return [32]byte(h.Sum(nil)), nil
}

// A laterHash hashes a file when the sum is requested, not while the bytes pass, because the demo
// measures the time of the transfer.
type laterHash struct {
	hash.Hash
	f *os.File
}

func (h *laterHash) Write(p []byte) (int, error) { return len(p), nil }

func (h *laterHash) Sum(b []byte) []byte {
	h.Hash.Reset()
	io.CopyBuffer(struct{ io.Writer }{h.Hash}, io.NewSectionReader(h.f, 0, 1<<62), make([]byte, 256<<10))
	return h.Hash.Sum(b)
}

// demoLine is a line of the table. Its columns have fixed widths, because each row is printed at
// once.
const demoLine = "%-9s  %-4s %-10s %12s %8s %10s %7s  %s\n"

// pathWord returns the path of the bytes, for a table.
func pathWord(shared bool) string {
	if shared {
		return "shm"
	}
	return "tcp"
}

func (r *demoRow) print(e *shell.Env) {
	sec, rate, rel := "-", "-", "-"
	if r.OK {
		sec, rate = fmt.Sprintf("%.3f", r.Seconds), shell.Rate(r.Rate)
		if r.Relative > 0 {
			rel = fmt.Sprintf("%.2f", r.Relative)
		}
	}
	e.Printf(demoLine, r.Transport, pathWord(r.Shared), r.Mechanism, fmt.Sprint(r.Bytes), sec, rate, rel, r.verdict())
}

// Command files measures the copying of many small files and of one large one with
// viaduct, beside rclone with its own WebDAV server and cp through a pipe, in one run:
//
//	go run ./bench/files -viaduct ./viaduct
//	go run ./bench/files -viaduct ./viaduct -files 1000 -dirs 100 -large 1G
//
// The rounds of all take turns, so that what else the machine does meets each alike;
// the table has the medians. The large file is sparse where it is read, but not where it is
// written: so much has to be free below -dir, where nothing is left. Without rclone
// its rows are left out, with a line that says so.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type plan struct {
	viaduct, rclone string
	dir             string
	files, dirs     int
	small, large    int64
	rounds          int
	parallel        int
}

func main() {
	var p plan
	large, small := "20G", "4K"
	flag.StringVar(&p.viaduct, "viaduct", "viaduct", "the command")
	flag.StringVar(&p.rclone, "rclone", "rclone", "rclone")
	flag.StringVar(&p.dir, "dir", os.TempDir(), "where the files are made")
	flag.IntVar(&p.files, "files", 10_000, "small files")
	flag.IntVar(&p.dirs, "dirs", 1000, "directories that they are in")
	flag.StringVar(&small, "small", small, "bytes of a small file")
	flag.StringVar(&large, "large", large, "bytes of the large file; 0 leaves it out")
	flag.IntVar(&p.rounds, "rounds", 3, "rounds of each with small files; the large one goes once")
	flag.IntVar(&p.parallel, "parallel", 4, "files at a time, of viaduct and rclone")
	flag.Parse()
	var err error
	if p.small, err = size(small); err == nil {
		p.large, err = size(large)
	}
	if err != nil || p.files < 1 || p.dirs < 1 || p.rounds < 1 {
		fmt.Fprintln(os.Stderr, "files:", errors.Join(err, errors.New("see -help")))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := p.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "files:", err)
		os.Exit(1)
	}
}

// size reads a number of bytes with K, M or G.
func size(s string) (int64, error) {
	shift := map[byte]int{'K': 10, 'M': 20, 'G': 30}
	n := 0
	if s != "" {
		n = shift[s[len(s)-1]]
	}
	if n > 0 {
		s = s[:len(s)-1]
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err == nil && v < 0 {
		err = errors.New("negative size")
	}
	return v << n, err
}

// A way copies src, a file or a directory, into the empty directory dst, and again.
type way struct {
	name  string
	copy  func(ctx context.Context, src, dst string) (time.Duration, error)
	again func(ctx context.Context, src, dst string) (time.Duration, error) // with nothing to do; nil if there is no such thing
}

func (p *plan) run(ctx context.Context) error {
	top, err := os.MkdirTemp(p.dir, "viaduct-files-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(top)
	tree, big := filepath.Join(top, "tree"), filepath.Join(top, "large")
	if err := makeTree(tree, p.files, p.dirs, p.small); err != nil {
		return err
	}
	var ways []way
	for _, s := range []string{"vitcp", "iwarp", "sdp"} {
		ways = append(ways, p.viaductWay(s))
	}
	if _, err := exec.LookPath(p.rclone); err == nil {
		ways = append(ways, p.rcloneWay())
	} else {
		fmt.Println("SKIPPED: rclone is not installed")
	}
	var rows []row
	for round := range p.rounds {
		for i := range ways {
			w := ways[(i+round)%len(ways)]
			dst := filepath.Join(top, "dst")
			took, err := measure(ctx, w.copy, tree, dst)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			rows = append(rows, row{fmt.Sprintf("%d files", p.files), w.name, took})
			fmt.Fprintf(os.Stderr, "round %d, %s: %v\n", round+1, w.name, took.Round(time.Millisecond))
			if w.again != nil {
				if took, err = w.again(ctx, tree, dst); err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				rows = append(rows, row{"the same again", w.name, took})
			}
			if err := os.RemoveAll(dst); err != nil {
				return err
			}
		}
	}
	if p.large > 0 {
		if err := sparse(big, p.large); err != nil {
			return err
		}
		ways = append(ways, way{name: "cp through a pipe", copy: throughPipe})
		for _, w := range ways {
			dst := filepath.Join(top, "dst")
			took, err := measure(ctx, w.copy, big, dst)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			rows = append(rows, row{fmt.Sprintf("one of %d MiB", p.large>>20), w.name, took})
			fmt.Fprintf(os.Stderr, "large, %s: %v\n", w.name, took.Round(time.Millisecond))
			if err := os.RemoveAll(dst); err != nil {
				return err
			}
		}
	}
	report(os.Stdout, rows)
	return nil
}

// measure copies into a directory that is made, and compares.
func measure(ctx context.Context, copy func(ctx context.Context, src, dst string) (time.Duration, error), src, dst string) (time.Duration, error) {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return 0, err
	}
	took, err := copy(ctx, src, dst)
	if err != nil {
		return 0, err
	}
	return took, compare(src, filepath.Join(dst, filepath.Base(src)))
}

func makeTree(dir string, files, dirs int, n int64) error {
	b := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{})
	for i := range files {
		d := filepath.Join(dir, fmt.Sprintf("d%04d", i%dirs))
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
		rnd.Read(b)
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("f%d", i/dirs)), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// sparse makes a file with a few bytes of its own in every 64 MiB.
func sparse(name string, n int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		return err
	}
	for at := int64(0); at+8 <= n; at += 64 << 20 {
		if _, err := f.WriteAt([]byte(fmt.Sprintf("%08x", at>>20)), at); err != nil {
			return err
		}
	}
	return f.Close()
}

// compare returns an error unless both are files, or directories with files, that are
// alike, and there is nothing else.
func compare(a, b string) error {
	count := func(dir string) (names []string, err error) {
		err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				rel, _ := filepath.Rel(dir, p)
				names = append(names, rel)
			}
			return err
		})
		return names, err
	}
	as, err := count(a)
	if err != nil {
		return err
	}
	bs, err := count(b)
	if err != nil {
		return err
	}
	if !slices.Equal(as, bs) {
		return fmt.Errorf("%d files became %d, or have other names", len(as), len(bs))
	}
	for _, n := range as {
		if err := same(filepath.Join(a, n), filepath.Join(b, n)); err != nil {
			return err
		}
	}
	return nil
}

func same(a, b string) error {
	fa, err := os.Open(a)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return err
	}
	defer fb.Close()
	ba, bb := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, erra := io.ReadFull(fa, ba)
		m, errb := io.ReadFull(fb, bb)
		if !bytes.Equal(ba[:n], bb[:m]) {
			return fmt.Errorf("%s differs from %s", b, a)
		}
		if erra != nil || errb != nil {
			if n == m && (erra == io.EOF || erra == io.ErrUnexpectedEOF) {
				return nil
			}
			return errors.Join(erra, errb)
		}
	}
}

// A process is a server beside what is measured.
type process struct{ c *exec.Cmd }

func (s *process) stop() {
	s.c.Process.Signal(syscall.SIGTERM)
	s.c.Wait()
}

// timed runs a command to its end.
func timed(c *exec.Cmd) (time.Duration, error) {
	var said bytes.Buffer
	c.Stderr = &said
	began := time.Now()
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, strings.TrimSpace(said.String()))
	}
	return time.Since(began), nil
}

func (p *plan) viaductWay(scheme string) way {
	with := func(ctx context.Context, dst string, f func(url string) *exec.Cmd) (time.Duration, error) {
		listen := scheme + "://127.0.0.1:0"
		if scheme == "vitcp" {
			listen += "/files"
		}
		c := exec.CommandContext(ctx, p.viaduct, "serve", "--root", dst, "--writable", "--listen", listen)
		out, err := c.StdoutPipe()
		if err != nil {
			return 0, err
		}
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			return 0, err
		}
		defer (&process{c}).stop()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("viaduct serve: %w", err)
		}
		return timed(f(strings.TrimSpace(strings.TrimPrefix(line, "listening "))))
	}
	return way{
		name: "viaduct " + scheme,
		copy: func(ctx context.Context, src, dst string) (time.Duration, error) {
			return with(ctx, dst, func(url string) *exec.Cmd {
				args := []string{"put", src, url + "/"}
				if st, err := os.Stat(src); err == nil && st.IsDir() {
					args = append(args, "-r", "--parallel", strconv.Itoa(p.parallel))
				}
				return exec.CommandContext(ctx, p.viaduct, args...)
			})
		},
		again: func(ctx context.Context, src, dst string) (time.Duration, error) {
			return with(ctx, dst, func(url string) *exec.Cmd {
				return exec.CommandContext(ctx, p.viaduct, "sync", src, url+"/"+filepath.Base(src), "--parallel", strconv.Itoa(p.parallel))
			})
		},
	}
}

func (p *plan) rcloneWay() way {
	run := func(ctx context.Context, verb, src, dst string) (time.Duration, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		at := l.Addr().String()
		l.Close()
		config := filepath.Join(dst, "..", "rclone.conf") // an empty one: nothing of the user's
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			return 0, err
		}
		c := exec.CommandContext(ctx, p.rclone, "--config", config, "serve", "webdav", dst, "--addr", at)
		if err := c.Start(); err != nil {
			return 0, err
		}
		defer (&process{c}).stop()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			nc, err := net.Dial("tcp", at)
			if err == nil {
				nc.Close()
				break
			}
			if ctx.Err() != nil || time.Now().After(end) {
				return 0, errors.Join(context.Cause(ctx), err)
			}
		}
		to := ":webdav:"
		if st, err := os.Stat(src); err == nil && st.IsDir() {
			to += filepath.Base(src)
		}
		return timed(exec.CommandContext(ctx, p.rclone, "--config", config, verb, src, to, "--webdav-url", "http://"+at, "--transfers", strconv.Itoa(p.parallel)))
	}
	return way{
		name:  "rclone WebDAV",
		copy:  func(ctx context.Context, src, dst string) (time.Duration, error) { return run(ctx, "copy", src, dst) },
		again: func(ctx context.Context, src, dst string) (time.Duration, error) { return run(ctx, "copy", src, dst) },
	}
}

// throughPipe is cat and cp with a pipe between them.
func throughPipe(ctx context.Context, src, dst string) (time.Duration, error) {
	return timed(exec.CommandContext(ctx, "sh", "-c", `cat "$1" | cp --sparse=never /dev/stdin "$2"`, "sh", src, filepath.Join(dst, filepath.Base(src))))
}

// A row is one measurement.
type row struct {
	what, name string
	took       time.Duration
}

// report prints the medians, and how fast each is beside the yardstick of its table.
func report(w io.Writer, rows []row) {
	var whats, names []string
	took := map[[2]string][]time.Duration{}
	for _, r := range rows {
		if !slices.Contains(whats, r.what) {
			whats = append(whats, r.what)
		}
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
		took[[2]string{r.what, r.name}] = append(took[[2]string{r.what, r.name}], r.took)
	}
	median := func(what, name string) float64 {
		t := took[[2]string{what, name}]
		if len(t) == 0 {
			return 0
		}
		slices.Sort(t)
		return t[len(t)/2].Seconds()
	}
	fmt.Fprintln(w, "| | | seconds | beside rclone | beside cp |\n|---|---|---|---|---|")
	for _, what := range whats {
		for _, name := range names {
			s := median(what, name)
			if s == 0 {
				continue
			}
			fmt.Fprintf(w, "| %s | %s | %.2f |", what, name, s)
			for _, other := range []string{"rclone WebDAV", "cp through a pipe"} {
				if o := median(what, other); o > 0 {
					fmt.Fprintf(w, " %.2f |", o/s)
				} else {
					fmt.Fprint(w, " |")
				}
			}
			fmt.Fprintln(w)
		}
	}
}

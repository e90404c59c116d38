package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"viaduct/interop/internal/proc"
)

// A way is a method of copying src, a file or a directory, into the empty directory dst, and of
// updating the copy.
type way struct {
	name  string
	copy  func(ctx context.Context, src, dst string) (time.Duration, error)
	again func(ctx context.Context, src, dst string) (time.Duration, error) // copies again when src is unchanged; nil if not measured
}

func (p *plan) measure(ctx context.Context) error {
	top := p.dir
	tree, big := filepath.Join(top, "tree"), filepath.Join(top, largeName)
	if err := makeTree(tree, p.files, p.dirs, p.small); err != nil {
		return err
	}
	var ways []way
	for _, s := range []string{"vitcp", "iwarp", "sdp"} {
		ways = append(ways, p.viaductWay(s, ""), p.viaductWay(s, "?samehost=off"))
	}
	if _, err := exec.LookPath(p.rclone); err == nil {
		ways = append(ways, p.rcloneWay())
	} else {
		fmt.Println("SKIPPED: rclone is not installed")
	}
	small := p.chosen(ways)
	var rows []row
	for round := range p.rounds {
		for i := range small {
			w := small[(i+round)%len(small)]
			dst := filepath.Join(top, "dst")
			took, err := timedCopy(ctx, w.copy, tree, dst)
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
		if err := makeSparse(big, p.large); err != nil {
			return err
		}
		ways = p.chosen(append(ways, way{name: "cp through a pipe", copy: throughPipe}))
		for round := range p.rounds {
			for i := range ways {
				w := ways[(i+round)%len(ways)]
				dst := filepath.Join(top, "dst")
				if err := warm(big); err != nil {
					return err
				}
				took, err := timedCopy(ctx, w.copy, big, dst)
				if err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				rows = append(rows, row{fmt.Sprintf("one of %d MiB", p.large>>20), w.name, took})
				fmt.Fprintf(os.Stderr, "round %d, large, %s: %v\n", round+1, w.name, took.Round(time.Millisecond))
				if err := os.RemoveAll(dst); err != nil {
					return err
				}
			}
		}
	}
	report(os.Stdout, rows)
	return nil
}

// warm reads a file, so that all methods find the same pages of the file in memory. Otherwise the
// first reader of a sparse file would pay for the pages of zeros.
func warm(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

// chosen returns the ways whose names match -run.
func (p *plan) chosen(ways []way) (out []way) {
	for _, w := range ways {
		if p.only.MatchString(w.name) {
			out = append(out, w)
		}
	}
	return out
}

// timedCopy copies src into the new directory dst, compares the copy with src, and returns the time
// of the copy.
func timedCopy(ctx context.Context, copy func(ctx context.Context, src, dst string) (time.Duration, error), src, dst string) (time.Duration, error) {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return 0, err
	}
	took, err := copy(ctx, src, dst)
	if err != nil {
		return 0, err
	}
	return took, compare(src, filepath.Join(dst, filepath.Base(src)))
}

// timed runs a command to the end and returns the time. An error contains the command's standard
// error output.
func timed(c *exec.Cmd) (time.Duration, error) {
	var said bytes.Buffer
	c.Stderr = &said
	began := time.Now()
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, strings.TrimSpace(said.String()))
	}
	return time.Since(began), nil
}

// viaductWay copies with the command; the query samehost=off selects TCP.
func (p *plan) viaductWay(scheme, query string) way {
	with := func(ctx context.Context, dst string, f func(url string) *exec.Cmd) (time.Duration, error) {
		s, url, err := p.serve(ctx, scheme, dst, "")
		if err != nil {
			return 0, err
		}
		defer s.End()
		return timed(f(url))
	}
	return way{
		name: "viaduct " + scheme + query,
		copy: func(ctx context.Context, src, dst string) (time.Duration, error) {
			return with(ctx, dst, func(url string) *exec.Cmd {
				args := []string{"put", src, url + "/" + query}
				if st, err := os.Stat(src); err == nil && st.IsDir() {
					args = append(args, "-r", "--parallel", strconv.Itoa(p.parallel))
				}
				return exec.CommandContext(ctx, p.viaduct, args...)
			})
		},
		again: func(ctx context.Context, src, dst string) (time.Duration, error) {
			return with(ctx, dst, func(url string) *exec.Cmd {
				return exec.CommandContext(ctx, p.viaduct, "sync", src, url+"/"+filepath.Base(src)+query, "--parallel", strconv.Itoa(p.parallel))
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
		config := filepath.Join(dst, "..", "rclone.conf") // empty, so that the user's configuration has no effect
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			return 0, err
		}
		c := exec.CommandContext(ctx, p.rclone, "--config", config, "serve", "webdav", dst, "--addr", at)
		if err := c.Start(); err != nil {
			return 0, err
		}
		defer func() {
			c.Process.Signal(syscall.SIGTERM)
			c.Wait()
		}()
		for end := time.Now().Add(proc.Patience); ; time.Sleep(20 * time.Millisecond) {
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

// throughPipe copies by cat and cp with a pipe between them.
func throughPipe(ctx context.Context, src, dst string) (time.Duration, error) {
	return timed(exec.CommandContext(ctx, "sh", "-c", `cat "$1" | cp --sparse=never /dev/stdin "$2"`, "sh", src, filepath.Join(dst, filepath.Base(src))))
}

// A row is a measurement.
type row struct {
	what, name string
	took       time.Duration
}

// report prints the median of each way, and the speed relative to rclone and cp.
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

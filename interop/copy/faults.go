package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"viaduct/interop/internal/proc"
)

// A fault ends a copy before the copy is done.
type fault string

const (
	none      fault = "nothing"
	interrupt fault = "SIGINT"
	client    fault = "client killed"
	server    fault = "server killed"
	full      fault = "disk full"
)

// A phase is the part of a tree being copied.
type phase string

const (
	small phase = "small files"
	large phase = "large file"
)

// interruptTime is how long an interrupted client may take to end, on a busy machine too. A copy of
// -long takes minutes more.
const interruptTime = 30 * time.Second

// A copying is the copy repeated by the cases of a transport.
type copying struct {
	*plan
	scheme string
	source string
	wait   time.Duration // time limit of a complete copy
	n      int           // cases so far
}

func (p *plan) faults(ctx context.Context) error {
	source := filepath.Join(p.dir, "tree")
	if err := makeTree(source, p.files, p.dirs, p.small); err != nil {
		return err
	}
	phases := []phase{small}
	if p.large > 0 {
		if err := makeSparse(filepath.Join(source, largeName), p.large); err != nil {
			return err
		}
		phases = append(phases, large)
	}
	before, err := list(source)
	if err != nil {
		return err
	}
	begin := time.Now()
	passed, skipped, next := 0, 0, ""
	for _, scheme := range []string{"vitcp", "iwarp", "sdp"} {
		c := &copying{plan: p, scheme: scheme, source: source, wait: proc.Patience + time.Duration(p.large>>20)*10*time.Millisecond + time.Duration(p.files)*20*time.Millisecond}
		for _, k := range p.cases(scheme, phases) {
			if p.from == k.name {
				p.from = ""
			}
			if p.from != "" || !p.only.MatchString(k.name) {
				continue
			}
			if next = k.name; time.Since(begin) > p.limit {
				fmt.Printf("\n%d passed, %d skipped, 0 failed: %.1f s; go on with -from '%s'\n", passed, skipped, time.Since(begin).Seconds(), next)
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			from := time.Now()
			found, err := c.run(ctx, k.steps)
			for range 20 {
				if !errors.Is(err, errMissed) { // the fault came too late, as may happen on a busy machine
					break
				}
				found, err = c.run(ctx, k.steps)
			}
			if errors.Is(err, errSkipped) {
				fmt.Printf("%-36s *** SKIPPED: %v ***\n", k.name, err)
				skipped++
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			passed++
			fmt.Printf("%-36s %s: %.1f s\n", k.name, found, time.Since(from).Seconds())
		}
	}
	if after, err := list(source); err != nil || len(after) != len(before) {
		return fmt.Errorf("the source had %d names and has %d, %v", len(before), len(after), err)
	}
	if next == "" {
		return fmt.Errorf("no case matches %q, or is named %q", p.only, p.from)
	}
	fmt.Printf("\n%d passed, %d skipped, 0 failed: %d files in %d directories, and one of %d MiB: %.1f s\n", passed, skipped, p.files, p.dirs, p.large>>20, time.Since(begin).Seconds())
	return nil
}

// A step is a fault that occurs in a phase, once the fraction part of the phase is done.
type step struct {
	fault fault
	phase phase
	part  float64
}

// A kind is a case of a transport: the faults that end the copy, one after the other.
type kind struct {
	name  string
	steps []step
}

func (p *plan) cases(scheme string, phases []phase) (all []kind) {
	if !p.each {
		k := kind{name: scheme + ", all faults in turn"}
		// The disk is full once half of the small files are stored.
		k.steps = []step{{full, small, 0}, {interrupt, small, 0.6}, {client, small, 0.75}, {server, small, 0.9}}
		if p.large > 0 {
			k.steps = append(k.steps, step{full, large, 0}, step{interrupt, large, 0.15}, step{client, large, 0.3}, step{server, large, 0.45})
		}
		return []kind{k}
	}
	all = append(all, kind{fmt.Sprintf("%s, %s", scheme, none), nil})
	for _, f := range []fault{interrupt, client, server, full} {
		for _, ph := range phases {
			all = append(all, kind{fmt.Sprintf("%s, %s, %s", scheme, f, ph), []step{{f, ph, 1. / 3}}})
		}
	}
	return all
}

var (
	errSkipped = errors.New("only root on Linux can mount a small file system")
	errMissed  = errors.New("the copy ended before its fault")
)

// run copies the tree to a server, lets each step's fault end the copy, continues the copy, and
// compares the result with the source. found describes the results.
func (c *copying) run(ctx context.Context, steps []step) (found string, err error) {
	c.n++
	root := filepath.Join(c.dir, fmt.Sprintf("%s-%d", c.scheme, c.n))
	var d *disk
	if slices.ContainsFunc(steps, func(s step) bool { return s.fault == full }) {
		d, err = newDisk(root, c.large+c.large/4+int64(c.files+c.dirs)*(c.small+64<<10)+64<<20)
		if err != nil && len(steps) == 1 {
			os.RemoveAll(root)
			return "", fmt.Errorf("%w: %v", errSkipped, err)
		} else if err == nil {
			defer d.close()
		}
	}
	if d == nil {
		os.RemoveAll(root)
		if err := os.Mkdir(root, 0o755); err != nil {
			return "", err
		}
	}
	defer os.RemoveAll(root)
	files := filepath.Join(root, "served")
	if err := os.Mkdir(files, 0o755); err != nil {
		return "", err
	}
	s, url, err := c.serve(ctx, c.scheme, files, "")
	if err != nil {
		return "", err
	}
	defer func() { s.Kill() }()
	put := []string{"put", "-r", c.source, url + "/", "--parallel", strconv.Itoa(c.parallel)}
	sync := []string{"sync", c.source, url + "/tree", "--parallel", strconv.Itoa(c.parallel)}
	next := put
	var all []string
	for i, st := range steps {
		if st.fault == full && d == nil {
			fmt.Printf("%s: *** SKIPPED: %v ***\n", c.scheme, errSkipped)
			continue
		}
		if s, url, found, err = c.end(ctx, st, next, s, url, files, d); err != nil {
			return "", fmt.Errorf("%s in the %s: %w", st.fault, st.phase, err)
		}
		all = append(all, found)
		// Every stored file is complete, whichever fault ended the copy.
		if err := c.partly(files); err != nil {
			return "", err
		}
		// put --resume and sync take turns.
		if next = sync; i%2 == 1 || len(steps) == 1 && st.phase == small {
			next = append(put, "--resume")
		}
	}
	for {
		p, err := proc.Start(ctx, c.viaduct, append(next, "--json")...)
		if err != nil {
			return "", err
		}
		if err := p.Wait(c.wait); err != nil {
			return "", err
		}
		said, _ := p.Output()
		all = append(all, next[0]+" has "+summary(said))
		if len(steps) == 1 {
			break
		}
		if next[0] == "sync" && strings.Contains(said, `"files":0,`) {
			break
		}
		if len(all) > len(steps)+3 {
			return "", fmt.Errorf("sync of what is there alike says\n%s", said)
		}
		next = sync
	}
	if err := s.End(); err != nil {
		return "", fmt.Errorf("the server: %w", err)
	}
	es, err := os.ReadDir(files)
	if err != nil || len(es) != 1 {
		return "", fmt.Errorf("the server's directory has %v, %v", es, err)
	}
	return strings.Join(all, "; "), compare(c.source, filepath.Join(files, "tree"))
}

// end runs a command until the fault of st ends the copy, and restarts the server s if the fault
// has killed the server. It returns the server and its address. found describes the result.
func (c *copying) end(ctx context.Context, st step, args []string, s *proc.Process, url, files string, d *disk) (_ *proc.Process, _, found string, err error) {
	if st.fault == full {
		room := int64(c.files) * max(c.small, 4096) / 2
		if st.phase == large { // room for all small files, and for half of the data of the large file
			room = c.large / sparseStep * 4096 / 2
			if _, err := os.Stat(filepath.Join(files, "tree")); err != nil {
				room += int64(c.files)*max(c.small, 4096)*5/4 + int64(c.dirs)*8192
			} else if err := c.smallOnes(ctx, args); err != nil {
				return s, url, "", err
			}
		}
		if err := d.leave(room); err != nil {
			return s, url, "", err
		}
	}
	p, err := proc.Start(ctx, c.viaduct, args...)
	if err != nil {
		return s, url, "", err
	}
	defer func() { p.Kill() }()
	there, err := c.until(p, filepath.Join(files, "tree"), st)
	if err != nil {
		return s, url, "", err
	}
	switch st.fault {
	case interrupt:
		at := time.Now()
		p.Interrupt()
		p.Wait(c.wait) // the copy may succeed or fail
		took := time.Since(at)
		if found = fmt.Sprintf("SIGINT: ended within %v", took.Round(time.Millisecond)); took > interruptTime {
			err = errors.New(found)
		}
	case client:
		p.Kill()
		found = "client killed"
	case server:
		s.Kill()
		p.Wait(c.wait)
		found = "server killed, and started again"
		s, url, err = c.serve(ctx, c.scheme, files, url)
	case full:
		err = p.Wait(c.wait)
		if out, _ := p.Output(); err == nil || !strings.Contains(out, "no space") {
			return s, url, "", fmt.Errorf("a full disk is told as: %v\n%s", err, out)
		}
		found = "disk full: told of, and room made"
		err = d.makeRoom()
	}
	return s, url, fmt.Sprintf("%s with %d of %d directories there", found, there, c.dirs), err
}

// smallOnes copies the small files, so that only the large file remains to be copied.
func (c *copying) smallOnes(ctx context.Context, args []string) error {
	aside := c.source + ".large"
	if err := os.Rename(filepath.Join(c.source, largeName), aside); err != nil {
		return err
	}
	p, err := proc.Start(ctx, c.viaduct, args...)
	if err == nil {
		err = p.Wait(c.wait)
	}
	return errors.Join(err, os.Rename(aside, filepath.Join(c.source, largeName)))
}

// until waits until the fault of st is due: a part of the directories is stored, or a part of the
// large file was read. It returns the number of stored directories.
func (c *copying) until(p *proc.Process, tree string, st step) (dirs int, err error) {
	// Small files may be read twice, because the already stored files are compared; the answers are
	// short.
	before := 3*int64(c.files)*(c.small+1024) + int64(st.part*float64(c.large))
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		es, err := os.ReadDir(tree)
		if err != nil && !os.IsNotExist(err) {
			return 0, err
		}
		dirs = min(len(es), c.dirs) // the large file may be one of the entries
		due := false
		switch {
		case st.fault == full: // the command ends by itself
		case st.phase == small:
			due = dirs >= int(st.part*float64(c.dirs))
		case dirs == c.dirs:
			n, ok := bytesRead(p.PID())
			due = n >= before || !ok
		}
		select {
		case <-p.Ended():
			if st.fault != full {
				out, _ := p.Output()
				return dirs, fmt.Errorf("%w, with %d directories\n%s", errMissed, dirs, out)
			}
			return dirs, nil
		default:
		}
		if due {
			return dirs, nil
		}
		if time.Since(begin) > c.wait {
			return dirs, fmt.Errorf("not done within %v, with %d directories", c.wait, dirs)
		}
	}
}

// partly returns an error unless every small file below root/tree equals the source's file.
func (c *copying) partly(root string) error {
	names, err := list(root)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n[len(n)-1] == filepath.Separator || filepath.Base(n) == largeName {
			continue
		}
		rel, err := filepath.Rel("tree", n)
		if err != nil {
			return err
		}
		if err := same(filepath.Join(c.source, rel), filepath.Join(root, n)); err != nil {
			return err
		}
	}
	return nil
}

// summary returns in words what the report of a copy, a JSON document, says.
func summary(document string) string {
	field := func(name string) string {
		_, v, _ := strings.Cut(document, `"`+name+`":`)
		v, _, _ = strings.Cut(v, ",")
		return v
	}
	return fmt.Sprintf("copied %s and found %s alike", field("files"), field("alike"))
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"viaduct/interop/internal/proc"
)

// A plan holds the settings of a copy.
type plan struct {
	viaduct, rclone string
	dir             string // directory of all files
	files, dirs     int
	small, large    int64
	rounds          int
	parallel        int
	only            *regexp.Regexp
	from            string
	limit           time.Duration
	each            bool
}

func main() {
	var p plan
	small, large := "4K", "128M"
	var long, beside bool
	flag.StringVar(&p.viaduct, "viaduct", "", "the command; empty: it is built")
	flag.StringVar(&p.rclone, "rclone", "rclone", "rclone")
	flag.StringVar(&p.dir, "dir", os.TempDir(), "where the files are made")
	flag.IntVar(&p.files, "files", 200, "small files")
	flag.IntVar(&p.dirs, "dirs", 20, "directories that they are in")
	flag.StringVar(&small, "small", small, "bytes of a small file")
	flag.StringVar(&large, "large", large, "bytes of the large file; 0 leaves it out")
	flag.IntVar(&p.rounds, "rounds", 3, "with -beside, rounds of each")
	flag.IntVar(&p.parallel, "parallel", 4, "files at a time")
	only := flag.String("run", "", "only cases, or ways to copy, whose name matches this `regexp`")
	flag.StringVar(&p.from, "from", "", "begin with the case of this `name`")
	flag.DurationVar(&p.limit, "limit", time.Hour, "no case begins after this time; the next one is named")
	flag.BoolVar(&long, "long", false, "10,000 files in 1,000 directories and one of 20 GiB")
	flag.BoolVar(&beside, "beside", false, "measure, beside rclone and cp")
	flag.BoolVar(&p.each, "each", false, "a copy for each fault, instead of all in turn in one")
	flag.Parse()
	if long {
		p.files, p.dirs, large = 10_000, 1000, "20G"
	}
	var err error
	if p.small, err = size(small); err == nil {
		p.large, err = size(large)
	}
	if err == nil {
		p.only, err = regexp.Compile(*only)
	}
	if err != nil || p.files < 1 || p.dirs < 1 || p.dirs > p.files || p.rounds < 1 {
		fmt.Fprintln(os.Stderr, "copy:", errors.Join(err, errors.New("see -help")))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = p.run(ctx, beside)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "copy:", err)
		os.Exit(1)
	}
}

func (p *plan) run(ctx context.Context, beside bool) error {
	top, err := os.MkdirTemp(p.dir, "viaduct-copy.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(top)
	p.dir = top
	if p.viaduct == "" {
		var flags []string
		if beside {
			flags = []string{"-pgo=bench/viaduct.pgo"} // built like the distributed packages
		}
		if p.viaduct, err = proc.Viaduct(ctx, top, flags...); err != nil {
			return err
		}
	}
	if p.viaduct, err = exec.LookPath(p.viaduct); err == nil {
		p.viaduct, err = filepath.Abs(p.viaduct)
	}
	if err != nil {
		return err
	}
	if beside {
		return p.measure(ctx)
	}
	return p.faults(ctx)
}

// size parses a number of bytes, with or without a suffix K, M or G.
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

// serve starts a server of dir and returns its address. at is the address of the replaced server,
// or "".
func (p *plan) serve(ctx context.Context, scheme, dir, at string) (*proc.Process, string, error) {
	listen := at
	if at == "" {
		listen = scheme + "://127.0.0.1:0"
		if scheme == "vitcp" {
			listen += "/files"
		}
	}
	for end := time.Now().Add(proc.Patience); ; time.Sleep(100 * time.Millisecond) {
		s, err := proc.Start(ctx, p.viaduct, "serve", "--root", dir, "--writable", "--listen", listen)
		if err != nil {
			return nil, "", err
		}
		url, err := s.Listening()
		if err == nil {
			return s, url, nil
		}
		s.Kill()
		// The system may not have closed the sockets of the killed server yet.
		if at == "" || time.Now().After(end) || ctx.Err() != nil || !strings.Contains(err.Error(), "in use") {
			return nil, "", err
		}
	}
}

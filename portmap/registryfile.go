package portmap

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"viaduct/internal/follow"
)

// These are limits of a registry file. A larger file is refused, not truncated.
const (
	maxFileBytes   = 16 << 20 // some 300,000 lines
	maxFileTargets = 64       // in each line; more targets need a real load balancer
)

// ParseRegistry reads mappings, one per line:
//
//	# conventional   SDP addresses, in turn        lifetime
//	10.0.0.1:80      10.0.0.1:8080
//	*:5432           :15432                        cache=10s
//	[2001:db8::1]:80 [2001:db8::2]:81,[2001:db8::3]:81  cache=never
//
// "*" as conventional host means every address, and a target without a host means the requested
// address. cache is "never", "forever" or a duration, rounded down to a value the wire has; the
// default is 30 s. Text after # is comment. The error names the line.
func ParseRegistry(rd io.Reader) (*Registry, error) {
	r := NewRegistry()
	sc := bufio.NewScanner(io.LimitReader(rd, maxFileBytes+1))
	sc.Buffer(nil, 64<<10)
	read, line := 0, 0
	for sc.Scan() {
		line++
		read += len(sc.Bytes()) + 1
		text, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(text)
		if len(f) == 0 {
			continue
		}
		conv, m, err := parseLine(f)
		if err == nil {
			err = r.Set(conv, m)
		}
		if err != nil {
			return nil, fmt.Errorf("portmap: line %d: %w", line, err)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("portmap: line %d: %w", line+1, err)
	}
	if read > maxFileBytes {
		return nil, fmt.Errorf("portmap: file is longer than %d bytes", maxFileBytes)
	}
	return r, nil
}

func parseLine(f []string) (netip.AddrPort, Mapping, error) {
	if len(f) < 2 || len(f) > 3 {
		return netip.AddrPort{}, Mapping{},
			fmt.Errorf("want CONVENTIONAL TARGET[,TARGET...] [cache=TIME], got %d fields", len(f))
	}
	conv, err := ParseHostPort(f[0])
	if err != nil {
		return conv, Mapping{}, err
	}
	m := Mapping{PmTime: defaultPmTime}
	targets := strings.Split(f[1], ",")
	if len(targets) > maxFileTargets {
		return conv, m, fmt.Errorf("%d targets, at most %d", len(targets), maxFileTargets)
	}
	for _, t := range targets {
		a, err := ParseHostPort(t)
		if err != nil {
			return conv, m, err
		}
		m.Targets = append(m.Targets, a)
	}
	if len(f) == 3 {
		v, ok := strings.CutPrefix(f[2], "cache=")
		if !ok {
			return conv, m, fmt.Errorf("unknown option %q, want cache=TIME", f[2])
		}
		if m.PmTime, err = ParsePmTime(v); err != nil {
			return conv, m, err
		}
	}
	return conv, m, nil
}

// ParsePmTime parses "never", "forever" or a duration such as "30s".
func ParsePmTime(s string) (PmTime, error) {
	switch s {
	case "never":
		return Once, nil
	case "forever":
		return Forever, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("portmap: lifetime %q is neither never, forever nor a duration", s)
	}
	return PmTimeFor(d), nil
}

// ParseHostPort parses ADDRESS:PORT with a numeric address. "*", or an empty address, gives
// 0.0.0.0, which in a Registry means every address.
func ParseHostPort(s string) (netip.AddrPort, error) {
	host, port, ok := cutLast(s, ":")
	if ok && (host == "" || host == "*") {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return netip.AddrPort{}, fmt.Errorf("portmap: %q has no port between 1 and 65535", s)
		}
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(n)), nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("portmap: %q is not ADDRESS:PORT", s)
	}
	return a, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// WatchFile fills r from the file at path and applies its changes until ctx ends. Every interval (a
// second if 0) WatchFile checks the file, and reads the file again if time, size or identity has
// changed, so that a replacement by rename is detected. All mappings change at once. The first read
// must succeed. If a later read fails, r stays unchanged. report, if not nil, is called after every
// reload, with a nil err, and after the first of several failures in a row. WatchFile blocks.
// ready, if not nil, is closed after the first read.
func (r *Registry) WatchFile(ctx context.Context, path string, interval time.Duration, ready chan<- struct{}, report func(n int, err error)) error {
	if interval <= 0 {
		interval = time.Second
	}
	file := follow.New(path)
	if _, err := file.Read(r.load); err != nil {
		return err
	}
	if ready != nil {
		close(ready)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		changed, err := file.Read(r.load)
		if report != nil {
			switch {
			case err != nil && !failed:
				report(0, err)
			case changed:
				report(r.Len(), nil)
			}
		}
		failed = err != nil
	}
}

// load replaces the mappings by the mappings in rd.
func (r *Registry) load(rd io.Reader) error {
	fresh, err := ParseRegistry(rd)
	if err != nil {
		return err
	}
	r.replace(fresh)
	return nil
}

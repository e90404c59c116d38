package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A fault is what "viaduct conform" finds in siw: the requirement that a case
// shows to be broken.
type fault struct{ name, row string }

// siwFaults are the faults that siw of kernel 6.1 has as Initiator, see
// docs/conform.md. Any other finding is a failure, and so is one of these that is
// not found.
var siwFaults = []fault{
	{"iwarp/request", "MPA-4.4-3"},
	{"iwarp/reply-bad-key", "MPA-7.1.1-4"},
	{"iwarp/two-initiators", "MPA-7.1.2-20"},
	{"iwarp/active-markers", "MPA-7.1.1-6"},
	{"iwarp/active-bad-crc", "RDMAP-4.8-2"},
}

// deadly is the fault that siw's kernel does not survive.
var deadly = fault{"iwarp/long-private-reply", "MPA-7.1.1-22"}

// conformLimit is the time for one run of the command.
const conformLimit = 2 * time.Minute

// conform lets the command look at siw as Initiator. As Responder siw can't be
// looked at: rping's server ends for good with the first client that is none of its
// own. For the same reason the case reply-long-private is left out: rping's client
// waits behind it for ever. The last case is one that siw's kernel does not survive.
//
// The guest is one that has just been started. Its capture has bad FPDUs, and is
// not for tshark.
func (r *runner) conform(ctx context.Context) error {
	r.captures = r.captures[:len(r.captures)-1]
	if err := r.load(ctx, modes[0]); err != nil {
		return err
	}
	active := func(want []fault, args ...string) error {
		p, err := freePort()
		if err != nil {
			return err
		}
		stop, err := r.again(ctx, fmt.Sprintf("rping -c -a 10.0.2.2 -p %d -C 3", p))
		if err != nil {
			return err
		}
		defer stop()
		return r.findings(ctx, want, append(args, "--listen", "iwarp://127.0.0.1:"+strconv.Itoa(p))...)
	}
	r.check("viaduct conform --listen, guest's rping -c", func() error {
		return active(siwFaults, "--only", "iwarp/request", "--only", "iwarp/reply-bad-key", "--only", "iwarp/two-initiators",
			"--only", "iwarp/reply-bad-revision", "--only", "iwarp/first-fpdu", "--only", "iwarp/active-markers", "--only", "iwarp/active-bad-crc")
	})
	r.check("viaduct conform --listen --dangerous, guest's rping -c", func() error {
		return active([]fault{deadly}, "--dangerous", "--only", deadly.name)
	})
	return nil
}

// again runs a program of the guest over and over until stop.
func (r *runner) again(ctx context.Context, program string) (stop func(), err error) {
	r.loops++
	file := fmt.Sprintf("/tmp/again%d", r.loops)
	_, err = r.guest.start(conformLimit, fmt.Sprintf("touch %s; while [ -e %[1]s ]; do %s; done", file, program))
	return func() {
		r.guest.run(ctx, 5*time.Second, "rm "+file+"; killall rping; sleep 0.3; killall -9 rping; true")
	}, err
}

// findings runs the command and compares what it finds.
func (r *runner) findings(ctx context.Context, want []fault, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, conformLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.viaduct, append([]string{"conform", "--json"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	var report struct {
		Results []struct {
			Name, Verdict, Detail string
			Row                   string  `json:"failed_requirement"`
			Seconds               float64 `json:"seconds"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, tail(errs.String(), 10))
	}
	var got []fault
	var bad []string
	for _, c := range report.Results {
		if r.verbose {
			r.logf("        %5.1f s  %-15s %-28s %s %s", c.Seconds, c.Verdict, c.Name, c.Row, c.Detail)
		}
		if c.Verdict != "fail" {
			continue
		}
		f := fault{c.Name, c.Row}
		if got = append(got, f); !slices.Contains(want, f) {
			bad = append(bad, fmt.Sprintf("%s: %s: %s", c.Name, c.Row, c.Detail))
		}
	}
	for _, f := range want {
		if !slices.Contains(got, f) {
			bad = append(bad, fmt.Sprintf("%s: %s is not found", f.name, f.row))
		}
	}
	r.logf("        %d cases, %d findings", len(report.Results), len(got))
	if bad != nil {
		return errors.New(strings.Join(bad, "\n"))
	}
	return nil
}

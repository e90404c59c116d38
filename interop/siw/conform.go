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

// A fault is a result of "viaduct conform" for siw: a failed case, and the requirement violated by
// siw.
type fault struct{ name, row string }

// siwFaults are the faults of siw in kernel 6.1 as Initiator, see docs/conform.md. Any other fault
// is a failure of the check, and so is a listed fault not found.
var siwFaults = []fault{
	{"iwarp/request", "MPA-4.4-3"},
	{"iwarp/reply-bad-key", "MPA-7.1.1-4"},
	{"iwarp/two-initiators", "MPA-7.1.2-20"},
	{"iwarp/active-markers", "MPA-7.1.1-6"},
	{"iwarp/active-bad-crc", "RDMAP-4.8-2"},
}

// siwPassive lists cases with one connection and no echo, with the faults of siw in kernel 6.1 as
// Responder. row is "" if siw passes the case.
var siwPassive = []fault{
	{"iwarp/reply", ""},
	{"iwarp/reserved", "MPA-7.1.1-13"},
	{"iwarp/no-early-data", ""},
	{"iwarp/markers", "MPA-7.1.1-6"},
	{"iwarp/ddp-version", "RDMAP-4.8-2"},
	{"iwarp/ddp-queue", "RDMAP-4.8-5"},
	{"iwarp/ddp-msn", "RDMAP-4.8-5"},
	{"iwarp/ddp-mo", "RDMAP-4.8-5"},
	{"iwarp/ddp-stag", "RDMAP-4.8-5"},
	{"iwarp/ddp-tagged-version", ""},
	{"iwarp/rdmap-version", "RDMAP-4.8-2"},
	{"iwarp/rdmap-opcode", "RDMAP-4.8-2"},
	{"iwarp/rdmap-read-stag", "RDMAP-4.8-5"},
	{"iwarp/zero-read", ""},
}

// deadly is the case that crashes the guest's kernel, with the requirement violated by siw.
var deadly = fault{"iwarp/long-private-reply", "MPA-7.1.1-22"}

// conformLimit is the time for a run of the command.
const conformLimit = 5 * time.Minute

// conform runs the command against siw as Responder, and as Initiator. rping's server ends after a
// client other than rping. So the server is started for each case, and only cases of one connection
// are run. reply-long-private is left out, because rping's client hangs afterwards. The last case
// crashes siw's kernel.
//
// The guest must have just been started. tshark does not read the guest's capture, because the
// capture contains bad FPDUs.
func (r *runner) conform(ctx context.Context) error {
	r.captures = r.captures[:len(r.captures)-1]
	if err := r.load(ctx, modes[0]); err != nil {
		return err
	}
	r.check("viaduct conform, guest's rping -s", func() error {
		var errs []error
		servers := 0
		for _, f := range siwPassive {
			var err error
			for _, pause := range siwPauses {
				if err != nil {
					r.logf("again: %v", err)
				}
				// The port differs from the previous server's port, because that server may still exist.
				if err = r.passive(ctx, f, servers%guestPorts, pause); err == nil {
					break
				}
				servers++
			}
			servers++
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
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
		return active(siwFaults, "--patience", "30s", "--only", "iwarp/request", "--only", "iwarp/reply-bad-key", "--only", "iwarp/two-initiators",
			"--only", "iwarp/reply-bad-revision", "--only", "iwarp/first-fpdu", "--only", "iwarp/active-markers", "--only", "iwarp/active-bad-crc")
	})
	r.check("viaduct conform --listen --dangerous, guest's rping -c", func() error {
		return active([]fault{deadly}, "--dangerous", "--only", deadly.name)
	})
	return nil
}

// siwPauses are the pauses after siw's Reply. Without a pause, siw would leave bytes unread that follow
// too soon [I-10]. An emulated processor on a busy machine may need longer than the first pause, so a
// case with another result is run again with the next.
var siwPauses = []string{"2s", "10s", "20s"}

// passive runs a case against a server of the guest.
func (r *runner) passive(ctx context.Context, f fault, port int, pause string) error {
	var want []fault
	if f.row != "" {
		want = []fault{f}
	}
	server := fmt.Sprintf("killall rping; (rping -s -a 10.0.2.15 -p %d -C 3 >/dev/null 2>&1 &); wait-port %[1]d", guestPort+port)
	if _, err := r.guest.run(ctx, talkLimit, server); err != nil {
		return err
	}
	return r.findings(ctx, want, "--pause", pause, "--patience", "30s", "--only", f.name, "iwarp://127.0.0.1:"+strconv.Itoa(r.forward[port]))
}

// again runs a program in the guest repeatedly until stop is called.
func (r *runner) again(ctx context.Context, program string) (stop func(), err error) {
	r.loops++
	file := fmt.Sprintf("/tmp/again%d", r.loops)
	_, err = r.guest.start(conformLimit, fmt.Sprintf("touch %s; while [ -e %[1]s ]; do %s; done", file, program))
	return func() {
		r.guest.run(ctx, 5*time.Second, "rm "+file+"; killall rping; sleep 0.3; killall -9 rping; true")
	}, err
}

// findings runs "viaduct conform" with args. The error is nil only if exactly the faults in want
// are found.
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
	lines := bytes.TrimSpace(out.Bytes()) // the first line has the listening address, the last line the report
	if err := json.Unmarshal(lines[bytes.LastIndexByte(lines, '\n')+1:], &report); err != nil {
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
	if len(report.Results) > 1 {
		r.logf("        %d cases, %d findings", len(report.Results), len(got))
	}
	if bad != nil {
		return errors.New(strings.Join(bad, "\n"))
	}
	return nil
}

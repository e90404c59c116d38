package figures

import (
	"fmt"
	"regexp"
	"strconv"
)

// An expectation is a row of the table of what a user may expect: the range of the ratios in some
// rows of the table of peers.
type expectation struct {
	what         string
	contest      string // regular expression that the row's first cell matches
	ours, theirs string // regular expressions that the names of both sides match
}

const rdma = "^(vitcp|iwarp)"

var expectations = []expectation{
	{"Rate of 64-byte Writes, 16 per doorbell, compared with UCX and libfabric", "^RDMA Write, 64 B: messages, 16 ", rdma + ", 16 ", "^(UCX|libfabric)"},
	{"the same, 64 per doorbell", "^RDMA Write, 64 B: messages, 64 ", rdma + ", 64 ", "^(UCX|libfabric)"},
	{"the same, one per doorbell", "^RDMA Write, 64 B: messages, one ", rdma + ", 1 ", "^(UCX|libfabric)"},
	{"the same, compared with C that calls send for each", "^RDMA Write, 64 B: messages, one ", rdma + ", 1 ", "^C TCP"},
	{"Latency of 8 bytes, polling, compared with UCX and libfabric", "^Latency one way, 8 B, polling:", rdma + "$", "^(UCX|libfabric)"},
	{"the same, compared with C that spins", "^Latency one way, 8 B, polling:", rdma + "$", "^C TCP, spinning"},
	{"Bandwidth of 64 KiB Writes, compared with libfabric", "^RDMA Write, 64 KiB:", rdma + "$", "^libfabric"},
	{"the same, compared with C TCP", "^RDMA Write, 64 KiB:", rdma + "$", "^C TCP"},
	{"Bandwidth of 1 MiB Writes, compared with C TCP", "^RDMA Write, 1 MiB:", rdma + "$", "^C TCP"},
	{"Through shared memory: latency of 8 bytes, polling, compared with Viaduct over TCP", "^Same host, latency one way, 8 B, polling", "shared memory", rdma + "$"},
	{"Through shared memory: bandwidth of 64 KiB Writes, compared with C TCP", "^Same host, RDMA Write, 64 KiB", "shared memory", "^C TCP"},
	{"Through shared memory: bandwidth of an SDP stream, compared with Go's TCP", "^Same host, stream, writes", "shared memory", "^Go TCP"},
	{"Through shared memory: HTTP requests over SDP, 1 KiB, 16 clients, compared with Go's TCP", "^Same host, HTTP, answers of 1 KiB, 16 clients: requests", "shared memory", "^Go TCP"},
}

// expected is the table of the expectations.
func (r *Results) expected() (string, error) {
	t := Table{Head: Row("what", "ratio")}
	for _, x := range expectations {
		lo, hi, mark := 0.0, 0.0, ""
		contest, ours, theirs := regexp.MustCompile(x.contest), regexp.MustCompile(x.ours), regexp.MustCompile(x.theirs)
		for _, row := range r.Peers.Rows {
			c := cells(row)
			if len(c) < 6 || !contest.MatchString(c[0]) || !ours.MatchString(c[1]) || !theirs.MatchString(c[3]) {
				continue
			}
			v, err := strconv.ParseFloat(c[5], 64)
			if err != nil {
				continue // one side was not measured
			}
			if lo == 0 || v < lo {
				lo = v
			}
			hi = max(hi, v)
			if c[len(c)-1] == Stale {
				mark = " (stale)"
			}
		}
		value := "not measured"
		switch {
		case lo > 0 && short(lo) == short(hi):
			value = short(lo)
		case lo > 0:
			value = short(lo) + " to " + short(hi)
		}
		t.Rows = append(t.Rows, Row(x.what, value+mark))
	}
	return t.Markdown(), nil
}

// short formats a ratio with two digits, or without a fraction from 10 on.
func short(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// A reading holds tshark's counts of a capture.
type reading struct {
	requests, replies int // MPA start-up frames
	fpdus             int
	goodCRC, badCRC   int
	malformed         []string // the first few malformed packets, one line each
}

// dissect checks the captures of the tests with tshark. The captures must contain a start-up for
// each conversation, enough FPDUs, and no malformed packet.
func (r *runner) dissect(ctx context.Context) error {
	if len(r.captures) == 0 { // there is no capture with -conform
		return nil
	}
	if err := need("tshark"); err != nil {
		r.logf("*** SKIPPED: the capture was not read: %v ***", err)
		return nil
	}
	r.check("tshark reads the capture", func() error {
		d := new(reading)
		for i, file := range r.captures {
			frames := filepath.Join(r.dir, fmt.Sprintf("frames%d.pcap", i+1))
			if err := reframe(file, frames); err != nil {
				return err
			}
			if err := d.read(ctx, frames); err != nil {
				return err
			}
		}
		r.logf("        tshark: %d start-ups, %d FPDUs, %d with a good CRC, %d with a bad one, %d malformed", d.replies, d.fpdus, d.goodCRC, d.badCRC, len(d.malformed))
		switch {
		case len(d.malformed) > 0:
			return fmt.Errorf("malformed:\n%s", strings.Join(d.malformed, "\n"))
		case d.badCRC > 0:
			return fmt.Errorf("%d FPDUs with a bad CRC", d.badCRC)
		case d.requests < r.startUps || d.replies < r.startUps:
			return fmt.Errorf("%d requests and %d replies, want %d", d.requests, d.replies, r.startUps)
		case d.fpdus < r.fpdus:
			return fmt.Errorf("%d FPDUs, want %d", d.fpdus, r.fpdus)
		case d.goodCRC < r.withCRC:
			return fmt.Errorf("%d FPDUs with a CRC, want %d", d.goodCRC, r.withCRC)
		}
		return nil
	})
	return nil
}

// read runs tshark on a capture, and adds the results.
func (d *reading) read(ctx context.Context, file string) error {
	// tshark would decode messages of a few bytes as NFS over RDMA, a protocol not used here.
	const notNFS = "rpcordma"
	// The host's ports are random, and tshark assigns some ports to other protocols.
	const anyPort = "tcp.try_heuristic_first:TRUE"
	out, err := command(ctx, "", "tshark", "-r", file, "-o", anyPort, "--disable-protocol", notNFS, "-Y", "iwarp_mpa", "-O", "iwarp_mpa")
	if err != nil {
		return err
	}
	d.parse(out)
	// The first output has only the MPA layer, so a second run looks for malformed packets of the
	// upper layers.
	out, err = command(ctx, "", "tshark", "-r", file, "-o", anyPort, "--disable-protocol", notNFS, "-Y", "iwarp_mpa && _ws.malformed")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if len(d.malformed) < 10 {
			d.malformed = append(d.malformed, strings.TrimSpace(line))
		}
	}
	return nil
}

func (d *reading) parse(out []byte) {
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		switch {
		case strings.HasPrefix(line, "Request frame header"):
			d.requests++
		case strings.HasPrefix(line, "Reply frame header"):
			d.replies++
		case line == "FPDU":
			d.fpdus++
		case strings.Contains(line, "(Good CRC32)"):
			d.goodCRC++
		case strings.Contains(line, "(Bad CRC32"):
			d.badCRC++
		}
	}
}

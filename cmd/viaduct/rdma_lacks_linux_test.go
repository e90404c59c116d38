//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMALacks makes the test binary a program that requests features missing from iWARP.
const asRDMALacks = "VIADUCT_TEST_RDMA_LACKS"

// A program that asks an iWARP device for a missing feature gets an error. The user gets one line
// naming the feature and the alternative, however often the program asks. Features probed by all
// programs give no line.
func TestRDMALacks(t *testing.T) {
	t.Parallel()
	r := good(t, "run", "--rdma", "--", "env", calm, asRDMALacks+"=1", os.Args[0])
	for _, want := range []string{
		"siw0 for datagrams (UD), which iWARP does not have: run it with --device rxe0",
		"siw0 for unreliable connections (UC), which iWARP does not have: run it with --device rxe0",
		"siw0 for XRC, which iWARP does not have: no emulated device has that",
		"siw0 for memory for atomic operations, which iWARP does not have: run it with --device rxe0",
		"siw0 for a queue pair that is connected without rdma_cm, which iWARP does not have: connect by rdma_cm (perftest: -R)",
		"rdma_cm for datagrams (UD), which iWARP does not have: run it with --device rxe0",
		"siw0 for a memory window, which iWARP does not have",
	} {
		if n := strings.Count(r.stderr, want); n != 1 {
			t.Errorf("%q %d times, want once", want, n)
		}
	}
	if n := strings.Count(r.stderr, "\n"); n != 7 {
		t.Errorf("%d lines, want 7", n)
	}
	if t.Failed() {
		t.Log(r.stderr)
	}
}

// The example programs newcomers try first fail on an iWARP device, with the reason.
func TestRDMALackingTools(t *testing.T) {
	t.Parallel()
	need(t, "ibv_ud_pingpong", "ibverbs-utils")
	for program, want := range map[string]string{"ibv_ud_pingpong": "datagrams (UD)", "ibv_uc_pingpong": "unreliable connections (UC)"} {
		if r := run(t, "run", "--rdma", "--", program, "-g", "0"); r.code == 0 ||
			strings.Count(r.stderr, want) != 1 || !strings.Contains(r.stderr, "--device rxe0") {
			t.Errorf("%s: exit %d\n%s", program, r.code, r.stderr)
		}
	}
}

func rdmaLacks() error {
	if _, err := mapAt(rightsAt, page); err != nil {
		return err
	}
	e, err := newRDMAEnd(0, rightsAt, page, 0)
	if err != nil {
		return err
	}
	const local, remoteWrite, remoteRead, atomics = 1, 2, 4, 8
	reg := func(access uint32) error {
		return e.command(abi.RegMR, 20, e.at(0), uint64(rightsAt), uint64(page), uint64(rightsAt),
			e.pd, access, uint64(1))
	}
	create := func(typ uint32) error {
		return e.command(abi.CreateQP, 64, e.at(0), uint64(2), e.pd, e.cqHandle, e.cqHandle,
			uint32(0), uint32(1), uint32(1),
			uint32(1), uint32(1), uint32(0), typ<<8, uint32(0))
	}
	modify := func(mask uint32) error {
		b := make(abi.Body, 112)
		b.Put32(64, e.handle)
		b.Put32(68, mask)
		return e.command(abi.ModifyQP, 0, []byte(b))
	}
	for range 2 {
		id := append(le.AppendUint64(le.AppendUint64(nil, 1), e.at(0)), 0x11, 1, 0, 0, 0, 0, 0, 0) // RDMA_PS_UDP
		if err := e.cmCommand(abi.CMCreateID, 4, id); err != nil {
			return fmt.Errorf("an identifier for datagrams: %w", err)
		}
		for _, c := range []struct {
			what string
			got  error
			want error
		}{
			{"reliable connection", create(2), nil},
			{"unreliable connection", create(3), unix.EOPNOTSUPP},
			{"datagrams", create(4), unix.EOPNOTSUPP},
			{"XRC to send", create(9), unix.EOPNOTSUPP},
			{"XRC to receive", create(10), unix.EOPNOTSUPP},
			{"memory", reg(local | remoteWrite | remoteRead), nil},
			{"memory with all rights", reg(local | remoteWrite | remoteRead | atomics), nil},
			{"memory for atomic operations", reg(local | atomics), nil},
			{"memory window", e.command(abi.AllocMW, 8, e.at(0), e.pd, uint32(1), uint32(0)), unix.EOPNOTSUPP},
			{"rights of a queue pair", modify(abi.QPAccessFlags), nil},
			{"the peer's address", modify(abi.QPAddress), nil},
			{"the peer's number", modify(abi.QPDestination), nil},
		} {
			if c.got != c.want && (c.got != nil || c.want != nil) {
				return fmt.Errorf("%s: %v, want %v", c.what, c.got, c.want)
			}
		}
	}
	return nil
}

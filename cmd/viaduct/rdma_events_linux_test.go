//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/sock"
)

// asRDMAEvents makes the test binary a program that reads connection manager events, and checks
// whether the channel holds more.
const asRDMAEvents = "VIADUCT_TEST_RDMA_EVENTS"

// An event channel is readable only while an event is queued. If the channel stayed readable after
// the last event was read, a polling library would wait in get_event without end.
func TestRDMAEvents(t *testing.T) {
	t.Parallel()
	good(t, "run", "--rdma", "--", "env", calm, asRDMAEvents+"=1", os.Args[0])
}

func rdmaEvents() (err error) {
	h := &rdmaAbuser{port: 1}
	if h.scratch, err = unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	if h.cm, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	readable := func(timeout int) bool {
		p := []unix.PollFd{{Fd: int32(h.cm), Events: unix.POLLIN}}
		n, err := sock.Poll(p, timeout)
		return n > 0 && err == nil
	}
	body := le.AppendUint64(nil, h.at(0))
	for i := range 200 {
		id, err := h.create(1)
		if err != nil {
			return err
		}
		resolve := le.AppendUint32(le.AppendUint32(append(make([]byte, 28), h.address()...), id), 1000)
		if err := h.cmCommand(abi.CMResolveIP, 0, resolve); err != nil {
			return fmt.Errorf("resolve_ip: %w", err)
		}
		if !readable(60_000) {
			return fmt.Errorf("event %d does not come", i)
		}
		if err := h.cmCommand(abi.CMGetEvent, abi.EventLen, body); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		if readable(0) {
			return fmt.Errorf("the channel is readable behind event %d, which was the last", i)
		}
		if err := h.cmCommand(abi.CMDestroyID, 4, append(le.AppendUint32(le.AppendUint64(nil, h.at(0)), id), 0, 0, 0, 0)); err != nil {
			return fmt.Errorf("destroy_id: %w", err)
		}
		if n := h.word(0); n != 1 {
			return fmt.Errorf("%d events were reported of identifier %d, want 1", n, id)
		}
	}
	return nil
}

//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
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
		if err := h.ownEvent(id, uint64(i)<<40|7, readable); err != nil {
			return fmt.Errorf("own event %d: %w", i, err)
		}
		if err := h.cmCommand(abi.CMDestroyID, 4, append(le.AppendUint32(le.AppendUint64(nil, h.at(0)), id), 0, 0, 0, 0)); err != nil {
			return fmt.Errorf("destroy_id: %w", err)
		}
		if n := h.word(0); n != 2 {
			return fmt.Errorf("%d events were reported of identifier %d, want 2", n, id)
		}
	}
	return h.manyOwnEvents()
}

// writeEvent writes an event of an identifier into the channel.
func (h *rdmaAbuser) writeEvent(id uint32, status int32, arg uint64) error {
	n, _ := abi.CMWriteEvent.Lengths()
	b := make(abi.Body, n)
	b.Put32(0, id)
	b.Put32(8, uint32(abi.EvUser))
	b.Put32(12, uint32(status))
	b.Put64(16, arg)
	return h.cmCommand(abi.CMWriteEvent, 0, b)
}

// ownEvent writes an event with an argument, and compares the event that the channel then gives.
func (h *rdmaAbuser) ownEvent(id uint32, arg uint64, readable func(timeout int) bool) error {
	const status = -5
	if err := h.writeEvent(id, status, arg); err != nil {
		return err
	}
	if !readable(0) {
		return errors.New("the channel is not readable")
	}
	if err := h.cmCommand(abi.CMGetEvent, abi.EventLen, le.AppendUint64(nil, h.at(0))); err != nil {
		return err
	}
	e := abi.Body(h.scratch)
	if e.U64(0) != 1 || e.U32(8) != id || e.U32(12) != uint32(abi.EvUser) || int32(e.U32(16)) != status || e.U64(20) != arg {
		return fmt.Errorf("got % x", []byte(e[:28]))
	}
	return nil
}

// manyOwnEvents writes events and reads none. The channel must refuse events at some number,
// because the events take memory of the supervisor.
func (h *rdmaAbuser) manyOwnEvents() error {
	id, err := h.create(1)
	if err != nil {
		return err
	}
	for range 1 << 14 {
		if err := h.writeEvent(id, 0, 0); err == unix.ENOMEM {
			return nil
		} else if err != nil {
			return err
		}
	}
	return errors.New("a channel takes any number of events")
}

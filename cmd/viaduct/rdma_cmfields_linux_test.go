//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A cmFields sends the commands of rdma_cm with each field wrong in turn. Before each command,
// cmFields creates an identifier in the required state.
type cmFields struct {
	*rdmaFields
	id, gone uint32
	other    uint32 // an identifier that belongs to another file
	file     int    // the file from which migrate_id moves an identifier
}

func (h *cmFields) value(k abi.Kind) uint64 {
	switch k {
	case abi.Reply:
		return h.at(0)
	case abi.Identifier:
		return uint64(h.id)
	case abi.PortSpace:
		return 0x106
	case abi.IDType:
		return abi.TypeRC
	case abi.QPNumber:
		return uint64(h.have[abi.QP])
	case abi.Given, abi.Option: // the option is to reuse addresses
		return 1
	case abi.CMState:
		return uint64(abi.Init)
	case abi.Value:
		return h.at(4096)
	case abi.OptionLen:
		return 4
	case abi.CMFile:
		return uint64(h.file)
	case abi.Family:
		return unix.AF_INET
	case abi.OwnEvent:
		return uint64(abi.EvUser)
	}
	return 0
}

func (h *cmFields) wrong(k abi.Kind) (values []uint64, says []unix.Errno) {
	values, says = h.senseless(k)
	if h.foreign != nil {
		values = h.foreign[k]
	}
	return values, says
}

func (h *cmFields) senseless(k abi.Kind) (values []uint64, says []unix.Errno) {
	const top = 1 << 63
	switch k {
	case abi.Reply:
		return []uint64{0, 8, top, ^uint64(7), h.readOnly}, []unix.Errno{unix.EFAULT}
	case abi.Value:
		return []uint64{0, 8, top, ^uint64(7)}, []unix.Errno{unix.EFAULT}
	case abi.Identifier:
		return []uint64{1 << 20, 1<<31 - 1, 1<<32 - 1, uint64(h.gone), uint64(h.other)},
			[]unix.Errno{unix.ENOENT, unix.EINVAL}
	case abi.PortSpace:
		return []uint64{0, 1, 0x107, 0xffff}, []unix.Errno{unix.EINVAL}
	case abi.IDType:
		return []uint64{1, 3, 4, 8, 255}, []unix.Errno{unix.EINVAL}
	case abi.Family:
		return []uint64{0, 1, 3, unix.AF_UNIX, unix.AF_IB, 0xffff}, []unix.Errno{unix.EAFNOSUPPORT}
	case abi.QPNumber:
		return []uint64{0, 1 << 24, 1<<32 - 1}, []unix.Errno{unix.EINVAL}
	case abi.Given:
		return []uint64{0}, []unix.Errno{unix.EINVAL}
	case abi.CMState:
		return []uint64{0, 4, 7, 1 << 31}, []unix.Errno{unix.EINVAL}
	case abi.Level:
		return []uint64{1, 2, 1<<32 - 1}, []unix.Errno{unix.ENOSYS}
	case abi.Option:
		return []uint64{4, 100, 1<<32 - 1}, []unix.Errno{unix.ENOSYS}
	case abi.OptionLen:
		return []uint64{0, 3, 5, 1 << 20, 1<<32 - 1}, []unix.Errno{unix.EINVAL}
	case abi.OwnEvent:
		return []uint64{0, uint64(abi.EvEstablished), uint64(abi.EvUser) - 1, uint64(abi.EvInternal) + 1, 1<<32 - 1},
			[]unix.Errno{unix.EINVAL}
	case abi.CMFile:
		return []uint64{0, 900, uint64(h.uverbs), 1<<32 - 1}, []unix.Errno{unix.EINVAL, unix.EBADF}
	}
	return nil, nil // any value is correct
}

func (h *cmFields) body(c abi.CMCommand) abi.Body {
	n, _ := c.Lengths()
	b := make(abi.Body, n)
	switch c {
	case abi.CMBindIP:
		copy(b[8:], h.address())
		b.Put16(10, 0) // a free port
	case abi.CMResolveIP:
		copy(b[28:], h.address())
	case abi.CMConnect:
		b.Put8(266, 1)
	case abi.CMAccept:
		b.Put8(274, 1)
	}
	for _, f := range c.Fields() {
		put(b, f, h.value(f.Kind))
	}
	return b
}

// right sends a correct command, and returns an error if the command fails.
func (h *cmFields) right(c abi.CMCommand) error {
	_, out := c.Lengths()
	if err := h.cmCommand(c, out, h.body(c)); err != nil {
		return fmt.Errorf("%v that is right: %w", c, err)
	}
	return nil
}

// create creates an identifier for the following commands.
func (h *cmFields) create() error {
	err := h.right(abi.CMCreateID)
	h.id = h.word(0)
	return err
}

// before brings the identifier into the state required by a command.
func (h *cmFields) before(c abi.CMCommand) (err error) {
	do := func(c abi.CMCommand) {
		if err == nil {
			err = h.right(c)
		}
	}
	event := func(t abi.CMEventType) (id uint32) {
		if err == nil {
			id, err = h.event(t)
		}
		return id
	}
	resolved := func() {
		do(abi.CMResolveIP)
		event(abi.EvAddrResolved)
	}
	switch c {
	case abi.CMListen, abi.CMInitQPAttr, abi.CMQueryRoute:
		do(abi.CMBindIP)
	case abi.CMResolveRoute:
		resolved()
	case abi.CMGetEvent:
		do(abi.CMResolveIP) // the program has not read the event yet
	case abi.CMConnect, abi.CMNotify:
		resolved()
		do(abi.CMResolveRoute)
		event(abi.EvRouteResolved)
	case abi.CMAccept, abi.CMReject, abi.CMDisconnect:
		// Create a listener, and an identifier requesting a connection from the listener.
		do(abi.CMBindIP)
		do(abi.CMQueryRoute)
		h.port = uint16(h.scratch[138])<<8 | uint16(h.scratch[139])
		do(abi.CMListen)
		if err == nil {
			err = h.create()
		}
		resolved()
		do(abi.CMResolveRoute)
		event(abi.EvRouteResolved)
		do(abi.CMConnect)
		h.id = event(abi.EvConnectRequest)
		if err == nil { // the other side has its own queue pair
			err = h.rdmaFields.right(abi.CreateQP)
			h.have[abi.QP] = h.word(1)
		}
		if c == abi.CMDisconnect {
			do(abi.CMAccept)
			event(abi.EvEstablished)
			event(abi.EvEstablished)
		}
	}
	return err
}

// try sends a command with each field wrong in turn, and then a correct command.
func (h *cmFields) try(c abi.CMCommand) (bad error) {
	if err := h.create(); err != nil {
		return err
	}
	if err := h.before(c); err != nil {
		return fmt.Errorf("before %v: %w", c, err)
	}
	want := func(what string, err error, says ...unix.Errno) {
		if e, _ := err.(unix.Errno); err == nil || !slices.Contains(says, e) {
			bad = errors.Join(bad, fmt.Errorf("%v, %s: %v, want one of %v", c, what, err, says))
		}
	}
	_, out := c.Lengths()
	ends := c == abi.CMDestroyID // destroy_id takes effect even if its response cannot be written
	for _, f := range c.Fields() {
		values, says := h.wrong(f.Kind)
		for _, v := range values {
			b := h.body(c)
			put(b, f, v)
			want(fmt.Sprintf("%s %#x", f.Name, v), h.cmCommand(c, out, b), says...)
			if f.Kind == abi.Reply && ends {
				bad = errors.Join(bad, h.create())
			}
		}
	}
	if out > 0 {
		for _, room := range []int{0, out - 1} {
			want(fmt.Sprintf("room for %d bytes", room), h.cmCommand(c, room, h.body(c)), unix.ENOSPC)
		}
	}
	b := h.body(c)
	whole := append(le.AppendUint32(nil, uint32(c)), byte(len(b)+1), byte((len(b)+1)>>8), byte(out), byte(out>>8))
	want("header that says more than there is", h.write(h.cm, append(whole, b...)), unix.EINVAL)
	for cut := range 8 {
		want(fmt.Sprintf("%d bytes", cut), h.write(h.cm, whole[:cut]), unix.EINVAL)
	}
	_, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(h.cm), 8, 64)
	want("nowhere", errno, unix.EFAULT)
	return errors.Join(bad, h.right(c))
}

// managerFields tries the commands of rdma_cm with each field wrong. A refused command must have no
// effect, so that a correct command then succeeds in the same state.
func (h *rdmaFields) managerFields() (bad error) {
	for _, c := range abi.CMCommands() {
		if err := h.managerCommand(c); err != nil {
			bad = errors.Join(bad, err)
		}
	}
	return bad
}

func (h *rdmaFields) managerCommand(c abi.CMCommand) (err error) {
	if err := h.setUp(); err != nil {
		return err
	}
	defer unix.Close(h.uverbs)
	m := &cmFields{rdmaFields: h}
	if err := h.right(abi.CreateQP); err != nil {
		return err
	}
	h.have[abi.QP] = h.word(1) // rdma_cm names queue pairs by number, not by handle
	open := func() (fd int) {
		if err == nil {
			fd, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		}
		return fd
	}
	h.cm = open()
	if err == nil {
		err = m.create()
	}
	m.other, m.file = m.id, h.cm
	defer unix.Close(m.file)
	if h.cm = open(); err != nil {
		return err
	}
	defer unix.Close(h.cm)
	if c == abi.CMMigrateID { // move an identifier from a third file to this one
		to := h.cm
		if h.cm = open(); err != nil {
			return err
		}
		defer unix.Close(h.cm)
		m.file = h.cm
		if err := m.create(); err != nil {
			return err
		}
		moved := m.id
		h.cm = to
		return m.tryMigrate(moved)
	}
	if err := m.create(); err != nil {
		return err
	}
	m.gone = m.id
	if err := m.right(abi.CMDestroyID); err != nil {
		return err
	}
	return m.try(c)
}

// tryMigrate is try for migrate_id, whose identifier belongs to another file.
func (h *cmFields) tryMigrate(id uint32) (bad error) {
	h.id, h.gone = id, 1<<30
	c := abi.CMMigrateID
	_, out := c.Lengths()
	for _, f := range c.Fields() {
		values, says := h.wrong(f.Kind)
		if f.Kind == abi.Reply { // the kernel writes the response only after it has moved the identifier
			continue
		}
		for _, v := range values {
			b := h.body(c)
			put(b, f, v)
			if e, _ := h.cmCommand(c, out, b).(unix.Errno); !slices.Contains(says, e) {
				bad = errors.Join(bad, fmt.Errorf("%v, %s %#x: %v, want one of %v", c, f.Name, v, e, says))
			}
		}
	}
	if bad != nil {
		return bad
	}
	return h.right(c)
}

//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMAFields makes the test binary a program that sends every command in the tables of package
// abi with each field wrong in turn, by write and by ioctl.
const asRDMAFields = "VIADUCT_TEST_RDMA_FIELDS"

// calm keeps the Go runtime of a program from sending signals to its threads. If a signal arrives
// at the moment of an answer, the kernel drops the answer and repeats the command.
const calm = "GODEBUG=asyncpreemptoff=1"

// rdmaFields is a program with one object of each kind.
type rdmaFields struct {
	rdmaAbuser
	have     map[abi.Kind]uint32   // handles, and the descriptor of the channel
	gone     map[abi.Kind]uint32   // handles of destroyed objects
	readOnly uint64                // address of a page that is read-only
	foreign  map[abi.Kind][]uint64 // values of another program, used instead of other wrong values
}

// rdmaMakers are the commands that create objects, in order: a later command may use the objects of
// earlier commands.
var rdmaMakers = []struct {
	kind        abi.Kind
	create, end abi.Command
}{
	{abi.Domain, abi.AllocPD, abi.DeallocPD}, {abi.Region, abi.RegMR, abi.DeregMR}, {abi.Channel, abi.CreateCompChannel, 0},
	{abi.CQ, abi.CreateCQ, abi.DestroyCQ}, {abi.SRQ, abi.CreateSRQ, abi.DestroySRQ}, {abi.QP, abi.CreateQP, abi.DestroyQP},
}

// value returns the value of a field in a correct command.
func (h *rdmaFields) value(k abi.Kind) uint64 {
	switch k {
	case abi.Reply:
		return h.at(0)
	case abi.Domain, abi.Region, abi.CQ, abi.QP, abi.SRQ, abi.Channel:
		return uint64(h.have[k])
	case abi.Start, abi.Virtual:
		return h.at(len(h.scratch) / 2)
	case abi.Length:
		return 4096
	case abi.Count:
		return 4
	case abi.Bool, abi.Port:
		return 1
	case abi.Rights:
		return abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead
	case abi.QPMask:
		return abi.QPState
	case abi.SRQMask:
		return abi.SRQLimit
	case abi.NextState: // in this state, a queue pair accepts sends without a connection
		return uint64(abi.Err)
	case abi.Type:
		return abi.TypeRC
	}
	return rxeValue(h.have, k)
}

// wrong lists invalid values of a field, and the kernel's errors for the values.
func (h *rdmaFields) wrong(k abi.Kind, out int) (values []uint64, says []unix.Errno) {
	values, says = h.senseless(k, out)
	if h.foreign != nil {
		values = h.foreign[k]
	}
	return values, says
}

func (h *rdmaFields) senseless(k abi.Kind, out int) (values []uint64, says []unix.Errno) {
	const top = 1 << 63
	switch k {
	case abi.Reply:
		end := h.at(len(h.scratch)-1) + 1 // no memory is mapped there
		return []uint64{0, 8, top, ^uint64(7), h.readOnly, end - uint64(out)/2}, []unix.Errno{unix.EFAULT}
	case abi.Domain, abi.Region, abi.CQ, abi.QP, abi.SRQ:
		return []uint64{1000, 1<<31 - 1, 1<<32 - 1, uint64(h.gone[k])}, []unix.Errno{unix.EINVAL, unix.ENOENT}
	case abi.Channel:
		return []uint64{0, uint64(h.uverbs), 900}, []unix.Errno{unix.EINVAL, unix.EBADF}
	case abi.Start:
		return []uint64{0, 4096, top, ^uint64(4095), h.at(0) + 1}, []unix.Errno{unix.EINVAL, unix.EFAULT}
	case abi.Virtual:
		return []uint64{h.at(len(h.scratch)/2) + 1, ^uint64(4095)}, []unix.Errno{unix.EINVAL}
	case abi.Length:
		return []uint64{0, uint64(len(h.scratch)/2) + 1, 1 << 47, top, ^uint64(0)},
			[]unix.Errno{unix.EINVAL, unix.ENOMEM, unix.EFAULT}
	case abi.Count:
		return []uint64{1 << 24, 1 << 31, 1<<32 - 1}, []unix.Errno{unix.EINVAL, unix.ENOMEM}
	case abi.Rights:
		return []uint64{1 << 31, 1 << 19, abi.AccessRemoteWrite, abi.AccessRemoteAtomic}, []unix.Errno{unix.EINVAL}
	case abi.QPMask:
		return []uint64{1 << 31, 1<<21 | abi.QPState}, []unix.Errno{unix.EOPNOTSUPP}
	case abi.SRQMask:
		return []uint64{1 << 31, 1 << 2, abi.SRQMaxWR}, []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP}
	case abi.NextState:
		return []uint64{7, 255}, []unix.Errno{unix.EINVAL}
	case abi.Type:
		return []uint64{0, 1, 3, 4, 8, 255}, []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP}
	case abi.Port:
		return []uint64{0, 2, 255}, []unix.Errno{unix.EINVAL}
	case abi.Vector:
		return []uint64{1, 1 << 31, 1<<32 - 1}, []unix.Errno{unix.EINVAL}
	case abi.Zero:
		return []uint64{1, 1<<32 - 1}, []unix.Errno{unix.EINVAL}
	}
	return rxeSenseless(k), nil // or nil, if any value is correct
}

// body returns the body of a correct command.
func (h *rdmaFields) body(c abi.Command) abi.Body {
	n, _ := c.Lengths()
	b := make(abi.Body, n)
	for _, f := range c.Fields() {
		put(b, f, h.value(f.Kind))
	}
	return b
}

func put(b abi.Body, f abi.Field, v uint64) {
	for i := range f.Size {
		b.Put8(f.At+i, uint8(v>>(8*i)))
	}
}

// room returns the maximum length of a command's response in bytes.
func room(c abi.Command) int {
	if c&abi.Extended != 0 {
		return abi.QueryDeviceExLen
	}
	_, out := c.Lengths()
	return out
}

// send sends a command. Extended commands have the address of the response in their header.
func (h *rdmaFields) send(c abi.Command, b abi.Body, out int, reply uint64) error {
	if c&abi.Extended == 0 {
		return h.command(c, out, []byte(b))
	}
	w := le.AppendUint32(nil, uint32(c))
	w = le.AppendUint16(w, uint16(len(b)/8))
	w = le.AppendUint16(w, uint16(out/8))
	w = le.AppendUint64(w, reply)
	return h.write(h.uverbs, append(append(w, make([]byte, 8)...), b...))
}

// right sends a correct command.
func (h *rdmaFields) right(c abi.Command) error {
	if err := h.send(c, h.body(c), room(c), h.at(0)); err != nil {
		return fmt.Errorf("%v that is right: %w", c, err)
	}
	return nil
}

// setUp opens the device again. It creates two objects of each kind: the first stays in have, and
// the second is destroyed, with the handle in gone.
func (h *rdmaFields) setUp() (err error) {
	if h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	h.have, h.gone = map[abi.Kind]uint32{}, map[abi.Kind]uint32{}
	if err := h.right(abi.GetContext); err != nil {
		return err
	}
	unix.Close(int(h.word(0))) // descriptor of the asynchronous events
	for _, m := range rdmaMakers {
		if m.end != 0 {
			if err := h.make(m.kind, m.create); err != nil {
				return err
			}
			if err := h.right(m.end); err != nil {
				return err
			}
			h.gone[m.kind] = h.have[m.kind]
		}
		if err := h.make(m.kind, m.create); err != nil {
			return err
		}
	}
	return h.right(abi.ModifyQP)
}

// spare creates the object that c destroys. For other commands spare does nothing.
func (h *rdmaFields) spare(c abi.Command) error {
	for _, m := range rdmaMakers {
		if c == m.end {
			return h.make(m.kind, m.create)
		}
	}
	return nil
}

func (h *rdmaFields) make(k abi.Kind, c abi.Command) error {
	err := h.right(c)
	h.have[k] = h.word(0)
	return err
}

// tearDown destroys all objects. This succeeds only if no refused command has destroyed an object,
// or created an object that uses another.
func (h *rdmaFields) tearDown() error {
	for _, m := range slices.Backward(rdmaMakers) {
		if m.kind == abi.Channel {
			unix.Close(int(h.have[m.kind]))
		} else if err := h.right(m.end); err != nil {
			return fmt.Errorf("what failed has done something: %w", err)
		}
	}
	return unix.Close(h.uverbs)
}

// try sends a command with each field wrong in turn. A destroying command gets an unused object.
func (h *rdmaFields) try(c abi.Command) (bad error) {
	want := func(what string, err error, says ...unix.Errno) {
		e, _ := err.(unix.Errno)
		if errors.Is(err, errSupervisorGone) || err == nil || !slices.Contains(says, e) {
			bad = errors.Join(bad, fmt.Errorf("%v, %s: %v, want one of %v", c, what, err, says))
		}
	}
	n, out := c.Lengths()
	bad = h.spare(c)
	for _, f := range c.Fields() {
		values, says := h.wrong(f.Kind, out)
		for _, v := range values {
			b := h.body(c)
			put(b, f, v)
			want(fmt.Sprintf("%s %#x", f.Name, v), h.send(c, b, room(c), h.at(0)), says...)
			if f.Kind == abi.Reply { // the kernel writes the response only after it has destroyed the object
				bad = errors.Join(bad, h.spare(c))
			}
		}
	}
	if c&abi.Extended == 0 {
		want("body cut", h.send(c, h.body(c)[:n-4], out, 0), unix.ENOSPC)
		want("no body", h.send(c, nil, out, 0), unix.ENOSPC)
		if out > 0 {
			want("response cut", h.send(c, h.body(c), out-4, 0), unix.ENOSPC)
			want("no room for a response", h.send(c, h.body(c), 0, 0), unix.ENOSPC)
		}
	} else {
		values, says := h.wrong(abi.Reply, room(c))
		for _, v := range values {
			if v == 0 { // without an address there is no response
				continue
			}
			want(fmt.Sprintf("response at %#x", v), h.send(c, h.body(c), room(c), v), says...)
		}
		want("room without a response", h.send(c, h.body(c), room(c), 0), unix.EINVAL)
		want("no body", h.send(c, nil, room(c), h.at(0)), unix.ENOSPC)
	}
	if !h.ioctls {
		whole := le.AppendUint32(nil, uint32(c))
		whole = append(le.AppendUint32(whole, uint32(room(c)/4)<<16), h.body(c)...)
		for _, in := range []int{0, len(whole)/4 - 1, len(whole)/4 + 1, 1<<16 - 1} {
			le.PutUint16(whole[4:], uint16(in))
			want(fmt.Sprintf("header that says %d words", in), h.write(h.uverbs, whole), unix.EINVAL)
		}
		le.PutUint16(whole[4:], uint16(len(whole)/4))
		for cut := range 8 {
			want(fmt.Sprintf("%d bytes", cut), h.write(h.uverbs, whole[:cut]), unix.EINVAL)
		}
		want("too long", h.write(h.uverbs, append(whole, make([]byte, 1<<16)...)), unix.EINVAL)
		_, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(h.uverbs), 8, uintptr(len(whole)))
		want("nowhere", errno, unix.EFAULT)
	}
	return bad
}

func rdmaFieldsMain() error {
	h := &rdmaFields{}
	bad := h.allCommands()
	fmt.Printf("%d commands, %d done\n", h.commands, h.done)
	return bad
}

// allCommands tries all commands of the tables.
func (h *rdmaFields) allCommands() error {
	all, err := unix.Mmap(-1, 0, 1<<20+2*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	h.scratch = all[4096 : len(all)-4096]
	clear(h.scratch)
	h.readOnly = h.at(0) - 4096
	if err := unix.Mprotect(all[:4096], unix.PROT_READ); err != nil {
		return err
	}
	end := h.at(len(h.scratch)-1) + 1
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(end), 4096, 0); errno != 0 {
		return errno
	}
	var bad error
	for _, h.ioctls = range []bool{false, true} {
		for _, c := range abi.Commands() {
			if h.ioctls && c&abi.Extended != 0 {
				continue
			}
			if err := h.setUp(); err != nil {
				return err
			}
			if c == abi.GetContext { // a file can have only one context
				unix.Close(h.uverbs)
				if h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
					return err
				}
			}
			first := maps.Clone(h.have)
			if err := h.try(c); err != nil {
				bad = errors.Join(bad, fmt.Errorf("ioctl %v: %w", h.ioctls, err))
			}
			if err := h.finish(c, first); err != nil {
				bad = errors.Join(bad, fmt.Errorf("ioctl %v: behind %v: %w", h.ioctls, c, err))
			}
		}
	}
	h.ioctls = false
	if h.foreign == nil {
		bad = errors.Join(bad, h.manager())
	}
	return errors.Join(bad, h.managerFields())
}

// manager sends the commands of rdma_cm, and some unknown commands, in all lengths and with each
// word wrong, without an identifier.
func (h *rdmaFields) manager() (err error) {
	if h.cm, err = unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	defer unix.Close(h.cm)
	const longest = 300
	says := []unix.Errno{0, unix.EINVAL, unix.ENOENT, unix.ENOSPC, unix.EFAULT, unix.ENOSYS,
		unix.EAGAIN, unix.EADDRNOTAVAIL, unix.ENODEV,
		unix.EACCES, unix.EADDRINUSE, unix.EAFNOSUPPORT}
	try := func(c abi.CMCommand, out int, b abi.Body) {
		if e, _ := h.cmCommand(c, out, b).(unix.Errno); !slices.Contains(says, e) {
			err = errors.Join(err, fmt.Errorf("%v with %d bytes and room for %d: %w", c, len(b), out, e))
		}
	}
	for c := range abi.CMJoinMcast + 3 {
		for n := 0; n <= longest; n += 4 {
			try(c, n, make(abi.Body, n))
			b := make(abi.Body, longest)
			b.Put64(8, h.at(0)) // address of the response, as in create_id
			for _, v := range []uint32{1, 1 << 31, 1<<32 - 1} {
				b.Put32(min(n, longest-4), v)
				try(c, longest, b)
			}
		}
	}
	b := le.AppendUint64(le.AppendUint64(nil, 1), h.at(0))
	if e := h.cmCommand(abi.CMCreateID, 4, append(b, 6, 1, 2, 0, 0, 0, 0, 0)); e != nil {
		return errors.Join(err, fmt.Errorf("create_id that is right: %w", e))
	}
	return err
}

// finish sends the correct command, then destroys the created object and the objects in first.
func (h *rdmaFields) finish(c abi.Command, first map[abi.Kind]uint32) error {
	if err := h.right(c); err != nil {
		return err
	}
	made := h.word(0)
	if c == abi.GetContext {
		unix.Close(int(made))
		return unix.Close(h.uverbs)
	}
	for _, m := range rdmaMakers {
		if c != m.create {
			continue
		}
		if m.kind == abi.Channel {
			unix.Close(int(made))
			continue
		}
		h.have[m.kind] = made
		if err := h.right(m.end); err != nil {
			return err
		}
	}
	h.have = first
	return h.tearDown()
}

// A command with a wrong field is refused with the kernel's error, has no effect, and harms neither
// the supervisor nor the program's objects. New commands in the tables are tried automatically.
func TestRDMAFields(t *testing.T) {
	t.Parallel()
	r := goodLong(t, "run", "--rdma", "--", "env", calm, asRDMAFields+"=1", os.Args[0])
	var commands, done int
	if _, err := fmt.Sscanf(strings.TrimSpace(r.stdout), "%d commands, %d done", &commands, &done); err != nil ||
		commands < 1000 {
		t.Errorf("%q: too few commands", r.stdout)
	}
	t.Log(strings.TrimSpace(r.stdout))
}

//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// asRDMANeighbour makes the test binary one of the programs of TestRDMANeighbour. The value "both
// WHAT" starts "honest WHAT" and "hostile WHAT". WHAT is all or requests, or rxe for
// TestRXENeighbour.
const asRDMANeighbour = "VIADUCT_TEST_RDMA_NEIGHBOUR"

// One of two programs under one supervisor knows all handles, keys and addresses of the other
// program. The first program uses these numbers in every field of every command, and in requests.
// All must be refused without access to the memory of the other program. The other program
// continues to work.
func TestRDMANeighbour(t *testing.T) {
	lengthy(t, "20 s")
	t.Parallel()
	for _, flags := range [][]string{nil, {"--tcp"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			what := "all"
			if flags != nil { // the commands do not depend on the flags
				what = "requests"
			}
			arg := fmt.Sprintf("%s=both %s", asRDMANeighbour, what)
			r := goodLong(t, append(append([]string{"run", "--rdma"}, flags...), "--", "env", calm, arg, os.Args[0])...)
			var transfers, commands, requests int
			for line := range strings.Lines(r.stdout) {
				fmt.Sscanf(line, "honest: %d transfers", &transfers)
				fmt.Sscanf(line, "hostile: %d commands, %d requests", &commands, &requests)
			}
			if transfers < fewTransfers || what == "all" && commands < 1500 || requests < 20 {
				t.Errorf("%d transfers, %d commands, %d requests: too few\n%s", transfers, commands, requests, r.stdout)
			}
			t.Log(strings.TrimSpace(r.stdout))
		})
	}
}

const (
	honestAt   = 0x3000000000 // memory of the honest program, one piece for each of its ends
	honestStep = 1 << 20
	honestLen  = 64 << 10
	honestEnds = 3
	// The number of transferred bytes of the first two ends. The other bytes are secret.
	movingLen = 4096
	// The honest program makes at least fewTransfers transfers, even if the attack is over sooner.
	fewTransfers = 10
	// The honest program creates and destroys honestSkip objects first, so that the two programs
	// have different handles.
	honestSkip = 200
	// The descriptor numbers at which the honest program has duplicates. The hostile program has no
	// file there.
	honestChannel, honestCM = 700, 701
)

// honestNumbers holds the honest program's handles, keys and addresses, for use by the hostile
// program.
type honestNumbers struct {
	Foreign map[abi.Kind][]uint64
	STags   []uint32 // keys of its ends
	QPs     []uint32 // its queue pairs, for TestRXENeighbour
	Offsets []int64  // offsets of its rings
	PID     uint32
}

func rdmaNeighbour(arg string) error {
	role, what, _ := strings.Cut(arg, " ")
	switch {
	case role == "honest" && what == "rxe":
		return rxeHonest()
	case role == "hostile" && what == "rxe":
		return rxeHostileNeighbour()
	case role == "honest":
		return rdmaHonest()
	case role == "hostile":
		return rdmaHostileNeighbour(what == "all")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var cs [2]*exec.Cmd
	for i, arg := range []string{"honest " + what, "hostile " + what} {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), asRDMANeighbour+"="+arg)
		end := os.NewFile(uintptr(pair[i]), "socket")
		c.ExtraFiles = []*os.File{end}
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
		end.Close()
		cs[i] = c
	}
	return errors.Join(cs[0].Wait(), cs[1].Wait())
}

const neighbourSocket = 3

// rdmaHonest transfers data between two queue pairs while the other program attacks.
func rdmaHonest() (err error) {
	mem, err := mapAt(honestAt, honestEnds*honestStep)
	if err != nil {
		return err
	}
	secret := make([]byte, 32)
	crand.Read(secret)
	copy(mem, bytes.Repeat(secret, len(mem)/len(secret)))
	var ends [honestEnds]*rdmaEnd
	n := honestNumbers{PID: uint32(os.Getpid()), Foreign: map[abi.Kind][]uint64{}}
	is := func(k abi.Kind, v ...uint32) {
		for _, v := range v {
			n.Foreign[k] = append(n.Foreign[k], uint64(v))
		}
	}
	address := func(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
	for i := range ends {
		at := uint64(honestAt + i*honestStep)
		if ends[i], err = newRDMAEnd(0, at, honestLen, honestSkip); err != nil {
			return err
		}
		e := ends[i]
		n.STags = append(n.STags, e.stag)
		n.Offsets = append(n.Offsets, e.sqKey, e.rqKey, e.cqKey)
		is(abi.Domain, e.pd)
		is(abi.Region, e.mr)
		is(abi.CQ, e.cqHandle)
		is(abi.QP, e.handle)
		is(abi.QPNumber, e.qp)
		for _, k := range []abi.Kind{abi.Reply, abi.Value} {
			n.Foreign[k] = append(n.Foreign[k], at, at+honestLen/2, address(e.scratch), address(e.sq), address(e.cq))
		}
		n.Foreign[abi.Start] = append(n.Foreign[abi.Start], at, address(e.scratch))
	}
	idle := ends[2]
	var srq uint32
	for i := range honestSkip + 1 {
		if err := idle.command(abi.CreateSRQ, 32, idle.at(0), uint64(1), idle.pd, uint32(8), uint32(1), uint32(0)); err != nil {
			return fmt.Errorf("create_srq: %w", err)
		}
		if srq = idle.word(0); i < honestSkip {
			if err := idle.command(abi.DestroySRQ, 4, idle.at(0), srq, uint32(0)); err != nil {
				return fmt.Errorf("destroy_srq: %w", err)
			}
		}
	}
	is(abi.SRQ, srq)
	if err := idle.command(abi.CreateCompChannel, 4, idle.at(0)); err != nil {
		return fmt.Errorf("create_comp_channel: %w", err)
	}
	if err := errors.Join(unix.Dup3(int(idle.word(0)), honestChannel, unix.O_CLOEXEC), unix.Dup3(idle.cm, honestCM, unix.O_CLOEXEC)); err != nil {
		return err
	}
	is(abi.Channel, honestChannel)
	is(abi.CMFile, honestCM)
	a, b := ends[0], ends[1]
	ids, err := connectEnds(a, b)
	if err != nil {
		return err
	}
	is(abi.Identifier, ids...)
	msg, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if _, err := unix.Write(neighbourSocket, msg); err != nil {
		return err
	}

	transfers := 0
	for done := false; !done || transfers < fewTransfers; transfers++ {
		p := []unix.PollFd{{Fd: neighbourSocket, Events: unix.POLLIN}}
		if _, err := sock.Poll(p, 5); err == nil && p[0].Revents != 0 {
			done = true // one more round follows
		}
		for i := range movingLen {
			mem[i] = byte(transfers + i)
		}
		if err := a.writes(2, movingLen/4, a.stag, honestAt, b.stag, honestAt+honestStep); err != nil {
			return fmt.Errorf("honest: doorbell: %w", err)
		}
		got, err := a.completions(2)
		if err != nil || got[0] != abi.WCSuccess || got[1] != abi.WCSuccess {
			return fmt.Errorf("honest: transfer %d: %v, %w", transfers, got, err)
		}
		to := mem[honestStep:]
		for end := time.Now().Add(testkit.Patience); !bytes.Equal(to[:movingLen/4], mem[:movingLen/4]) ||
			!bytes.Equal(to[movingLen/4:movingLen/2], mem[movingLen/2:][:movingLen/4]); {
			if time.Now().After(end) {
				return fmt.Errorf("honest: transfer %d has not come", transfers)
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	if _, err := expect(neighbourSocket, 'D'); err != nil {
		return fmt.Errorf("honest: %w", err)
	}
	for i := range mem {
		if i%honestStep >= movingLen && mem[i] != secret[i%len(secret)] {
			return fmt.Errorf("honest: byte %#x was written", honestAt+i)
		}
	}
	// The attack has affected no object: no event is pending, and all objects can be destroyed.
	for i, e := range ends {
		if err := e.cmCommand(abi.CMGetEvent, abi.EventLen, le.AppendUint64(nil, e.rdmaAbuser.at(0))); err != unix.EAGAIN {
			return fmt.Errorf("honest: end %d has an event: %w", i, err)
		}
		if err := e.command(abi.QueryQP, 128, e.rdmaAbuser.at(0), e.handle, uint32(1)); err != nil {
			return fmt.Errorf("honest: query_qp: %w", err)
		}
		if s, want := abi.State(e.scratch[108]), []abi.State{abi.RTS, abi.RTS, abi.Init}[i]; s != want {
			return fmt.Errorf("honest: queue pair %d is in state %v", i, s)
		}
	}
	if err := idle.command(abi.DestroySRQ, 4, idle.at(0), srq, uint32(0)); err != nil {
		return fmt.Errorf("honest: destroy_srq: %w", err)
	}
	for i, e := range ends {
		if err := e.endObjects(); err != nil {
			return fmt.Errorf("honest: end %d: %w", i, err)
		}
	}
	fmt.Printf("honest: %d transfers\n", transfers)
	_, err = unix.Write(neighbourSocket, append([]byte("S"), secret...))
	return err
}

// connectEnds connects b with a, and returns the numbers of the identifiers.
func connectEnds(a, b *rdmaEnd) (ids []uint32, err error) {
	listener, err := b.listen()
	if err != nil {
		return nil, err
	}
	a.port = b.port
	caller, err := a.dial(a.qp)
	if err != nil {
		return nil, err
	}
	if err := b.accept(b.qp); err != nil {
		return nil, err
	}
	if _, err := a.event(abi.EvEstablished); err != nil {
		return nil, err
	}
	called, err := b.event(abi.EvEstablished)
	return []uint32{listener, caller, called}, err
}

// rdmaHostileNeighbour attacks with the numbers of the other program.
func rdmaHostileNeighbour(commands bool) error {
	msg := make([]byte, 64<<10)
	k, err := unix.Read(neighbourSocket, msg)
	if err != nil {
		return err
	}
	var n honestNumbers
	if err := json.Unmarshal(msg[:k], &n); err != nil {
		return err
	}
	h := &rdmaFields{foreign: n.Foreign}
	var bad error
	if commands {
		bad = h.allCommands()
	}
	seen := bytes.Clone(h.scratch)
	mem, err := unix.Mmap(-1, 0, 2*honestLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	requests := 0
	for i := range 2 * len(hostileRequests) {
		over := 1 + i/len(hostileRequests) // memory of a connected queue pair, and of one that is not connected
		e, err := hostileRequest(mem, &n, over, i%len(hostileRequests))
		seen = append(seen, e...)
		if err != nil {
			bad = errors.Join(bad, fmt.Errorf("%s: %w", hostileRequests[i%len(hostileRequests)].name, err))
			break
		}
		requests++
	}
	bad = errors.Join(bad, hostileNetlink(n.PID))
	if _, err := unix.Write(neighbourSocket, []byte("D")); err != nil {
		return err
	}
	secret, err := expect(neighbourSocket, 'S')
	if err != nil {
		return errors.Join(bad, err)
	}
	for _, b := range [][]byte{seen, mem} {
		// Look for parts of the secret that are too long to occur by chance.
		for i := range secret[:len(secret)-8] {
			if at := bytes.Index(b, secret[i:i+8]); at >= 0 {
				bad = errors.Join(bad, fmt.Errorf("hostile: the other program's memory was read, to byte %d", at))
				break
			}
		}
	}
	if bad == nil {
		fmt.Printf("hostile: %d commands, %d requests\n", h.commands, requests)
	}
	return bad
}

// hostileRequests are requests that name memory of the other program by its key, its address, or
// both, on the local or the remote side.
var hostileRequests = []struct {
	name                           string
	op                             abi.WROp
	lkey, laddr, rkey, raddr, recv bool
}{
	{name: "Write of its memory", op: abi.WROpWrite, lkey: true, laddr: true},
	{name: "Write of its addresses", op: abi.WROpWrite, laddr: true},
	{name: "Write by its key", op: abi.WROpWrite, lkey: true},
	{name: "Write to its memory", op: abi.WROpWrite, rkey: true, raddr: true},
	{name: "Write to its addresses", op: abi.WROpWrite, raddr: true},
	{name: "Write to its key", op: abi.WROpWrite, rkey: true},
	{name: "Read of its memory", op: abi.WROpRead, rkey: true, raddr: true},
	{name: "Read of its addresses", op: abi.WROpRead, raddr: true},
	{name: "Read into its memory", op: abi.WROpRead, lkey: true, laddr: true},
	{name: "Send of its memory", op: abi.WROpSend, lkey: true, laddr: true},
	{name: "Send into its memory", op: abi.WROpSend, recv: true},
}

// hostileRequest connects two queue pairs of this program and posts request i. The request must end
// the connection. hostileRequest returns the contents of the rings and answers afterwards, for the
// caller's search for the secret.
func hostileRequest(mem []byte, n *honestNumbers, over, i int) (seen []byte, err error) {
	r := hostileRequests[i]
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	a, err := newRDMAEnd(0, at, honestLen, 0)
	if err != nil {
		return nil, err
	}
	defer a.close()
	b, err := newRDMAEnd(0, at+honestLen, honestLen, 0)
	if err != nil {
		return nil, err
	}
	defer b.close()
	if _, err := connectEnds(a, b); err != nil {
		return nil, err
	}
	rq, err := unix.Mmap(b.uverbs, b.rqKey, endEntries*abi.RQELen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(rq)
	theirs := uint64(honestAt + over*honestStep + 2*movingLen)
	pick := func(is bool, key *uint32) {
		if is {
			*key = n.STags[over]
		}
	}
	lkey, laddr, rkey, raddr, recvKey, recvAddr := a.stag, at, b.stag, at+honestLen, b.stag, at+honestLen
	pick(r.lkey, &lkey)
	pick(r.rkey, &rkey)
	pick(r.recv, &recvKey)
	if r.laddr {
		laddr = theirs
	}
	if r.raddr {
		raddr = theirs
	}
	if r.recv {
		recvAddr = theirs
	}
	recv := abi.Body(rq[:abi.RQELen])
	recv.Put64(16, recvAddr)
	recv.Put32(24, 100)
	recv.Put32(28, recvKey)
	atomic.StoreUint32(wordAt(recv, abi.FlagsAt), abi.Valid|1<<16)
	// Post a correct request first, so that the device reads the correct and the hostile request
	// together.
	a.post(abi.WROpWrite, 10, a.stag, at, b.stag, at+honestLen+1000)
	a.post(r.op, 100, lkey, laddr, rkey, raddr)
	if err := a.ring(); err != nil {
		return nil, fmt.Errorf("doorbell: %w", err)
	}
	if _, err := a.event(abi.EvDisconnected); err != nil {
		return nil, fmt.Errorf("it does not end the connection: %w", err)
	}
	got, err := a.completions(2)
	if err != nil {
		return nil, err
	}
	if !r.rkey && !r.raddr && !r.recv && got[1] == abi.WCSuccess {
		return nil, errors.New("it is done")
	}
	for _, m := range [][]byte{a.scratch, b.scratch, a.sq, a.cq, b.cq} {
		seen = append(seen, m...)
	}
	// Write and read at the offsets of the other program's rings. In this program's own file, the
	// offsets must not select the other program's rings.
	for _, key := range n.Offsets {
		if _, err := unix.Pwrite(a.uverbs, bytes.Repeat([]byte{0xff}, 4096), key); err != nil {
			return seen, err
		}
		b := make([]byte, 4096)
		if _, err := unix.Pread(a.uverbs, b, key); err != nil {
			return seen, err
		}
		seen = append(seen, b...)
	}
	return seen, nil
}

// hostileNetlink asks for devices in a netlink message with the port of the other program's
// process. The answer must come to this program's socket.
func hostileNetlink(pid uint32) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := le.AppendUint32(nil, 16)
	b = le.AppendUint16(le.AppendUint16(b, 0x1401), unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = le.AppendUint32(le.AppendUint32(b, 7), pid)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	got := make([]byte, 4096)
	k, _, err := unix.Recvfrom(fd, got, unix.MSG_DONTWAIT)
	if err != nil || !bytes.Contains(got[:k], []byte("siw0")) {
		return fmt.Errorf("netlink: the answer is %q, %w", got[:max(k, 0)], err)
	}
	return nil
}

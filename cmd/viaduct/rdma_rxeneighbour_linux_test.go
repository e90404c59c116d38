//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/sock"
)

// TestRXENeighbour is TestRDMANeighbour for a RoCE device, whose programs can also name the other
// program's queue pairs as peers.
func TestRXENeighbour(t *testing.T) {
	lengthy(t, "6 s")
	t.Parallel()
	r := goodLong(t, "run", "--rdma", "--device", "rxe0", "--", "env", calm, asRDMANeighbour+"=both rxe", os.Args[0])
	var transfers, commands, requests int
	for line := range strings.Lines(r.stdout) {
		fmt.Sscanf(line, "honest: %d transfers", &transfers)
		fmt.Sscanf(line, "hostile: %d commands, %d requests", &commands, &requests)
	}
	if transfers < fewTransfers || commands < 150 || requests < 140 {
		t.Errorf("%d transfers, %d commands, %d requests: too few\n%s", transfers, commands, requests, r.stdout)
	}
	t.Log(strings.TrimSpace(r.stdout))
}

// rxeHonest transfers data between two queue pairs while the other program attacks.
func rxeHonest() error {
	mem, err := mapAt(honestAt, honestEnds*honestStep)
	if err != nil {
		return err
	}
	secret := make([]byte, 32)
	crand.Read(secret)
	copy(mem, bytes.Repeat(secret, len(mem)/len(secret)))
	var ends [honestEnds]*rxeEnd
	n := honestNumbers{PID: uint32(os.Getpid()), Foreign: map[abi.Kind][]uint64{}}
	is := func(k abi.Kind, v ...uint64) { n.Foreign[k] = append(n.Foreign[k], v...) }
	for i := range ends {
		at := uint64(honestAt + i*honestStep)
		e, err := newRXEEnd(at, honestLen, honestSkip)
		if err != nil {
			return err
		}
		ends[i] = e
		n.STags, n.Offsets = append(n.STags, e.key), append(n.Offsets, e.keys...)
		n.QPs = append(n.QPs, e.qpn)
		is(abi.Domain, uint64(e.pd))
		is(abi.Region, uint64(e.mr))
		is(abi.CQ, uint64(e.cqHandle))
		is(abi.QP, uint64(e.handle))
		is(abi.Start, at)
		is(abi.Reply, at, uint64(uintptr(unsafe.Pointer(&e.sq[0]))))
	}
	a, b := ends[0], ends[1]
	if err := errors.Join(a.connect(b.qpn), b.connect(a.qpn), ends[2].connect(a.qpn)); err != nil {
		return fmt.Errorf("honest: %w", err)
	}
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
		const part = 512 // short enough that the device executes both requests together
		if err := a.post(rxeRequest{n: part, addr: honestAt, key: a.key, raddr: honestAt + honestStep, rkey: b.key},
			rxeRequest{n: part, addr: honestAt + 2*part, key: a.key, raddr: honestAt + honestStep + 2*part, rkey: b.key}); err != nil {
			return fmt.Errorf("honest: doorbell: %w", err)
		}
		got, err := a.completions(2)
		if err != nil || got[0] != 0 || got[1] != 0 {
			return fmt.Errorf("honest: transfer %d: %v, %w", transfers, got, err)
		}
		to := mem[honestStep:]
		if !bytes.Equal(to[:part], mem[:part]) || !bytes.Equal(to[2*part:3*part], mem[2*part:3*part]) {
			return fmt.Errorf("honest: transfer %d has brought other bytes", transfers)
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
	for i, e := range ends {
		if s, err := e.state(); err != nil || s != abi.RTS {
			return fmt.Errorf("honest: queue pair %d is in state %v, %w", i, s, err)
		}
		if err := e.endObjects(); err != nil {
			return fmt.Errorf("honest: end %d: %w", i, err)
		}
	}
	fmt.Printf("honest: %d transfers\n", transfers)
	_, err = unix.Write(neighbourSocket, append([]byte("S"), secret...))
	return err
}

// rxeHostileNeighbour attacks with the numbers of the other program.
func rxeHostileNeighbour() error {
	msg := make([]byte, 64<<10)
	k, err := unix.Read(neighbourSocket, msg)
	if err != nil {
		return err
	}
	var n honestNumbers
	if err := json.Unmarshal(msg[:k], &n); err != nil {
		return err
	}
	commands, bad := rxeForeignCommands(&n)
	mem, err := unix.Mmap(-1, 0, honestLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	e, err := newRXEEnd(at, len(mem), 0)
	if err != nil {
		return err
	}
	requests := 0
	for over := range honestEnds {
		for _, r := range rxeHostileRequests(e.qpn, at, e.key, &n, over) {
			if err := r.try(e, at); err != nil {
				bad = errors.Join(bad, fmt.Errorf("%s, end %d: %w", r.name, over, err))
			}
			requests++
		}
	}
	var seen []byte
	for _, key := range n.Offsets { // these must not select the other program's memory
		b := make([]byte, 4096)
		if _, err := unix.Pread(e.uverbs, b, key); err != nil {
			return err
		}
		seen = append(seen, b...)
	}
	if _, err := unix.Write(neighbourSocket, []byte("D")); err != nil {
		return err
	}
	secret, err := expect(neighbourSocket, 'S')
	if err != nil {
		return errors.Join(bad, err)
	}
	for _, b := range [][]byte{seen, mem, e.scratch, e.sq, e.rq, e.cq} {
		for i := range secret[:len(secret)-8] {
			if bytes.Contains(b, secret[i:i+8]) {
				bad = errors.Join(bad, errors.New("hostile: the other program's memory was read"))
				break
			}
		}
	}
	if bad == nil {
		fmt.Printf("hostile: %d commands, %d requests\n", commands, requests)
	}
	return bad
}

// rxeForeignCommands sends each command with the other program's numbers in each field. All of
// these commands must be refused.
func rxeForeignCommands(n *honestNumbers) (commands int, bad error) {
	h := &rdmaFields{}
	var err error
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return 0, err
	}
	refused := []abi.Kind{abi.Domain, abi.Region, abi.CQ, abi.QP, abi.Start, abi.Reply}
	for _, c := range slices.Concat(abi.Commands(), abi.RXECommands()) {
		if err := h.setUp(); err != nil {
			return commands, err
		}
		for _, f := range c.Fields() {
			if !slices.Contains(refused, f.Kind) || c == abi.PostSend && f.Kind == abi.Reply { // no response
				continue
			}
			for _, v := range n.Foreign[f.Kind] {
				b := h.body(c)
				put(b, f, v)
				if err := h.send(c, b, room(c), h.at(0)); err == nil || errors.Is(err, errSupervisorGone) {
					bad = errors.Join(bad, fmt.Errorf("%v with %s %#x of the other program: %w", c, f.Name, v, err))
				}
				commands++
			}
		}
		unix.Close(h.uverbs)
	}
	return commands, bad
}

// An rxeAttack is a request that must fail.
type rxeAttack struct {
	name string
	to   uint32 // queue pair number of the peer
	rxeRequest
	receive uint64 // address in the other program's memory for a receive, or 0
	recvKey uint32
}

// rxeHostileRequests returns requests that name memory of the other program by its key, its address
// or both, locally or remotely, or the other program's queue pairs.
func rxeHostileRequests(self uint32, at uint64, key uint32, n *honestNumbers, over int) (all []rxeAttack) {
	theirs, theirKey := uint64(honestAt+over*honestStep+2*movingLen), n.STags[over]
	for _, op := range []uint32{rxeWrite, rxeSend, rxeRead, rxeCompareSwap, rxeFetchAdd, rxeSendInv, rxeAtomicWrite} {
		mine := rxeRequest{op: op, n: 8, addr: at, key: key, raddr: at + 64, rkey: key}
		if op != rxeAtomicWrite { // the payload of an atomic write is in the entry itself
			for i := range 3 {
				r := mine
				if i != 1 {
					r.addr = theirs
				}
				if i != 2 {
					r.key = theirKey
				}
				all = append(all, rxeAttack{name: fmt.Sprintf("operation %d, local %d", op, i),
					to: self, rxeRequest: r})
			}
		}
		if op == rxeSend || op == rxeSendInv {
			all = append(all, rxeAttack{name: "receive into its memory", to: self, rxeRequest: mine,
				receive: theirs, recvKey: theirKey},
				rxeAttack{name: "receive into its addresses", to: self, rxeRequest: mine,
					receive: theirs, recvKey: key},
				rxeAttack{name: "receive by its key", to: self, rxeRequest: mine, receive: at, recvKey: theirKey})
		} else {
			for i := range 3 {
				r := mine
				if i != 1 {
					r.raddr = theirs
				}
				if i != 2 {
					r.rkey = theirKey
				}
				all = append(all, rxeAttack{name: fmt.Sprintf("operation %d, remote %d", op, i),
					to: self, rxeRequest: r})
			}
		}
		// Also attack the other program's queue pair, with valid local memory, and the other
		// program's address and key.
		mine.raddr, mine.rkey = theirs, theirKey
		all = append(all, rxeAttack{name: fmt.Sprintf("operation %d to its queue pair", op),
			to: n.QPs[over], rxeRequest: mine})
	}
	return append(all,
		rxeAttack{name: "invalidate of its key", to: self,
			rxeRequest: rxeRequest{op: rxeInvalidate, invalidate: theirKey}},
		rxeAttack{name: "bind of its region", to: self,
			rxeRequest: rxeRequest{op: rxeBind, n: 8, raddr: theirs, key: theirKey, rkey: theirKey}})
}

// try posts the request, which must fail, after a valid request, so that the device reads both
// together.
func (r *rxeAttack) try(e *rxeEnd, at uint64) error {
	if err := e.connect(r.to); err != nil {
		return err
	}
	if r.recvKey != 0 {
		e.receive(r.receive, 64, r.recvKey)
	}
	want, rs := 1, []rxeRequest{r.rxeRequest}
	if r.to == e.qpn {
		want, rs = 2, []rxeRequest{{n: 8, addr: at, key: e.key, raddr: at + 128, rkey: e.key}, r.rxeRequest}
	}
	if r.recvKey != 0 {
		want++ // one more completion, for the receive
	}
	if err := e.post(rs...); err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	got, err := e.completions(want)
	if err != nil {
		return err
	}
	if want > 1 && got[0] != 0 {
		return fmt.Errorf("the request before it: status %d", got[0])
	}
	if got[want-1] == 0 {
		return errors.New("it is done")
	}
	return nil
}

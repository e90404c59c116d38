package vitcp

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// Each case is an unacceptable message, in one segment or in two. It causes an asynchronous error,
// or error bits in a receive descriptor. At the reliable levels the connection ends, and at
// Reliable Reception the message is reported to the peer first. At Unreliable Delivery nothing else
// happens. The local memory does not change. [VIT-2.2.2.2.2-6] [VIT-3.1-ACK-6] [VIT-3.1-ERR-5]
// [V-13] [V-14] [V-19] [V-20] [V-29] [V-30] [V-42] [V-44] [VIA-4.6-4] [VIA-4.6-7..9] [VIA-4.6-11]
// [VIA-4.6-18]
func TestInboundFaults(t *testing.T) {
	const (
		recvOK   = 1 << iota // a receive descriptor of 100 bytes is posted
		recvBad              // a receive descriptor with an invalid handle is posted
		recvThin             // a receive descriptor of 4 bytes is posted
		imm                  // the message has immediate data; of two segments only the last has it
		void                 // the last segment has the Transmit Error flag
		foreign              // the RDMA Write has an invalid handle
		short                // the RDMA Write has a range of 4 bytes
		long                 // the message has 101 bytes and the MTU is 100
	)
	send, write := vitcpwire.Send, vitcpwire.Write
	for _, v := range []struct {
		name  string
		typ   vitcpwire.Type
		with  int
		async vi.ErrorCode // expected asynchronous error; 0: none
		op    vi.Control   // operation that the asynchronous error names
		bits  vi.Status    // expected status of the receive descriptor; 0 means that it is not used
		code  uint8        // error code that the peer gets at Reliable Reception
	}{
		{"send, no descriptor", send, 0, vi.ErrorRecvQEmpty, vi.OpSendReceive, 0, vitcpwire.DescriptorError},
		{"send, bad descriptor", send, recvBad, 0, 0, vi.StatusProtectionError, vitcpwire.DescriptorError},
		{"send, thin descriptor", send, recvThin, 0, 0, vi.StatusLengthError, vitcpwire.DescriptorError},
		{"send, beyond the MTU", send, recvOK | long, 0, 0, vi.StatusLengthError, vitcpwire.DescriptorError},
		{"send, void", send, recvOK | void, 0, 0, vi.StatusPartialError, vitcpwire.DescriptorError},
		{"write, foreign", write, foreign, vi.ErrorRDMAWProt, vi.OpRDMAWrite, 0, vitcpwire.ProtectionError},
		{"write, beyond the MTU", write, long, vi.ErrorRDMAWAbort, vi.OpRDMAWrite, 0, vitcpwire.DescriptorError},
		{"write, void", write, void, vi.ErrorRDMAWAbort, vi.OpRDMAWrite, 0, vitcpwire.DescriptorError},
		{"immediate, no descriptor", write, imm, vi.ErrorRecvQEmpty, vi.OpRDMAWrite, 0, vitcpwire.DescriptorError},
		{"immediate, bad descriptor", write, imm | recvBad, 0, 0, vi.StatusProtectionError, vitcpwire.DescriptorError},
		{"immediate, foreign", write, imm | foreign | recvOK, 0, 0, vi.StatusRDMAProtection, vitcpwire.ProtectionError},
		{"immediate, foreign, no descriptor", write, imm | foreign, vi.ErrorRecvQEmpty, vi.OpRDMAWrite, 0, vitcpwire.DescriptorError},
		{"immediate, beyond the MTU", write, imm | long | recvOK, 0, 0, vi.StatusLengthError, vitcpwire.DescriptorError},
		{"immediate, void", write, imm | void | recvOK, 0, 0, vi.StatusPartialError, vitcpwire.DescriptorError},
	} {
		for _, level := range levels {
			for _, segments := range []int{1, 2} {
				if segments == 2 && level != vi.UnreliableDelivery && v.with&imm != 0 && v.with&(foreign|long) != 0 {
					continue // the first segment, with which the fault is found, does not show whether there is immediate data
				}
				t.Run(fmt.Sprintf("%s/%v/%d", v.name, level, segments), func(t *testing.T) {
					has := func(x int) bool { return v.with&x != 0 }
					attrs := withLevel(reliableAll, level)
					attrs.FlowControl = false
					var d *vi.Descriptor
					buf := make([]byte, 100)
					var r *vi.Region
					s := serveProbe(t, sessionOpts{attrs: attrs, ce: func(ce *vitcpwire.CE) { ce.MTU = 100 }, before: func(s *session) {
						var err error
						r, err = s.n.RegisterMem(buf, allRights)
						must(t, err)
						switch {
						case has(recvOK):
							d = vi.NewRecv(segment(r, 0, 100))
						case has(recvBad):
							d = vi.NewRecv(vi.Segment{Address: r.Address(), Handle: r.Handle() + 1, Length: 100})
						case has(recvThin):
							d = vi.NewRecv(segment(r, 0, 4))
						}
						if d != nil {
							must(t, s.v.PostRecv(d))
						}
					}})
					payload := bytes.Repeat([]byte{0xee}, 10)
					if has(long) {
						payload = bytes.Repeat([]byte{0xee}, 101)
					}
					var rdma *vitcpwire.RDMA
					if v.typ == write {
						rdma = &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()),
							Length: uint32(len(payload))}
						if has(foreign) {
							rdma.Handle++
						}
					}
					s.last = s.last.Add(1)
					h := vitcpwire.Header{Type: v.typ, Number: s.last}
					if segments == 2 {
						s.send(h, rdma, payload[:3])
						h.Offset, payload = 3, payload[3:]
					}
					h.Flags = vitcpwire.EndOfMessage
					if has(imm) {
						h.Flags |= vitcpwire.ImmediateValid
					}
					if has(void) {
						h.Flags |= vitcpwire.TransmitError
					}
					s.send(h, rdma, payload)

					var codes []vi.ErrorDescriptor
					want := 0
					if v.async != 0 || level != vi.UnreliableDelivery {
						want = 1
						if v.async != 0 && level != vi.UnreliableDelivery {
							want = 2
						}
					}
					for range want {
						select {
						case e := <-s.n.async:
							codes = append(codes, e)
						case <-time.After(patience):
							t.Fatalf("asynchronous errors %v", codes)
						}
					}
					if v.async != 0 && (codes[0].Code != v.async || codes[0].OpCode != v.op) {
						t.Errorf("asynchronous error %v of %v, want %v of %v", codes[0].Code,
							codes[0].OpCode, v.async, v.op)
					}
					if v.bits != 0 {
						got, _ := waitRecv(t, s.v)
						st := vi.StatusDone | vi.StatusOpReceive | v.bits
						if v.typ == write {
							st = vi.StatusDone | vi.StatusOpRemoteRDMAWrite | v.bits
						}
						if got != d || d.Status() != st || d.ImmediateData != 0 {
							t.Errorf("status %v, want %v", d.Status(), st)
						}
					}
					if level == vi.UnreliableDelivery { // the message was dropped, and the connection continues
						n := s.message(write, &vitcpwire.RDMA{}, nil)
						link := s.v.Link().(*link)
						for end := time.Now().Add(patience); link.acks.last.Load() != uint32(n); time.Sleep(time.Millisecond) {
							if time.Now().After(end) {
								t.Fatal("what came behind was not taken")
							}
						}
						if s.v.State() != vi.Connected {
							t.Errorf("state %v", s.v.State())
						}
						if st := s.n.p.Stats(); st.ReceivedMessages != 1 || st.DroppedMessages != 1 {
							t.Errorf("%d messages received, %d dropped", st.ReceivedMessages, st.DroppedMessages)
						}
					} else {
						var told []seg
						for _, x := range s.wantEnd(io.EOF) {
							if x.h.Error != 0 {
								told = append(told, x)
							}
						}
						if level != vi.ReliableReception {
							if len(told) > 0 {
								t.Errorf("told %v", told[0].h)
							}
						} else if len(told) != 1 || told[0].h.Ack != h.Number || told[0].h.Error != vitcpwire.MakeRemoteError(v.code, 0) {
							t.Errorf("told %v, want code %d of message %d", told, v.code, h.Number)
						}
						waitState(t, s.v, vi.Error)
						if st := s.n.p.Stats(); st.ReceivedMessages != 0 || st.DroppedMessages != 1 ||
							st.ProtocolErrors != 0 {
							t.Errorf("stats %+v", st)
						}
					}
					s.n.noAsync(t)
					if n := bytes.Count(buf, []byte{0xee}); n > 10 ||
						n > 0 && (v.with&(recvBad|foreign) != 0 && v.with&imm == 0 ||
							v.typ == write && has(foreign|long)) {
						t.Errorf("%d bytes were written", n)
					}
				})
			}
		}
	}
}

// If the region is deregistered between the segments of a Write, the Write ends like a Write to an
// invalid region: no further byte is placed, and the error is reported to the peer. [V-42]
func TestWriteWithdrawn(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll})
	r, buf := register(t, s.n, 10, allRights)
	rdma := &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 10}
	s.last++
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last}, rdma, []byte("01234"))
	for end := time.Now().Add(patience); s.v.Link().(*link).count.receivedBytes.Load() < 5; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first segment was not taken")
		}
	}
	must(t, s.n.DeregisterMem(r))
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last, Offset: 5, Flags: vitcpwire.EndOfMessage},
		rdma, []byte("56789"))
	var told []seg
	for _, x := range s.wantEnd(io.EOF) {
		if x.h.Error != 0 {
			told = append(told, x)
		}
	}
	if len(told) != 1 || told[0].h.Ack != s.last ||
		told[0].h.Error != vitcpwire.MakeRemoteError(vitcpwire.ProtectionError, 0) {
		t.Errorf("told %v", told)
	}
	s.n.expectAsync(t, vi.ErrorRDMAWProt, vi.ErrorConnLost)
	if string(buf) != "01234\x00\x00\x00\x00\x00" {
		t.Errorf("memory %q", buf)
	}
}

// A Write needs the region only until the last byte is placed. If the region is deregistered later,
// the Write succeeds, even if a segment without payload follows. [V-42]
func TestWriteOutlivesItsRegion(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll})
	r, buf := register(t, s.n, 5, allRights)
	rdma := &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 5}
	s.last++
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last}, rdma, []byte("01234"))
	s.taken()
	must(t, s.n.DeregisterMem(r))
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last, Offset: 5, Flags: vitcpwire.EndOfMessage}, rdma, nil)
	if s.wantAck(s.last); string(buf) != "01234" || s.v.State() != vi.Connected {
		t.Errorf("memory %q, state %v", buf, s.v.State())
	}
	s.n.noAsync(t)
}

// The memory of an RDMA Read is deregistered before the response arrives, in one segment or in two.
// The Read fails and the connection breaks. The bytes do not count as read. [VIA-4.6-15]
// [VIA-4.5-5]
func TestReadWithdrawn(t *testing.T) {
	for _, level := range levels[1:] {
		for _, first := range []int{10, 4} { // bytes that arrive before the region is deregistered
			s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, level)})
			r, buf := register(t, s.n, 10, vi.MemAttributes{})
			d := vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 10))
			must(t, s.v.PostSend(d))
			q := s.want(vitcpwire.ReadRequest)
			h := vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: q.h.Number}
			rest := []byte("0123456789")
			if first < 10 {
				s.send(h, &q.rdma, rest[:first])
				s.taken()
				h.Offset, rest = uint32(first), rest[first:]
			}
			must(t, s.n.DeregisterMem(r))
			h.Flags = vitcpwire.EndOfMessage
			s.send(h, &q.rdma, rest)
			if got, _ := waitSend(t, s.v); got != d ||
				d.Status() != vi.StatusDone|vi.StatusOpRDMARead|vi.StatusProtectionError {
				t.Errorf("%v: status %v", level, d.Status())
			}
			s.wantEnd(io.EOF)
			waitState(t, s.v, vi.Error)
			s.n.expectAsync(t, vi.ErrorConnLost)
			if buf[9] != 0 {
				t.Errorf("%v: memory %q", level, buf)
			}
		}
	}
}

package iwarp

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"viaduct/internal/frameio"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A sinkConn accepts all writes. Its reads block until Close, and then return io.EOF.
type sinkConn struct {
	closed chan struct{}
	once   sync.Once
}

func (c *sinkConn) Read([]byte) (int, error)         { <-c.closed; return 0, io.EOF }
func (c *sinkConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *sinkConn) Close() error                     { c.once.Do(func() { close(c.closed) }); return nil }
func (c *sinkConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *sinkConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *sinkConn) SetDeadline(time.Time) error      { return nil }
func (c *sinkConn) SetReadDeadline(time.Time) error  { return nil }
func (c *sinkConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzStream feeds an established stream with raw bytes, or with ULPDUs in valid FPDUs. In ULPDUs,
// the STags 0, 1 and 2 stand for a writable region, a readable region, and a window. Nothing may
// panic, no memory without the right to write may change, and an ended stream must report a reason.
func FuzzStream(f *testing.F) {
	pack := func(us ...[]byte) (b []byte) {
		for _, u := range us {
			b = binary.BigEndian.AppendUint16(b, uint16(len(u)))
			b = append(b, u...)
		}
		return b
	}
	at := rdmap.AtomicRequest{Op: rdmap.CmpSwap, STag: 0, TO: 8}
	for _, b := range [][]byte{
		pack(tag(rdmap.Write, 0, 4, true, []byte("data"))),
		pack(tag(rdmap.Write, 2, 0, false, []byte("data")), tag(rdmap.Write, 2, 15, true, []byte("xy"))),
		pack(seg(rdmap.Send, 0, 1, 0, false, []byte("ab")), seg(rdmap.Send, 0, 1, 2, true, []byte("cd")),
			seg(rdmap.SendSE, 0, 2, 0, true, nil)),
		pack(readReq(1, rdmap.ReadRequest{Size: 16, SourceSTag: 1}), readReq(2, rdmap.ReadRequest{})),
		pack(rdmap.SendInvalidate.UntaggedHeader(1, 0, true, 2).Append(nil)),
		pack(seg(rdmap.Immediate, 0, 1, 0, true, make([]byte, 8)),
			seg(rdmap.AtomicRequestOp, 1, 1, 0, true, at.Append(nil))),
		pack(seg(rdmap.TerminateOp, 2, 1, 0, true, []byte{0x20, 2, 0, 0})),
		pack(tag(rdmap.ReadResponse, 9, 0, true, []byte("answer"))),
	} {
		f.Add(b, true, false, uint8(7))
		f.Add(b, true, true, uint8(200))
		var e mpa.Encoder
		f.Add(e.Append(nil, b), false, false, uint8(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, framed, crc bool, cut uint8) {
		if len(in) > 1<<16 {
			return
		}
		fuzzStream(t, in, framed, crc, int(cut)+1)
	})
}

func fuzzStream(t *testing.T, in []byte, framed, crc bool, cut int) {
	q, err := newQueuePair(&Config{Atomic: true, Immediate: true, RecvDepth: 4, IRD: 3, ORD: 2})
	if err != nil {
		t.Fatal(err)
	}
	nc := &sinkConn{closed: make(chan struct{})}
	q.start(nc, mpa.Params{CRC: crc, IRD: 3, ORD: 2}, nil)
	q.begin(true, nil)
	defer func() { nc.Close(); q.Abort(); q.Close() }()

	const guard = 32
	mem := bytes.Repeat([]byte{0xaa}, 3*guard+2*16+guard)
	wr, _ := q.Register(mem[guard:guard+16], RemoteWrite|RemoteAtomic)
	rdMem := bytes.Repeat([]byte{0xbb}, 16)
	rd, _ := q.Register(rdMem, RemoteRead)
	base, _ := q.Register(mem, LocalOnly)
	win, _ := q.Bind(base, 2*guard+16, 16, RemoteWrite)
	recv := make([]byte, 8+guard)
	q.PostRecv(RecvWR{SG: []SGE{Buf(recv[:4]), Buf(recv[4:8])}})
	q.PostRecv(RecvWR{})
	q.Post(SendWR{Op: OpRead, SG: []SGE{Buf(make([]byte, 6))}})

	stream := in
	if framed {
		e := mpa.Encoder{CRC: crc}
		stream = nil
		for len(in) >= 2 {
			n := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
			u := bytes.Clone(in[2 : 2+n])
			in = in[2+n:]
			named(u, []uint32{wr.STag(), rd.STag(), win.STag()})
			stream = e.Append(stream, u)
		}
	}
	e := (*engine)(q)
	var buf []byte
	q.link.fc.Quiesce() // no other goroutine receives, because reads of the connection block
	for len(stream) > 0 {
		k := min(cut, len(stream))
		buf = append(buf, stream[:k]...)
		stream = stream[k:]
		n, direct, err := e.Receive(buf, true)
		if err != nil || n > len(buf) || direct < 0 {
			t.Fatalf("Receive: %d, %d, %v", n, direct, err)
		}
		buf = buf[n:]
		for direct > 0 {
			var p frameio.Plan
			e.Plan(&p)
			got := 0
			for _, b := range p.Frame {
				got += copy(b, stream[min(got, len(stream)):])
			}
			got = min(got, len(stream))
			stream = stream[got:]
			if _, direct, err = e.Landed(&p, got, 0); err != nil {
				t.Fatal(err)
			}
			if got == 0 {
				return
			}
		}
	}
	if q.life.Load().ended() && q.Err() == nil {
		t.Fatal("stream is dead without a reason")
	}
	nc.Close()
	q.Abort()
	q.Close() // waits, because an Atomic may still be in progress
	for i, b := range mem {
		in := i >= guard && i < guard+16 || i >= 2*guard+16 && i < 2*guard+32
		if !in && b != 0xaa {
			t.Fatalf("byte %d outside the grants was changed", i)
		}
	}
	if !bytes.Equal(rdMem, bytes.Repeat([]byte{0xbb}, 16)) {
		t.Fatal("a region that may only be read was changed")
	}
	if !bytes.Equal(recv[8:], make([]byte, guard)) {
		t.Fatal("bytes behind a receive were changed")
	}
}

// named replaces the STags in a ULPDU that are indexes of stags by the elements of stags.
func named(u []byte, stags []uint32) {
	put := func(b []byte) {
		if len(b) < 4 {
			return
		}
		if i := binary.BigEndian.Uint32(b); i < uint32(len(stags)) {
			binary.BigEndian.PutUint32(b, stags[i])
		}
	}
	if len(u) == 0 || len(u) < ddp.HeaderLen(u[0]) {
		return
	}
	_, op := rdmap.ParseControl(u[1])
	body := u[ddp.HeaderLen(u[0]):]
	switch {
	case ddp.IsTagged(u[0]):
		put(u[2:])
	case op.Invalidates():
		put(u[2:])
	case op == rdmap.ReadRequestOp && len(body) >= 20:
		put(body[16:])
	case op == rdmap.AtomicRequestOp && len(body) >= 12:
		put(body[8:])
	}
}

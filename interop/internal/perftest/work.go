package perftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"viaduct/iwarp"
)

// A worker is a role of a test on the data stream.
type worker interface {
	// region returns the memory accessible to the peer, or nil if there is none.
	region() *iwarp.MemoryRegion
	// work moves the messages, or does nothing if the peer moves them.
	work(context.Context, *Result) error
	// verify checks count and contents after the data stream has closed.
	verify(*Result) error
	close()
}

func (s *session) worker() (worker, error) {
	switch {
	case s.client && s.opt.Test == SendBW:
		return newSender(s)
	case s.client:
		return newMover(s)
	case s.opt.Test == SendBW:
		return newReceiver(s)
	}
	return newTarget(s)
}

// A mover is the client of Writes and Reads.
type mover struct {
	*session
	mem   []byte // Writes: the source buffer; Reads: a buffer for each request in flight
	image *image // what was read; nil for Writes
}

func newMover(s *session) (*mover, error) {
	m := &mover{session: s}
	if s.opt.Test == ReadBW {
		m.mem = make([]byte, s.opt.Depth*s.opt.Size)
		m.image = newImage(s.layout)
		return m, nil
	}
	m.mem = make([]byte, s.layout.span())
	fillRandom(m.mem)
	return m, nil
}

func (m *mover) region() *iwarp.MemoryRegion { return nil }
func (m *mover) close()                      {}

func (m *mover) buffer(i int) []byte {
	if m.opt.Test == ReadBW {
		return m.mem[i%m.opt.Depth*m.opt.Size:][:m.opt.Size]
	}
	return m.mem[m.layout.offset(i):][:m.opt.Size]
}

func (m *mover) work(ctx context.Context, res *Result) error {
	op := iwarp.OpWrite
	if m.opt.Test == ReadBW {
		op = iwarp.OpRead
	}
	begin := time.Now()
	for posted, done := 0, 0; done < m.opt.Count; done++ {
		for ; posted < m.opt.Count && posted-done < m.opt.Depth; posted++ {
			at := iwarp.RemoteAddr{STag: m.peer.rkey, TO: m.peer.vaddr + uint64(m.layout.offset(posted))}
			if err := m.data.Post(iwarp.SendWR{ID: uint64(posted), Op: op, SG: []iwarp.SGE{iwarp.Buf(m.buffer(posted))}, Remote: at}); err != nil {
				return why(m.data, err)
			}
		}
		c, err := m.data.SendCQ().Wait(ctx)
		if err != nil {
			return err
		}
		if c.Status != iwarp.StatusOK {
			return why(m.data, c.Err())
		}
		if op == iwarp.OpRead {
			if c.ID != uint64(done) || int(c.Len) != m.opt.Size {
				return fmt.Errorf("%w: Read %d of %d bytes, want %d of %d", ErrCount, c.ID, c.Len, done, m.opt.Size)
			}
			if m.opt.Verify {
				if err := m.image.add(done, m.buffer(done)); err != nil {
					return err
				}
				res.Verified++
			}
		}
	}
	if op == iwarp.OpWrite {
		if err := m.settle(ctx); err != nil {
			return err
		}
	}
	res.Elapsed = time.Since(begin)
	if op == iwarp.OpWrite && m.opt.Settle != nil {
		return m.opt.Settle(ctx)
	}
	return nil
}

// settle waits until TCP has acknowledged all Writes. It returns at once for a stream on an
// adapter, whose completions of Writes mean the same.
func (m *mover) settle(ctx context.Context) error {
	for {
		n, ok := unacknowledged(m.data)
		if !ok || n == 0 {
			return nil
		}
		select {
		case <-m.data.Ended():
			return why(m.data, iwarp.ErrClosed)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Microsecond):
		}
	}
}

func (m *mover) verify(*Result) error {
	if m.opt.Test == ReadBW && m.opt.Verify {
		return m.image.check()
	}
	return nil
}

// A target is the server of Writes and Reads: a target only provides memory.
type target struct {
	*session
	mr *iwarp.MemoryRegion
}

// untouched is the initial value of every byte in the memory of a target of Writes.
const untouched = 0x5a

func newTarget(s *session) (*target, error) {
	mem := make([]byte, s.layout.span())
	access := iwarp.RemoteRead
	if s.opt.Test == WriteBW {
		access = iwarp.RemoteWrite
		for i := range mem {
			mem[i] = untouched
		}
	} else {
		fillRandom(mem)
	}
	mr, err := s.data.Register(mem, access)
	if err != nil {
		return nil, err
	}
	return &target{s, mr}, nil
}

func (t *target) region() *iwarp.MemoryRegion         { return t.mr }
func (t *target) work(context.Context, *Result) error { return nil }
func (t *target) close()                              { t.mr.Close() }

func (t *target) verify(res *Result) error {
	mem := t.mr.Bytes()
	t.mr.Close() // no Write of the peer can follow
	st := t.data.Stats()
	got := st.PlacedBytes
	if t.opt.Test == ReadBW {
		got = st.ServedReadBytes
	}
	if got != res.Bytes() {
		return fmt.Errorf("%w: %d bytes, want %d messages of %d", ErrCount, got, res.Count, res.Size)
	}
	if t.opt.Test == ReadBW || !t.opt.Verify {
		return nil
	}
	m := newImage(t.layout)
	for i := range min(t.layout.slots(), t.opt.Count) {
		at := t.layout.offset(i)
		if err := m.add(i, mem[at:at+t.opt.Size]); err != nil {
			return err
		}
		// The client must not write to the bytes between slots and after the last slot.
		end := at + t.layout.stride()
		if i == min(t.layout.slots(), t.opt.Count)-1 || end > len(mem) {
			end = len(mem)
		}
		if gap := mem[at+t.opt.Size : end]; len(bytes.Trim(gap, string(rune(untouched)))) > 0 {
			return fmt.Errorf("%w: bytes behind message %d were written", ErrContents, i)
		}
	}
	res.Verified = res.Count
	return m.check()
}

// A sender is the client of Sends. It sends as long as the server's receive queue has room,
// according to the count written into the sender's memory by the server.
type sender struct {
	*session
	mem  []byte
	word []byte // count of messages that the server has received
	mr   *iwarp.MemoryRegion
}

func newSender(s *session) (*sender, error) {
	w := &sender{session: s, mem: make([]byte, s.layout.span()), word: make([]byte, creditLen)}
	fillRandom(w.mem)
	var err error
	w.mr, err = s.data.Register(w.word, iwarp.RemoteWrite)
	return w, err
}

func (w *sender) region() *iwarp.MemoryRegion { return w.mr }
func (w *sender) close()                      { w.mr.Close() }
func (w *sender) verify(*Result) error        { return nil }

// peek reads a word the peer may be writing concurrently: four aligned bytes, acceptable with any
// old or new value.
//
//go:norace
//go:noinline
func peek(word []byte) uint32 { return binary.LittleEndian.Uint32(word) }

// room returns how many messages may be sent after the first n.
func (w *sender) room(n int) (int, error) {
	got := peek(w.word)
	if int64(got) > int64(n) {
		return 0, fmt.Errorf("%w: the server has received %d messages, %d were sent", ErrCount, got, n)
	}
	// The tools leave one buffer of the queue unused.
	return w.opt.receives() - 1 - (n - int(got)), nil
}

func (w *sender) work(ctx context.Context, res *Result) error {
	begin := time.Now()
	for posted, done := 0, 0; done < w.opt.Count; {
		room, err := w.room(posted)
		if err != nil {
			return err
		}
		for ; room > 0 && posted < w.opt.Count && posted-done < w.opt.Depth; posted, room = posted+1, room-1 {
			at := w.layout.offset(posted)
			if err := w.data.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(w.mem[at : at+w.opt.Size])}}); err != nil {
				return why(w.data, err)
			}
		}
		if posted == done {
			if err := w.await(ctx, posted); err != nil {
				return err
			}
			continue
		}
		c, err := w.data.SendCQ().Wait(ctx)
		if err != nil {
			return err
		}
		if c.Status != iwarp.StatusOK {
			return why(w.data, c.Err())
		}
		done++
	}
	res.Elapsed = time.Since(begin)
	return nil
}

// await polls until a message may be sent, because a Write of the peer causes no local completion.
func (w *sender) await(ctx context.Context, posted int) error {
	for {
		if room, err := w.room(posted); err != nil || room > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.data.Ended():
			return why(w.data, iwarp.ErrClosed)
		case <-w.data.PeerClosed():
			return errEnded
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// A receiver is the server of Sends.
type receiver struct {
	*session
	bufs  [][]byte
	cred  *iwarp.MemoryRegion // memory named in our keys, because the tools register such memory at both ends
	image *image
}

func newReceiver(s *session) (*receiver, error) {
	r := &receiver{session: s, bufs: make([][]byte, s.opt.receives()), image: newImage(s.layout)}
	var err error
	if r.cred, err = s.data.Register(make([]byte, creditLen), iwarp.LocalOnly); err != nil {
		return nil, err
	}
	for i := range r.bufs {
		r.bufs[i] = make([]byte, s.opt.Size)
		if err := r.post(i); err != nil {
			return nil, why(s.data, err)
		}
	}
	return r, nil
}

func (r *receiver) region() *iwarp.MemoryRegion { return r.cred }
func (r *receiver) close()                      { r.cred.Close() }

func (r *receiver) post(i int) error {
	return r.data.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(r.bufs[i])}})
}

func (r *receiver) work(ctx context.Context, res *Result) error {
	var begin time.Time
	depth := len(r.bufs)
	posted := depth
	for n := range r.opt.Count {
		c, err := r.data.RecvCQ().Wait(ctx)
		if err != nil {
			return err
		}
		if c.Status != iwarp.StatusOK {
			return why(r.data, c.Err())
		}
		if n == 0 {
			begin = time.Now()
		}
		i := int(c.ID)
		if int(c.Len) != r.opt.Size {
			return fmt.Errorf("%w: message %d of %d bytes, want %d", ErrCount, n, c.Len, r.opt.Size)
		}
		if r.opt.Verify {
			if err := r.image.add(n, r.bufs[i]); err != nil {
				return err
			}
			res.Verified++
		}
		if posted < r.opt.Count {
			if err := r.post(i); err != nil {
				return why(r.data, err)
			}
			posted++
		}
		if (n+1)%depth%(depth/3) == 0 {
			if err := r.credit(ctx, n+1); err != nil {
				return err
			}
		}
	}
	res.Elapsed = time.Since(begin)
	return nil
}

// credit writes the count n of received messages into the client's memory, and waits until the
// Write was sent.
func (r *receiver) credit(ctx context.Context, n int) error {
	err := r.data.Post(iwarp.SendWR{Op: iwarp.OpWrite, Inline: true, Remote: iwarp.RemoteAddr{STag: r.peer.rkey, TO: r.peer.vaddr},
		SG: []iwarp.SGE{iwarp.Buf(binary.LittleEndian.AppendUint32(nil, uint32(n)))}})
	if err != nil {
		return why(r.data, err)
	}
	c, err := r.data.SendCQ().Wait(ctx)
	if err != nil {
		return err
	}
	return why(r.data, c.Err())
}

func (r *receiver) verify(*Result) error {
	if st := r.data.Stats(); st.ReceivedMessages < uint64(r.opt.Count) {
		return fmt.Errorf("%w: %d messages, want %d", ErrCount, st.ReceivedMessages, r.opt.Count)
	}
	if !r.opt.Verify {
		return nil
	}
	return r.image.check()
}

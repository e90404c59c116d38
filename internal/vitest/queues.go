package vitest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"viaduct/vi"
)

// testDoneWait calls Done and Wait in every state of the descriptor at the queue's head.
// [VIA-8.3-4] [VIA-6.4-7] [VIA-6.4-9] [VIA-6.4-11]
func testDoneWait(e *env) {
	p := e.connected()
	v := p.v[1]
	if d, err := v.RecvDone(); d != nil || err != vi.ErrQueueEmpty || !errors.Is(err, vi.ErrDescriptor) {
		e.Errorf("empty: %v", err)
	}
	if d, err := v.RecvWait(context.Background()); d != nil || err != vi.ErrQueueEmpty {
		e.Errorf("waiting on an empty queue: %v", err)
	}
	r := p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
	if d, err := v.RecvDone(); d != nil || err != vi.ErrNotDone {
		e.Errorf("not done: %v", err)
	}
	for _, limit := range []time.Duration{0, 30 * time.Millisecond} {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		d, err := v.RecvWait(ctx)
		cancel()
		if d != nil || !errors.Is(err, vi.ErrTimeout) {
			e.Errorf("wait of %v: %v", limit, err)
		}
		e.accurate("RecvWait", time.Since(begin), limit)
	}
	// A wait without a time limit ends when a message arrives.
	got := make(chan *vi.Descriptor, 1)
	go func() { d, _ := v.RecvWait(context.Background()); got <- d }()
	time.Sleep(moment)
	p.post(0, vi.NewSend(p.seg(0, 0, 10)))
	if d := <-got; d != r {
		e.Error("the wait returned something else")
	}
	p.reapSend(p.v[0], nil)
	// If the head has completed, Wait returns the head although the context is cancelled.
	r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
	p.post(0, vi.NewSend())
	p.reapSend(p.v[0], nil)
	e.eventually("the receive", func() bool { v.Poll(); return r.Status()&vi.StatusDone != 0 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if d, err := v.RecvWait(ctx); d != r || err != nil {
		e.Errorf("a complete head with a cancelled context: %v", err)
	}
	p.postRecv(1, vi.NewRecv())
	if d, err := v.RecvWait(ctx); d != nil || !errors.Is(err, context.Canceled) {
		e.Errorf("a cancelled wait: %v", err)
	}
	// Disconnect wakes the waiter, and the waiter gets the flushed descriptor.
	done := make(chan error, 1)
	go func() { _, err := v.RecvWait(context.Background()); done <- err }()
	time.Sleep(moment)
	e.must(v.Disconnect())
	if err := <-done; !errors.Is(err, vi.ErrDescriptor) || errors.Is(err, vi.ErrQueueEmpty) {
		e.Errorf("a wait that a disconnect ended: %v", err)
	}
	// Here the head is a descriptor with an error.
	r = vi.NewRecv()
	e.must(v.PostRecv(r))
	e.must(v.Disconnect())
	d, err := v.RecvDone()
	var se *vi.StatusError
	if d != r || !errors.As(err, &se) || se.Status != r.Status() || !errors.Is(err, vi.ErrDescriptor) {
		e.Errorf("error head: %v", err)
	}
}

// testDoneBesideWait: Done does not block while another goroutine is in Wait. If several goroutines
// wait, each descriptor goes to exactly one waiter. [VIA-8.3-5] [VIA-6.4-8] [VIA-6.7-1]
func testDoneBesideWait(e *env) {
	if !e.nics[0].Query().ThreadSafe {
		e.Error("the NIC says that it is not safe for concurrent use")
	}
	p := e.connected()
	const n, waiters = 60, 3
	for i := range n + waiters {
		p.postRecv(1, vi.NewRecv(p.seg(1, 64*i, 64)))
	}
	got := make(chan *vi.Descriptor, n+waiters)
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			for {
				d, err := p.v[1].RecvWait(context.Background())
				if err != nil {
					got <- d
					return // the descriptor was flushed, or the queue is empty
				}
				got <- d
			}
		})
	}
	time.Sleep(moment)
	begin := time.Now()
	if _, err := p.v[1].RecvDone(); !errors.Is(err, vi.ErrNotDone) {
		e.Errorf("Done beside Wait: %v", err)
	}
	if took := time.Since(begin); took > e.patience()/4 {
		e.Errorf("Done took %v", took)
	}
	for i := range n {
		p.post(0, vi.NewSend().WithImmediate(uint32(i)))
		if d, err := p.v[1].RecvDone(); err == nil {
			got <- d // the polling goroutine may get the descriptor too
		}
	}
	for range n {
		p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	}
	var seen []uint32
	for range n {
		select {
		case d := <-got:
			seen = append(seen, d.ImmediateData)
		case <-time.After(e.patience()):
			e.Fatalf("%d messages of %d", len(seen), n)
		}
	}
	slices.Sort(seen)
	for i, x := range seen {
		if x != uint32(i) {
			e.Fatalf("messages %v", seen)
		}
	}
	e.must(p.v[1].Disconnect())
	wg.Wait()
}

// testNotify: a registration gets an already completed descriptor, or else the next descriptor.
// Several registrations are served in order. Destroying the VI cancels all registrations.
// [VIA-8.3-18] [VIA-6.4-12] [VIA-6.4-27]
func testNotify(e *env) {
	p := e.connected()
	got := make(chan *vi.Descriptor, 10)
	for i := range 4 {
		p.postRecv(1, vi.NewRecv(p.seg(1, 64*i, 64)))
	}
	var order []int    // only handlers access it, and these run one at a time
	for i := range 3 { // no descriptor has completed, so the calls come later
		e.must(p.v[1].RecvNotify(func(d *vi.Descriptor) { order = append(order, i); got <- d }))
	}
	for i := range 4 {
		p.post(0, vi.NewSend().WithImmediate(uint32(i)))
	}
	next := func(want uint32) {
		e.Helper()
		select {
		case d := <-got:
			if d.ImmediateData != want {
				e.Errorf("message %d, want %d", d.ImmediateData, want)
			}
		case <-time.After(e.patience()):
			e.Fatal("no notification")
		}
	}
	for i := range 3 {
		next(uint32(i))
	}
	if !slices.Equal(order, []int{0, 1, 2}) {
		e.Errorf("registrations served in order %v", order)
	}
	e.eventually("the fourth stays in the queue", func() bool {
		p.v[1].Poll()
		_, _, _, empty := p.v[1].Query()
		return !empty
	})
	e.must(p.v[1].RecvNotify(func(d *vi.Descriptor) { got <- d })) // the immediate bit may be set
	next(3)
	if _, err := p.v[1].RecvDone(); err != vi.ErrQueueEmpty {
		e.Errorf("a notified descriptor was not reaped: %v", err)
	}
	// A handler may call the package: the handler of the send queue posts descriptors.
	again := make(chan error, 1)
	p.drain(p.v[0])
	e.must(p.v[0].SendNotify(func(d *vi.Descriptor) {
		p.v[1].PostRecv(vi.NewRecv())
		again <- p.v[0].PostSend(d)
	}))
	p.postRecv(1, vi.NewRecv())
	p.post(0, vi.NewSend())
	select {
	case err := <-again:
		e.must(err)
	case <-time.After(e.patience()):
		e.Fatal("no notification of a send")
	}
	p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	e.wantErr("no handler", p.v[0].SendNotify(nil), vi.ErrInvalidParameter)
	e.wantErr("no handler", p.v[0].RecvNotify(nil), vi.ErrInvalidParameter)
	// Flushed descriptors are passed to registrations too.
	p.drain(p.v[1])
	e.must(p.v[1].RecvNotify(func(d *vi.Descriptor) { got <- d }))
	p.postRecv(1, vi.NewRecv())
	e.must(p.v[1].Disconnect())
	select {
	case d := <-got:
		p.wantStatus("notified", d.Status(), vi.StatusOpReceive|vi.StatusFlushed)
	case <-time.After(e.patience()):
		e.Fatal("no notification of a flushed receive")
	}
	// Destroying the VI cancels the registration.
	v := e.vi(0)
	e.must(v.RecvNotify(func(*vi.Descriptor) { e.Error("notified of a destroyed VI") }))
	e.must(v.Destroy())
}

// testCQ: a completion queue reports the completions of the attached work queues. [VIA-8.3-17]
// [VIA-1.1-3] [VIA-1.6-3] [VIA-4.7-2] [VIA-4.7-3] [VIA-6.4-10] [VIA-6.4-24] [VIA-6.4-25]
// [VIA-6.4-26]
func testCQ(e *env) {
	nic := e.nics[0]
	_, err := nic.CreateCQ(0)
	e.wantErr("a queue for nothing", err, vi.ErrInvalidParameter)
	most := nic.Query().MaxCQEntries
	_, err = nic.CreateCQ(most + 1)
	e.wantErr("a queue too long", err, vi.ErrInvalidParameter)
	q, err := nic.CreateCQ(4)
	e.must(err)
	q2, err := nic.CreateCQ(4)
	e.must(err)
	foreign, err := e.nics[1].CreateCQ(4)
	e.must(err)
	_, err = nic.CreateVI(e.attrs(), foreign, nil) // [VIA-1.1-2]
	e.wantErr("a queue of another NIC", err, vi.ErrInvalidParameter)

	if _, err := q.Done(); err != vi.ErrNotDone {
		e.Errorf("an empty queue: %v", err)
	}
	const limit = 30 * time.Millisecond
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err = q.Wait(ctx)
	e.wantErr("an empty queue", err, vi.ErrTimeout)
	e.accurate("CQ.Wait", time.Since(begin), limit)

	// There are five ways to attach the two queues of a VI to completion queues.
	for _, c := range []struct{ send, recv *vi.CompletionQueue }{{nil, nil}, {q, nil}, {nil, q}, {q, q}, {q, q2}} {
		v, err := nic.CreateVI(e.attrs(), c.send, c.recv)
		e.must(err)
		other := e.vi(1)
		e.must(e.connectVIs(v, other))
		here, there := e.region(0, 100), e.region(1, 100)
		if c.send != nil {
			_, err := v.SendWait(e.ctx())
			e.wantErr("SendWait", err, vi.ErrResource)
			e.wantErr("SendNotify", v.SendNotify(func(*vi.Descriptor) {}), vi.ErrResource)
			e.wantErr("destroying a queue in use", c.send.Destroy(), vi.ErrResource)
		}
		if c.recv != nil {
			_, err := v.RecvWait(e.ctx())
			e.wantErr("RecvWait", err, vi.ErrResource)
			e.wantErr("RecvNotify", v.RecvNotify(func(*vi.Descriptor) {}), vi.ErrResource)
		}
		e.must(v.PostRecv(vi.NewRecv(here.Segment(0, 100))))
		e.must(other.PostRecv(vi.NewRecv(there.Segment(0, 100))))
		e.must(v.PostSend(vi.NewSend(here.Segment(0, 10))))
		e.wantStatus("receive", e.reapRecv(other, nil), vi.StatusOpReceive)
		reap := func(cq *vi.CompletionQueue, recv bool, done func() (*vi.Descriptor, error),
			wait func(context.Context) (*vi.Descriptor, error)) {
			e.Helper()
			if cq == nil {
				e.reap("unattached queue", wait, nil)
				return
			}
			got, err := cq.Wait(e.ctx())
			if err != nil || got != (vi.Completion{VI: v, Recv: recv}) {
				e.Fatalf("entry %+v, %v", got, err)
			}
			if _, err := done(); err != nil {
				e.Fatalf("entry without a descriptor: %v", err)
			}
		}
		reap(c.send, false, v.SendDone, v.SendWait)
		e.must(other.PostSend(vi.NewSend(there.Segment(0, 10))))
		reap(c.recv, true, v.RecvDone, v.RecvWait)
		e.reapSend(other, nil)
		// An entry becomes stale if the descriptor is reaped from the work queue and the VI is then
		// destroyed.
		e.must(v.PostRecv(vi.NewRecv()))
		e.must(v.PostSend(vi.NewSend(make([]vi.Segment, nic.Query().MaxSegmentsPerDesc+1)...))) // fails
		e.eventually("the send fails", func() bool { _, err := v.SendDone(); return errors.Is(err, vi.ErrDescriptor) })
		e.must(v.Disconnect())
		v.SendDone()
		v.RecvDone()
		e.must(v.Destroy())
		for _, cq := range []*vi.CompletionQueue{q, q2} {
			if got, err := cq.Done(); err != vi.ErrNotDone {
				e.Errorf("an entry of a destroyed VI: %+v, %v", got, err)
			}
		}
	}
	e.must(q2.Destroy())
	_, err = q2.Done()
	e.wantErr("a destroyed queue", err, vi.ErrClosed)
	e.wantErr("destroying it again", q2.Destroy(), vi.ErrClosed)
	e.wantErr("resizing it", q2.Resize(10), vi.ErrClosed)
	e.wantErr("its notifications", q2.Notify(func(vi.Completion) {}), vi.ErrClosed)
	_, err = nic.CreateVI(e.attrs(), q2, nil)
	e.wantErr("attaching to it", err, vi.ErrInvalidParameter)

	// Resize keeps the entries, and refuses a size below their number.
	v, err := nic.CreateVI(e.attrs(), nil, q)
	e.must(err)
	for range 6 {
		e.must(v.PostRecv(vi.NewRecv()))
	}
	e.must(v.Disconnect()) // six entries are in a queue with room for four
	e.wantErr("fewer than are present", q.Resize(5), vi.ErrResource)
	e.wantErr("none", q.Resize(0), vi.ErrInvalidParameter)
	e.wantErr("too many", q.Resize(most+1), vi.ErrInvalidParameter)
	e.must(q.Resize(64))
	e.must(q.Resize(6))
	for range 6 {
		if c, err := q.Done(); err != nil || c != (vi.Completion{VI: v, Recv: true}) {
			e.Fatalf("entry %+v, %v", c, err)
		}
		v.RecvDone()
	}
	buf := make([]vi.Completion, 4)
	if n := q.DoneN(buf); n != 0 {
		e.Errorf("%d entries too many", n)
	}
}

// testCQBusy: notifications, waiters and pollers use a queue during a resize. Each entry goes to
// exactly one user. [VIA-6.4-25] [VIA-6.4-26] [VIA-6.4-27] [VIA-6.7-1]
func testCQBusy(e *env) {
	q, err := e.nics[1].CreateCQ(2)
	e.must(err)
	p := &pair{env: e}
	p.v[0] = e.vi(0)
	p.v[1], err = e.nics[1].CreateVI(e.attrs(), nil, q)
	e.must(err)
	p.mem = [2]*vi.Region{e.region(0, 100), e.region(1, 100)}
	p.connect()
	const n = 300
	total := min(n, e.nics[1].Query().MaxDescriptorsPerQueue)
	for range total {
		p.postRecv(1, vi.NewRecv())
	}
	entries := make(chan string, total+10)
	stop, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				if _, err := q.Wait(stop); err != nil {
					return
				}
				entries <- "wait"
			}
		})
	}
	wg.Go(func() {
		for stop.Err() == nil {
			if _, err := q.Done(); err == nil {
				entries <- "done"
			}
			time.Sleep(50 * time.Microsecond)
		}
	})
	wg.Go(func() {
		for i := 0; stop.Err() == nil; i++ {
			q.Resize(1 + i%100) // may fail, because the queue has more entries
			time.Sleep(50 * time.Microsecond)
		}
	})
	for range total / 10 {
		e.must(q.Notify(func(c vi.Completion) {
			if c != (vi.Completion{VI: p.v[1], Recv: true}) {
				e.Errorf("entry %+v", c)
			}
			entries <- "notify"
		}))
	}
	var sends []*vi.Descriptor
	for i := range total {
		sends = append(sends, vi.NewSend().WithImmediate(uint32(i)))
	}
	for len(sends) > 0 {
		k := min(7, len(sends))
		if _, err := p.v[0].PostSends(sends[:k]); err != nil {
			e.Fatal(err)
		}
		sends = sends[k:]
	}
	count := map[string]int{}
	for range total {
		select {
		case s := <-entries:
			count[s]++
		case <-time.After(e.patience()):
			e.Fatalf("entries %v of %d", count, total)
		}
	}
	end()
	wg.Wait()
	if count["notify"] != total/10 {
		e.Errorf("entries %v, want %d notified", count, total/10)
	}
	for i := range total {
		d, err := p.v[1].RecvDone()
		if err != nil || d.ImmediateData != uint32(i) {
			e.Fatalf("descriptor %d: %v", i, err)
		}
		p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	}
	if len(entries) > 0 {
		e.Errorf("%d entries too many", len(entries))
	}
	e.wantErr("no handler", q.Notify(nil), vi.ErrInvalidParameter)
	// Destroying a queue cancels the registrations.
	q2, err := e.nics[1].CreateCQ(1)
	e.must(err)
	e.must(q2.Notify(func(vi.Completion) { e.Error("notified of a destroyed queue") }))
	waiting := make(chan error, 1)
	go func() { _, err := q2.Wait(context.Background()); waiting <- err }()
	time.Sleep(moment)
	e.must(q2.Destroy())
	e.wantErr("a wait on a destroyed queue", <-waiting, vi.ErrClosed) // [VIA-6.7-2]
}

// testOverrun posts more descriptors than a queue can hold. [VIA-8.3-22] [VIA-1.6-1] [VIA-5.2-5]
// [VIA-5.3-3]
func testOverrun(e *env) {
	depth := e.nics[0].Query().MaxDescriptorsPerQueue
	if depth == 0 || depth > 1<<16 {
		e.Skipf("the NIC's queues hold %d descriptors", depth)
	}
	p := e.connected()
	ds := make([]*vi.Descriptor, depth)
	for i := range ds {
		ds[i] = vi.NewRecv()
	}
	n, err := p.v[0].PostRecvs(ds)
	if n != depth || err != nil {
		e.Fatalf("%d of %d receives posted: %v", n, depth, err)
	}
	if s := p.v[0].State(); s != vi.Connected {
		e.Fatalf("state %v with a full queue", s)
	}
	more := vi.NewRecv()
	err = p.v[0].PostRecv(more)
	e.wantErr("one more", err, vi.ErrOverrun)
	e.waitState(p.v[0], vi.Error)
	e.claim(0, p.v[0], vi.ErrorVIOverrun, vi.ErrorConnLost)
	for _, d := range ds {
		p.wantStatus("receive", p.reapRecv(p.v[0], d), vi.StatusOpReceive|vi.StatusFlushed)
	}
	e.wantErr("behind the last", func() error { _, err := p.v[0].RecvDone(); return err }(), vi.ErrQueueEmpty)
	e.waitState(p.v[1], vi.Error)
	e.must(p.v[0].PostRecv(more)) // the refused descriptor was not posted, so it can be posted now
	p.wantStatus("receive", p.reapRecv(p.v[0], more), vi.StatusOpReceive|vi.StatusFlushed)
	e.must(p.v[0].Disconnect())
	e.must(p.v[0].Destroy())

	// This is the queue of an Idle VI, without a connection.
	v := e.vi(0)
	_, err = v.PostRecvs(ds)
	e.must(err)
	e.wantErr("one more", v.PostRecv(more), vi.ErrOverrun)
	if s := v.State(); s != vi.Error {
		e.Errorf("state %v", s)
	}
	e.claim(0, v, vi.ErrorVIOverrun)
	e.must(v.Disconnect())
	e.drain(v)
}

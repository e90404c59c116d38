package queue

import (
	"context"
	"errors"
	"sync/atomic"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
)

// ErrFull means that a work queue has reached its limit.
var ErrFull = errors.New("queue: work queue is full")

// A Work is a work queue. Four positions count the requests; each is at most the position before:
//
//	posted    the request is in the queue
//	started   the engine has begun with it
//	done      the request and all requests before it are finished
//	reaped    the consumer has removed the request
//
// The zero value is an empty queue that takes any number of requests.
type Work[T any] struct {
	// Limit is the largest number of requests from post to reap; 0 means no limit. Set it before
	// use.
	Limit int

	// OnDone, if set, is called for each request at the moment the request is done, in order and
	// before Reap can return the request. OnDone runs under the queue's lock: it may write the
	// request's status or push to a completion queue, and must not call the queue. Set OnDone
	// before use.
	OnDone func(T)

	// OnDones, if set, is called once after the OnDone calls of requests that become done together,
	// under the same rules. OnDones can publish all these requests together. Set OnDones before
	// use.
	OnDones func()

	// started is written with mu held, except by MarkStarted.
	started atomic.Uint64

	// These fields change only with mu held. They may be read without mu, so that a poll without
	// result takes no lock.
	posted, done, reaped atomic.Uint64 // total counts; each is also the next sequence number

	mu      perturb.Mutex
	slots   atomic.Pointer[[]slot[T]] // ring; nil or of a power of two; written with mu held, before posted changes
	waiters attend.Waiters
}

type slot[T any] struct {
	v        T
	finished bool
}

const firstSlots = 8

func (w *Work[T]) at(seq uint64) *slot[T] { return in(*w.slots.Load(), seq) }

func in[T any](ring []slot[T], seq uint64) *slot[T] { return &ring[seq&uint64(len(ring)-1)] }

// Post appends v and returns the sequence number, counting from 0. The error is ErrFull if the
// queue has reached Limit.
func (w *Work[T]) Post(v T) (seq uint64, err error) {
	w.mu.Lock()
	seq = w.posted.Load()
	if err = w.putLocked(seq, v); err == nil {
		w.posted.Store(seq + 1)
	}
	w.mu.Unlock()
	return seq, err
}

// PostStarted posts and starts v in one step, for the only goroutine that starts requests.
// PostStarted returns false and does nothing if other requests must start before v, or if the queue
// is full. PostStarted must not run concurrently with Flush.
func (w *Work[T]) PostStarted(v T) (seq uint64, ok bool) {
	w.mu.Lock()
	if seq = w.posted.Load(); seq == w.started.Load() && w.putLocked(seq, v) == nil {
		w.posted.Store(seq + 1)
		w.started.Store(seq + 1)
		ok = true
	}
	w.mu.Unlock()
	return seq, ok
}

// PostN posts the requests in vs, in order and under a single lock. It stops when the queue is
// full, and returns the number of posted requests and ErrFull.
func (w *Work[T]) PostN(vs []T) (n int, err error) {
	w.mu.Lock()
	seq := w.posted.Load()
	for n < len(vs) && err == nil {
		if err = w.putLocked(seq, vs[n]); err == nil {
			n, seq = n+1, seq+1
		}
	}
	w.posted.Store(seq)
	w.mu.Unlock()
	return n, err
}

// putLocked stores v as request seq, the next sequence number. It returns ErrFull beyond Limit.
func (w *Work[T]) putLocked(seq uint64, v T) error {
	n := seq - w.reaped.Load()
	if w.Limit > 0 && n >= uint64(w.Limit) {
		return ErrFull
	}
	if ring := w.slots.Load(); ring == nil || n == uint64(len(*ring)) {
		w.growLocked(seq)
	}
	*w.at(seq) = slot[T]{v: v}
	return nil
}

func (w *Work[T]) growLocked(end uint64) {
	var old []slot[T]
	if p := w.slots.Load(); p != nil {
		old = *p
	}
	ring := make([]slot[T], max(firstSlots, 2*len(old)))
	for seq := w.reaped.Load(); seq < end; seq++ {
		*in(ring, seq) = *in(old, seq)
	}
	w.slots.Store(&ring)
}

// Peek returns the next request to start, and the sequence number, without starting the request. ok
// is false if there is none.
func (w *Work[T]) Peek() (v T, seq uint64, ok bool) {
	w.mu.Lock()
	if seq = w.started.Load(); seq != w.posted.Load() {
		v, ok = w.at(seq).v, true
	}
	w.mu.Unlock()
	return v, seq, ok
}

// PeekN stores up to len(buf) of the next requests to start in buf. PeekN returns their number and
// the sequence number of the first. MarkStarted starts the requests. PeekN and MarkStarted are for
// the only goroutine that starts requests, take no lock, and must not run concurrently with Flush.
func (w *Work[T]) PeekN(buf []T) (n int, first uint64) {
	first = w.started.Load()
	end := w.posted.Load()
	if first == end {
		return 0, first
	}
	// Reading the slots is safe: a slot is not written to before the request is started and done,
	// and a replacing ring holds the same requests.
	for ring := *w.slots.Load(); n < len(buf) && first+uint64(n) < end; n++ {
		buf[n] = in(ring, first+uint64(n)).v
	}
	return n, first
}

// MarkStarted starts the requests up to and including seq, from PeekN. MarkStarted is for the only
// goroutine that starts requests, takes no lock, and must not run concurrently with Flush.
func (w *Work[T]) MarkStarted(seq uint64) { w.started.Store(seq + 1) }

// Start starts and returns the next request, with the sequence number. ok is false if no request
// waits. Start is for the only goroutine that starts requests, takes no lock, and must not run
// concurrently with Flush.
func (w *Work[T]) Start() (v T, seq uint64, ok bool) {
	if seq = w.started.Load(); seq != w.posted.Load() {
		v, ok = w.at(seq).v, true
		w.MarkStarted(seq)
	}
	return v, seq, ok
}

// StartN starts up to len(buf) requests, stores them in buf, and returns their number and the
// sequence number of the first.
func (w *Work[T]) StartN(buf []T) (n int, first uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first = w.started.Load()
	end := w.posted.Load()
	for n < len(buf) && first+uint64(n) < end {
		buf[n] = w.at(first + uint64(n)).v
		n++
	}
	w.started.Store(first + uint64(n))
	return n, first
}

// Finish marks request seq as finished and returns how many requests become done: none if an
// earlier request is unfinished. Finish has no effect on a finished or flushed request. An engine
// may therefore finish a request after a flush.
func (w *Work[T]) Finish(seq uint64) int { return w.FinishRange(seq, seq+1) }

// FinishRange marks the requests first to end-1 as finished, like Finish, and returns the number of
// requests that become done.
func (w *Work[T]) FinishRange(first, end uint64) int {
	w.mu.Lock()
	w.markLocked(first, end)
	n := w.advanceLocked()
	w.mu.Unlock()
	return n
}

// Retire does the work of FinishRange for a queue whose consumer relies on OnDone alone: Retire
// also reaps the requests that become done. Retire stores up to len(buf) requests in buf, and
// returns the number. If the number is len(buf), more may be done; remove the rest with Reap.
func (w *Work[T]) Retire(first, end uint64, buf []T) int {
	w.mu.Lock()
	w.markLocked(first, end)
	w.advanceLocked()
	n := 0
	for n < len(buf) {
		v, h := w.reapLocked()
		if h != Done {
			break
		}
		buf[n] = v
		n++
	}
	w.mu.Unlock()
	return n
}

func (w *Work[T]) markLocked(first, end uint64) {
	end = min(end, w.posted.Load())
	for seq := max(first, w.done.Load()); seq < end; seq++ {
		w.at(seq).finished = true
	}
}

func (w *Work[T]) advanceLocked() int {
	first, end := w.done.Load(), w.posted.Load()
	seq := first
	for seq < end && w.at(seq).finished {
		seq++
	}
	if seq == first {
		return 0
	}
	// Store done before OnDone: OnDone may wake other goroutines; a woken goroutine must see that
	// there is a request and then wait for the lock.
	w.done.Store(seq)
	if w.started.Load() < seq {
		w.started.Store(seq) // flushed requests that were not started
	}
	if w.OnDone != nil {
		for i := first; i < seq; i++ {
			w.OnDone(w.at(i).v)
		}
	}
	if w.OnDones != nil {
		w.OnDones()
	}
	w.waiters.WakeLocked(int(seq - first))
	return int(seq - first)
}

// Update calls f for request seq, under the queue's lock, if the request is not finished yet. The
// result reports whether f was called. f can therefore set the request's status without racing with
// a flush.
func (w *Work[T]) Update(seq uint64, f func(*T)) bool {
	if seq < w.done.Load() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if seq < w.done.Load() || seq >= w.posted.Load() || w.at(seq).finished {
		return false
	}
	f(&w.at(seq).v)
	return true
}

// Each calls f for every unfinished request, in order and under the queue's lock.
func (w *Work[T]) Each(f func(v *T)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for seq, end := w.done.Load(), w.posted.Load(); seq < end; seq++ {
		if s := w.at(seq); !s.finished {
			f(&s.v)
		}
	}
}

// Flush finishes every unfinished request, and returns how many requests become done. It first
// calls f with each unfinished request, in order and under the queue's lock; started reports
// whether the request was started.
func (w *Work[T]) Flush(f func(v *T, started bool)) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for seq, end := w.done.Load(), w.posted.Load(); seq < end; seq++ {
		if s := w.at(seq); !s.finished {
			f(&s.v, seq < w.started.Load())
			s.finished = true
		}
	}
	return w.advanceLocked()
}

// A Head is the state of the first request of a work queue.
type Head uint8

const (
	Empty   Head = iota // nothing is in the queue
	NotDone             // the first request is not done
	Done                // the first request is done
)

// Reap removes and returns the first request if it is done. Otherwise h says why not, and v is the
// zero value.
func (w *Work[T]) Reap() (v T, h Head) {
	// Load reaped before done: if both are equal, no request was done and not reaped.
	if r := w.reaped.Load(); r == w.done.Load() {
		if r == w.posted.Load() {
			return v, Empty
		}
		return v, NotDone
	}
	w.mu.Lock()
	v, h = w.reapLocked()
	w.mu.Unlock()
	return v, h
}

func (w *Work[T]) reapLocked() (v T, h Head) {
	r, end := w.reaped.Load(), w.posted.Load()
	switch {
	case r < w.done.Load():
		s := w.at(r)
		v = s.v
		*s = slot[T]{}
		w.reaped.Store(r + 1)
		if r+1 == end {
			w.waiters.WakeAllLocked() // nothing is left to wait for
		}
		return v, Done
	case r < end:
		return v, NotDone
	}
	return v, Empty
}

// Wait waits until the first request is done, and then reaps it. If the queue is or becomes empty,
// Wait returns Empty. If ctx ends, Wait returns NotDone and the error of ctx. A done request wins
// over a cancelled context. p, which may be nil, is the connection to poll for progress.
func (w *Work[T]) Wait(ctx context.Context, p attend.Progress) (v T, h Head, err error) {
	w.mu.Lock()
	if err := attend.Until(ctx, &w.mu, &w.waiters, (*workSource[T])(w), p); err != nil {
		return v, NotDone, err
	}
	v, h = w.reapLocked()
	w.mu.Unlock()
	return v, h, nil
}

type workSource[T any] Work[T]

func (s *workSource[T]) ReadyLocked() (bool, error) {
	r := s.reaped.Load()
	return r < s.done.Load() || r == s.posted.Load(), nil
}

// Counts holds the four positions of a work queue, each as a total number of requests.
type Counts struct {
	Posted, Started, Done, Reaped uint64
}

// Counts returns the positions at a single moment.
func (w *Work[T]) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Counts{w.posted.Load(), w.started.Load(), w.done.Load(), w.reaped.Load()}
}

// Empty reports whether every request is done and was reaped, so that all OnDone and OnDones calls
// have returned. Empty takes no lock.
func (w *Work[T]) Empty() bool { return w.reaped.Load() == w.posted.Load() }

// Posted returns the number of requests ever posted. It takes no lock.
func (w *Work[T]) Posted() uint64 { return w.posted.Load() }

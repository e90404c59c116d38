package queue

// Take removes the next request that is not started and returns it: posted,
// started, done and reaped in one step. It is for queues whose order of
// completion is kept elsewhere. OnDone is not called. A queue is used either
// with Take or with Start, Finish and Reap.
func (w *Work[T]) Take() (v T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seq := w.started.Load()
	if seq == w.posted.Load() || w.reaped.Load() != seq {
		return v, false
	}
	s := w.at(seq)
	v = s.v
	*s = slot[T]{}
	w.started.Store(seq + 1)
	w.done.Store(seq + 1)
	w.reaped.Store(seq + 1)
	return v, true
}

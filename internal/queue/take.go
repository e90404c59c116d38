package queue

// Take removes the next request that is not started and returns it: posted,
// started, done and reaped in one step. It is for queues whose order of
// completion is kept elsewhere. OnDone is not called. A queue is used either
// with Take or with Start, Finish and Reap.
func (w *Work[T]) Take() (v T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started == w.posted || w.reaped != w.started {
		return v, false
	}
	s := w.at(w.started)
	v = s.v
	*s = slot[T]{}
	w.started++
	w.done, w.reaped = w.started, w.started
	return v, true
}

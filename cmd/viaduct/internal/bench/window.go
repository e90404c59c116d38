package bench

// A window holds the operations that a lane may have outstanding. They are made once and posted
// repeatedly.
type window[T any] struct {
	ring []T
	next int // the one to post
	left int // posted and not reaped
}

// postRing posts the next n operations with post, which returns how many it accepted.
func (w *window[T]) postRing(n int, post func([]T) (int, error)) error {
	for n > 0 {
		k := min(n, len(w.ring)-w.next)
		m, err := post(w.ring[w.next:][:k])
		w.left += m
		if err != nil {
			return err
		}
		w.next = (w.next + k) % len(w.ring)
		n -= k
	}
	return nil
}

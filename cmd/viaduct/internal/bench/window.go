package bench

// A window holds the operations that a lane may have outstanding. They are made once and posted
// repeatedly.
type window[T any] struct {
	ring []T
	next int // index in ring of the operation to post next
	left int // operations that were posted and not reaped
}

// postRing posts the next n operations. It calls post one or more times. post returns how many
// operations it has accepted, which left counts.
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

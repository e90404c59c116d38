package bench

// A window holds the operations a lane may have outstanding. The operations are made once and
// posted repeatedly.
type window[T any] struct {
	ring []T
	next int // index in ring of the operation to post next
	left int // operations that were posted and not reaped
}

// postRing posts the next n operations. postRing calls post one or more times. post returns the
// number of accepted operations. left counts the accepted operations.
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

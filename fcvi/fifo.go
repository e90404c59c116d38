package fcvi

// A fifo is a queue from whose front elements can be dropped without moving the others. A fifo does
// not allocate after reaching the largest length.
type fifo[T any] struct {
	buf  []T
	head int
}

func (q *fifo[T]) len() int { return len(q.buf) - q.head }

// all returns the elements, the oldest first. The result is valid until the next change.
func (q *fifo[T]) all() []T { return q.buf[q.head:] }

func (q *fifo[T]) at(i int) *T { return &q.buf[q.head+i] }

func (q *fifo[T]) push(v T) *T {
	if len(q.buf) == cap(q.buf) && q.head > len(q.buf)/2 {
		n := copy(q.buf, q.buf[q.head:])
		clear(q.buf[n:])
		q.buf, q.head = q.buf[:n], 0
	}
	q.buf = append(q.buf, v)
	return &q.buf[len(q.buf)-1]
}

// drop removes the n oldest elements.
func (q *fifo[T]) drop(n int) {
	clear(q.buf[q.head : q.head+n])
	q.head += n
	if q.head == len(q.buf) {
		q.buf, q.head = q.buf[:0], 0
	}
}

// remove removes the element at i.
func (q *fifo[T]) remove(i int) {
	if i == 0 {
		q.drop(1)
		return
	}
	rest := q.all()
	copy(rest[i:], rest[i+1:])
	q.truncate(len(rest) - 1)
}

// truncate removes all but the n oldest elements.
func (q *fifo[T]) truncate(n int) {
	clear(q.buf[q.head+n:])
	q.buf = q.buf[:q.head+n]
	if n == 0 {
		q.buf, q.head = q.buf[:0], 0
	}
}

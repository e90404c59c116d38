package rocecore

// A fifo is a queue of any length. The zero value is empty.
type fifo[T any] struct {
	ring []T // of a power of two
	head int // counts up without end
	n    int
}

func (q *fifo[T]) len() int { return q.n }

// at returns the entry behind the i oldest.
func (q *fifo[T]) at(i int) *T { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *fifo[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(8, 2*q.n))
		for i := range q.n {
			ring[i] = *q.at(i)
		}
		q.ring, q.head = ring, 0
	}
	q.n++
	*q.at(q.n - 1) = v
}

func (q *fifo[T]) pop() (v T) {
	var zero T
	p := q.at(0)
	v, *p = *p, zero
	q.head++
	q.n--
	return v
}

// remove removes the entry behind the i oldest.
func (q *fifo[T]) remove(i int) {
	for ; i > 0; i-- {
		*q.at(i) = *q.at(i - 1)
	}
	q.pop()
}

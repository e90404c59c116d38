package rocecore

// A fifo is a queue that grows as needed. The zero value is empty.
type fifo[T any] struct {
	ring []T // its length is a power of two
	head int // index of the oldest entry, modulo len(ring); never reset
	n    int
}

func (q *fifo[T]) len() int { return q.n }

// at returns a pointer to entry i, where entry 0 is the oldest. It is valid until the next push,
// pop or remove.
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

// remove removes entry i, where entry 0 is the oldest.
func (q *fifo[T]) remove(i int) {
	for ; i > 0; i-- {
		*q.at(i) = *q.at(i - 1)
	}
	q.pop()
}

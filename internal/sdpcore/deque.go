package sdpcore

// A deque is a queue in a reusable ring that grows. The zero value is empty.
type deque[T any] struct {
	ring []T // length is a power of two, or zero
	head int
	n    int
}

func (d *deque[T]) len() int    { return d.n }
func (d *deque[T]) at(i int) *T { return &d.ring[(d.head+i)&(len(d.ring)-1)] }

func (d *deque[T]) push(v T) *T {
	if d.n == len(d.ring) {
		bigger := make([]T, max(4, 2*len(d.ring)))
		for i := range d.n {
			bigger[i] = *d.at(i)
		}
		d.ring, d.head = bigger, 0
	}
	d.n++
	p := d.at(d.n - 1)
	*p = v
	return p
}

func (d *deque[T]) pop() (v T) {
	p := d.at(0)
	v = *p
	var zero T
	*p = zero
	d.head = (d.head + 1) & (len(d.ring) - 1)
	d.n--
	return v
}

// remove removes element i and keeps the order of the others.
func (d *deque[T]) remove(i int) (v T) {
	v = *d.at(i)
	for ; i < d.n-1; i++ {
		*d.at(i) = *d.at(i + 1)
	}
	var zero T
	*d.at(d.n - 1) = zero
	d.n--
	return v
}

func (d *deque[T]) clear() {
	for d.n > 0 {
		d.pop()
	}
}

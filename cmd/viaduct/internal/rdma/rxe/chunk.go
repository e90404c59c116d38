package rxe

// A Chunk is a piece of a process's memory, and the bytes to copy to or from the piece.
type Chunk struct {
	Bytes []byte
	Addr  uint64
}

// A Process is the address space of a program. Two values for the same program are equal (==).
type Process interface {
	// ReadAll and WriteAll copy the chunks in order, with as few system calls as possible. They
	// return the number of copied bytes. It is smaller than the total if a chunk fails; later
	// chunks are not copied.
	ReadAll(chunks []Chunk) int
	WriteAll(chunks []Chunk) int
}

// copies is a list of chunks of a single process.
type copies struct {
	process Process
	list    []Chunk
	size    int // bytes of all chunks
}

// reset empties the list, and removes the references to memory.
func (c *copies) reset() {
	clear(c.list)
	c.process, c.list, c.size = nil, c.list[:0], 0
}

// add adds chunks for the first len(b) bytes of pieces, to be copied to or from b. It returns false
// and adds nothing if the pieces belong to another process or the list is full. Chunks adjacent on
// both sides are merged.
func (c *copies) add(pieces []piece, b []byte) bool {
	n, last := len(c.list), Chunk{}
	if n > 0 {
		last = c.list[n-1]
	}
	undo := func() bool {
		if c.list = c.list[:n]; n > 0 {
			c.list[n-1] = last
		}
		return false
	}
	for left := b; len(left) > 0; {
		if len(pieces) == 0 {
			return undo()
		}
		p := &pieces[0]
		process, at := p.region.Place(p.addr)
		if c.process == nil {
			c.process = process
		}
		if process == nil || process != c.process || len(c.list) == chunksMost {
			return undo()
		}
		now := min(p.n, len(left))
		c.append(Chunk{left[:now], at})
		left, pieces = left[now:], pieces[1:]
	}
	c.size += len(b)
	return true
}

func (c *copies) append(k Chunk) {
	if n := len(c.list); n > 0 {
		l := &c.list[n-1]
		end := len(l.Bytes)
		if l.Addr+uint64(end) == k.Addr && end+len(k.Bytes) <= cap(l.Bytes) && &l.Bytes[:end+1][end] == &k.Bytes[0] {
			l.Bytes = l.Bytes[:end+len(k.Bytes)]
			return
		}
	}
	c.list = append(c.list, k)
}

// read fills the chunks from the process, and returns the number of bytes read.
func (c *copies) read() int {
	if c.size == 0 {
		return 0
	}
	return c.process.ReadAll(c.list)
}

// write copies the chunks to the process, and returns the number of bytes written.
func (c *copies) write() int {
	if c.size == 0 {
		return 0
	}
	return c.process.WriteAll(c.list)
}

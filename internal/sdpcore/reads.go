package sdpcore

import "io"

// A read is a buffer of the ULP that waits for bytes.
type read struct {
	id       uint64
	n        int  // room in bytes
	off      int  // number of bytes already in the buffer
	inflight int  // bytes after off that RDMA Reads in progress will place
	all      bool // ends only when full [SDP-9.3-15]
	fetched  bool // an RDMA Read was started for this read
	offered  bool // advertised by a SinkAvail
	cancel   bool // cancelled by the driver
}

// reads are the unfinished reads, in the order in which they get bytes.
type reads struct {
	deque[read]
	*common
	mode *recvMode
}

// add posts read id with room for n bytes.
func (k *reads) add(id uint64, n int, all bool) {
	k.push(read{id: id, n: n, all: all})
	k.mode.noteRead(n)
}

// find returns the read with the given id and its index, or nil.
func (k *reads) find(id uint64) (int, *read) {
	for i := range k.len() {
		if r := k.at(i); r.id == id {
			return i, r
		}
	}
	return -1, nil
}

// end ends read i with the bytes it has, and err. If it has bytes, io.EOF becomes nil.
func (k *reads) end(i int, err error) {
	r := k.remove(i)
	if err == io.EOF && r.off > 0 {
		err = nil
	}
	k.do(Action{Op: OpReadDone, ID: r.id, N: r.off, Err: err})
}

// endCancelled ends the cancelled reads into which no RDMA Read is in progress.
func (k *reads) endCancelled() {
	for i := 0; i < k.len(); {
		if r := k.at(i); r.cancel && r.inflight == 0 {
			k.end(i, ErrCancelled)
		} else {
			i++
		}
	}
}

// requeue moves read i after the reads that are advertised, to whose buffers the peer may already be
// writing. [D-20]
func (k *reads) requeue(i int) {
	r := k.remove(i)
	k.push(r)
	for j := k.len() - 1; j > i && !k.at(j-1).offered; j-- {
		*k.at(j), *k.at(j - 1) = *k.at(j - 1), *k.at(j)
	}
}

// landed counts n bytes that an RDMA Read has placed into read id.
func (k *reads) landed(id uint64, n int) {
	i, r := k.find(id)
	if r == nil {
		return
	}
	r.off += n
	r.inflight -= n
	if r.cancel && r.inflight == 0 {
		k.end(i, ErrCancelled)
	}
}

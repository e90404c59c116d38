package frameio

import (
	"errors"
	"syscall"

	"viaduct/internal/budget"
	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

// A Plan has the places for the bytes of the next read: places for the missing bytes of the current
// frame, and the frames the protocol predicts after it. So a single read puts many long frames in
// place. Fewer reads also make sender and receiver compete less for the socket.
type Plan struct {
	// Frame is the places of the missing bytes of the current frame, in order. It may end before
	// the last missing byte.
	Frame [][]byte

	// Predicted is the frames expected next. A read uses Predicted only if Frame has room for all
	// missing bytes.
	Predicted []Prediction

	// Guarded means that the memory of the places may be unmapped. A read into unmapped memory ends
	// the connection, unless only a prediction has placed bytes there.
	Guarded bool

	most  int // the greatest length of Predicted
	heads [maxPredictions][maxHeader]byte
}

// A Prediction is a frame the protocol has not begun to consume.
type Prediction struct {
	Header []byte // the bytes between the previous payload and this one, filled by the read
	// The predicted place of the payload, as long as the payload. A wrong prediction puts other
	// bytes there.
	Place []byte
}

// Room reports whether another frame may be predicted.
func (p *Plan) Room() bool { return len(p.Predicted) < p.most }

// Predict adds a frame. header is the number of bytes, 1 to 64, between the previous payload and
// the payload of this frame. place is the destination of the payload. Room must have returned true.
// All predicted frames together should have at most about [MaxAhead] bytes.
func (p *Plan) Predict(header int, place []byte) {
	n := len(p.Predicted)
	p.Predicted = append(p.Predicted, Prediction{p.heads[n][:header], place})
}

// begin empties p for a read with at most most predictions.
func (p *Plan) begin(most int) {
	p.Frame, p.Predicted, p.Guarded, p.most = p.Frame[:0], p.Predicted[:0], false, most
}

// over clears all references to memory.
func (p *Plan) over() {
	clear(p.Frame)
	clear(p.Predicted)
	p.Frame, p.Predicted = p.Frame[:0], p.Predicted[:0]
}

// MaxAhead is the greatest number of bytes to read before the headers are known. If the prediction
// is wrong, all of the bytes must be copied.
const MaxAhead = 1 << 20

const (
	maxHeader = 64 // longest header of a predicted frame

	// minPredictions and maxPredictions bound the number of frames predicted at a time. The number
	// depends on the success of earlier predictions.
	minPredictions = 4
	maxPredictions = 36
)

// An ahead is a receiver's record of predictions.
type ahead struct {
	never  bool  // memory of a prediction was unmapped
	right  bool  // the last long frame was predicted correctly
	peeked bool  // the socket is set to peek past the next bytes
	atOnce uint8 // number of frames predicted at a time; 0: minPredictions
	worth  budget.Budget
}

// mayPredict returns how many frames the protocol may predict for the next read. It returns 0
// unless long frames arrived recently.
func (r *receiver) mayPredict() int {
	if r.ahead.never || !r.large || r.fill > 0 || !r.ahead.worth.Worth() {
		return 0
	}
	return max(int(r.ahead.atOnce), minPredictions)
}

// LooksAhead reports whether the system supports LookAhead: true until a peek has failed.
func LooksAhead() bool { return sock.PeeksAhead() }

// Ahead returns the number of arrived bytes readable by LookAhead: 0 if LooksAhead is false.
func (c *Conn) Ahead() int {
	if !sock.PeeksAhead() {
		return 0
	}
	return c.Pending()
}

// LookAhead fills p with unread bytes, beginning off bytes after the next unread byte, and reports
// whether all len(p) bytes had arrived. The bytes remain unread. With LookAhead a protocol can
// proceed from header to header instead of predicting. A peek costs a small part of a read. Only
// Plan may call LookAhead.
func (c *Conn) LookAhead(off int, p []byte) bool {
	c.rx.ahead.peeked = true
	n, err := c.sock.Load().PeekAt(off, p)
	return err == nil && n == len(p)
}

// plan returns the protocol's places for the next bytes, with at most most predictions. If there
// are no places, the caller stages the bytes.
func (c *Conn) plan(most int) *Plan {
	r := &c.rx
	p := &r.stage.plan
	p.begin(most)
	c.planner.Plan(p)
	if r.ahead.peeked {
		r.ahead.peeked = false
		c.sock.Load().PeekFront()
	}
	return p
}

// readPlan makes one read call, to fill the places of the current frame, then the predicted frames,
// then staging. Bytes of a wrong prediction are staged as if nothing had been predicted. n is the
// number of bytes read. room is the number of bytes the call could have read.
func (c *Conn) readPlan(from *sock.Socket, p *Plan) (n, room int, err error) {
	r := &c.rx
	iov := p.Frame
	frame := 0
	for _, b := range iov {
		frame += len(b)
	}
	room = frame
	if frame == r.missing {
		for _, f := range p.Predicted {
			iov = append(iov, f.Header, f.Place)
			room += len(f.Header) + len(f.Place)
		}
	}
	places := room
	if frame == r.missing {
		iov = append(iov, r.stage.b[:r.glimpse()])
		room += r.glimpse()
	}
	p.Frame = iov
	defer p.over()
	n, err = r.readV(from, iov, p.Guarded)
	come := max(n, 0)
	if p.Guarded && n > 0 && n < places {
		// The read may have ended at unmapped memory, so n does not show whether more bytes have
		// arrived.
		room = n
	}
	taken, missing, lerr := c.planner.Landed(p, min(frame, come), max(come-frame, 0))
	if lerr != nil {
		return n, room, lerr
	}
	r.missing = missing
	if len(p.Predicted) > 0 && errors.Is(err, syscall.EFAULT) {
		// The memory of a prediction is unmapped, and nothing was read. The second read has no
		// predictions.
		r.ahead.never = true
		return c.read()
	}
	if err == nil && n == 0 {
		err = c.eof()
	}
	if err != nil {
		return n, room, err
	}
	r.judge(p, come-frame, taken)
	rest := func() { r.stageRest(iov, min(frame, come)+taken, come) }
	if p.Guarded { // the bytes are lost if the memory was unmapped meanwhile
		return n, room, regmem.Guard(rest)
	}
	rest()
	return n, room, nil
}

// readV reads into iov. mayFault means that memory of iov may be unmapped; the error is then
// EFAULT, whether the kernel or this process moves the bytes.
func (r *receiver) readV(from *sock.Socket, iov [][]byte, mayFault bool) (n int, err error) {
	if !mayFault || from.ByKernel() {
		return from.ReadV(iov, &r.stage.vecs)
	}
	before := from.Taken()
	if regmem.Guard(func() { n, err = from.ReadV(iov, &r.stage.vecs) }) == nil {
		return n, err
	}
	if n = int(from.Taken() - before); n == 0 {
		return 0, syscall.EFAULT
	}
	return n, nil
}

// judge records which predictions of p were right. n bytes arrived after the current frame, and the
// protocol consumed the first taken of them.
func (r *receiver) judge(p *Plan, n, taken int) {
	at := 0
	for i, f := range p.Predicted {
		payload := at + len(f.Header)
		if n <= payload {
			return
		}
		r.ahead.right = taken > payload
		if !r.ahead.right {
			r.ahead.atOnce = 0
			r.ahead.worth.Miss(&budget.Ahead)
			return
		}
		r.glimpses = 0
		r.ahead.worth.Hit(&budget.Ahead)
		if at = payload + len(f.Place); at > n {
			if i > 0 {
				r.trusted()
			}
			return
		}
	}
	if len(p.Predicted) > 0 {
		r.trusted()
	}
}

// trusted raises the number of frames predicted at a time.
func (r *receiver) trusted() {
	r.ahead.atOnce = min(max(2*r.ahead.atOnce, 2*minPredictions), maxPredictions)
}

// stageRest stages the bytes the protocol did not consume: n bytes were read into iov, and the
// protocol consumed the first taken. The last piece of iov is staging itself. Bytes for which
// staging has no room are kept in early.
func (r *receiver) stageRest(iov [][]byte, taken, n int) {
	for taken >= len(iov[0]) && taken < n {
		taken -= len(iov[0])
		n -= len(iov[0])
		iov = iov[1:]
	}
	// This piece has all remaining bytes.
	if rest := iov[0][min(taken, len(iov[0])):]; len(rest) >= n-taken {
		r.fill = n - taken
		if len(iov) > 1 || taken > 0 {
			copy(r.stage.b[:], rest[:r.fill])
		}
		return
	}
	all := make([]byte, 0, n-taken)
	for _, b := range iov {
		b = b[:min(len(b), n)]
		n -= len(b)
		k := min(taken, len(b))
		taken -= k
		all = append(all, b[k:]...)
	}
	r.early = all
	r.fill = 0
	r.refill()
}

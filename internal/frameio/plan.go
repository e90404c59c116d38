package frameio

import (
	"errors"
	"syscall"

	"viaduct/internal/budget"
	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

// A Plan names the places for the bytes of the next read: the missing bytes of the current frame,
// then the frames that the protocol predicts. One read thereby puts many long frames in place.
// Fewer reads also make sender and receiver contend less for the socket.
type Plan struct {
	// Frame holds the places of the missing bytes of the current frame: of all of them or of the
	// first ones.
	Frame [][]byte

	// Predicted holds the frames that should follow. They are read only if Frame has room for all
	// missing bytes.
	Predicted []Prediction

	// Guarded means that the memory of these places may be unmapped. A read that fails for that
	// reason ends the connection if a byte belongs there.
	Guarded bool

	most  int // of Predicted
	heads [maxPredictions][maxHeader]byte
}

// A Prediction is a frame of which no byte has been consumed yet.
type Prediction struct {
	Header []byte // the bytes between the previous payload and this one, once they have arrived
	Place  []byte // predicted place of the payload, of its length; may be overwritten by other bytes
}

// Room reports whether another frame may be predicted.
func (p *Plan) Room() bool { return len(p.Predicted) < p.most }

// Predict adds a frame. header is the number of bytes, 1 to 64, between the previous payload and
// its own, and place is where its payload belongs. There must be room for it. All frames together
// should have about [MaxAhead] bytes.
func (p *Plan) Predict(header int, place []byte) {
	n := len(p.Predicted)
	p.Predicted = append(p.Predicted, Prediction{p.heads[n][:header], place})
}

// begin empties p for a read with up to most predictions.
func (p *Plan) begin(most int) {
	p.Frame, p.Predicted, p.Guarded, p.most = p.Frame[:0], p.Predicted[:0], false, most
}

// over drops all references to memory.
func (p *Plan) over() {
	clear(p.Frame)
	clear(p.Predicted)
	p.Frame, p.Predicted = p.Frame[:0], p.Predicted[:0]
}

// MaxAhead is the largest number of bytes that should be read ahead of their headers: so many must
// be copied if the prediction is wrong.
const MaxAhead = 1 << 20

const (
	maxHeader = 64 // longest header of a predicted frame

	// minPredictions and maxPredictions bound the number of frames predicted at a time, which
	// depends on whether predictions were right.
	minPredictions = 4
	maxPredictions = 36
)

// wrong is the back-off of predicting: many right predictions make up for one wrong one.
var wrong = budget.Rule{Hits: 32, Max: 255}

// An ahead is a receiver's record of predictions.
type ahead struct {
	never  bool  // memory of a prediction was unmapped
	right  bool  // the last long frame was predicted correctly
	peeked bool  // the socket peeks past the next bytes
	atOnce uint8 // frames predicted at a time
	worth  budget.Budget
}

// mayPredict returns how many frames the protocol may predict for the next read: none unless long
// frames arrived recently.
func (r *receiver) mayPredict() int {
	if r.ahead.never || !r.large || r.fill > 0 || !r.ahead.worth.Worth() {
		return 0
	}
	return max(int(r.ahead.atOnce), minPredictions)
}

// LooksAhead reports whether LookAhead can work on this system, as far as is known.
func LooksAhead() bool { return sock.PeeksAhead() }

// Ahead returns the number of arrived bytes that LookAhead can read.
func (c *Conn) Ahead() int {
	if !sock.PeeksAhead() {
		return 0
	}
	return c.Pending()
}

// LookAhead fills p with unread bytes, starting off bytes after the next one, and reports whether
// enough had arrived. The bytes remain unread. A protocol can therefore walk from header to header
// instead of guessing. A peek costs a small part of a read, and the peer nothing. Only Plan may
// call it.
func (c *Conn) LookAhead(off int, p []byte) bool {
	c.rx.ahead.peeked = true
	n, err := c.sock.Load().PeekAt(off, p)
	return err == nil && n == len(p)
}

// plan asks the protocol where the next bytes belong, with up to most predictions. Without an
// answer they are staged.
func (c *Conn) plan(most int) (*Plan, error) {
	r := &c.rx
	p := &r.stage.plan
	p.begin(most)
	err := c.planner.Plan(p)
	if r.ahead.peeked {
		r.ahead.peeked = false
		c.sock.Load().PeekFront()
	}
	return p, err
}

// readPlan makes one read call that fills the places of the current frame, then the predicted
// frames, then staging. Bytes of a wrong prediction are staged as if nothing had been predicted.
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
		room = n // the read may have ended at unmapped memory, and does not show whether more bytes have arrived
	}
	taken, missing, lerr := c.planner.Landed(p, min(frame, come), max(come-frame, 0))
	if lerr != nil {
		return n, room, lerr
	}
	r.missing = missing
	if len(p.Predicted) > 0 && errors.Is(err, syscall.EFAULT) {
		// Nothing was read because a predicted place has faulted. Read again without predictions.
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

// readV reads to iov. If mayFault is set, memory of iov may be unmapped: then the error is EFAULT,
// whether the kernel or this process moves the bytes.
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

// judge records which predictions were right. n bytes arrived after the current frame, and the
// protocol consumed taken of them.
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
			r.ahead.worth.Miss(&wrong)
			return
		}
		r.glimpses = 0
		r.ahead.worth.Hit(&wrong)
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

// stageRest stages the bytes that the protocol did not consume, of n bytes read to iov. The last
// piece of iov is staging itself. Bytes beyond the room of staging are kept in early.
func (r *receiver) stageRest(iov [][]byte, taken, n int) {
	for taken >= len(iov[0]) && taken < n {
		taken -= len(iov[0])
		n -= len(iov[0])
		iov = iov[1:]
	}
	if rest := iov[0][min(taken, len(iov[0])):]; len(rest) >= n-taken { // all remaining bytes are in this piece
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

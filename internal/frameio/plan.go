package frameio

import (
	"errors"
	"syscall"

	"viaduct/internal/budget"
	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

// A Plan tells where the bytes of the next read belong: those that are missing of
// the frame in progress, and behind them the frames that the protocol predicts. So
// one read brings many long frames into place: the fewer reads there are, the less
// do sender and receiver get in each other's way.
type Plan struct {
	// Frame is where the missing bytes of the frame in progress belong: all of
	// them, or some that come first.
	Frame [][]byte

	// Predicted are the frames behind that one. They are read to only if Frame
	// has all that is missing.
	Predicted []Prediction

	// MayFault tells that memory of these places may be gone: reading to it is an
	// error then, which ends the connection if something belongs there.
	MayFault bool

	most  int // of Predicted
	heads [maxPredictions][maxHeader]byte
}

// A Prediction is a frame of which nothing has come yet, or nothing that was taken.
type Prediction struct {
	Header []byte // the bytes between the payload before and this one, once they have come
	Place  []byte // where the payload belongs, as long as it is; written to whatever comes
}

// Room reports whether another frame may be predicted.
func (p *Plan) Room() bool { return len(p.Predicted) < p.most }

// Predict adds a frame with so many bytes, 1 to 64, between the payload before and its
// own, which belongs at place. There must be room for it. All frames together should have
// about [MaxAhead] bytes.
func (p *Plan) Predict(header int, place []byte) {
	n := len(p.Predicted)
	p.Predicted = append(p.Predicted, Prediction{p.heads[n][:header], place})
}

// begin empties p for a read with up to so many predictions.
func (p *Plan) begin(most int) {
	p.Frame, p.Predicted, p.MayFault, p.most = p.Frame[:0], p.Predicted[:0], false, most
}

// over lets go of all memory.
func (p *Plan) over() {
	clear(p.Frame)
	clear(p.Predicted)
	p.Frame, p.Predicted = p.Frame[:0], p.Predicted[:0]
}

// MaxAhead is how many bytes should be read ahead of their headers at most: as many
// are copied if they turn out to be something else.
const MaxAhead = 1 << 20

const (
	maxHeader = 64 // longest header of a predicted frame

	// minPredictions and maxPredictions are how many frames are predicted at a time
	// at most, depending on whether predictions were right.
	minPredictions = 4
	maxPredictions = 36
)

// wrong is how predicting backs off: it takes many right predictions to make up for
// a wrong one.
var wrong = budget.Rule{Hits: 32, Max: 255}

// ahead is what a receiver keeps about predictions.
type ahead struct {
	never  bool  // memory of a prediction was gone
	right  bool  // the last long frame was where it was predicted
	peeked bool  // the socket shows what is behind the next bytes
	atOnce uint8 // frames predicted at a time
	worth  budget.Budget
}

// mayPredict returns how many frames the protocol may predict for the next read: none
// unless long ones came not long ago.
func (r *receiver) mayPredict() int {
	if r.ahead.never || !r.large || r.fill > 0 || !r.ahead.worth.Worth() {
		return 0
	}
	return max(int(r.ahead.atOnce), minPredictions)
}

// LooksAhead tells whether LookAhead is of any use on this system, for all that is known.
func LooksAhead() bool { return sock.PeeksAhead() }

// Ahead returns how many bytes have arrived and can be looked at by LookAhead.
func (c *Conn) Ahead() int {
	if !sock.PeeksAhead() {
		return 0
	}
	return c.Pending()
}

// LookAhead tells whether p could be filled with what follows off bytes of those that
// have arrived and were not read. They stay. A protocol that follows the headers of
// frames so, each to where the next one is, need not guess. A look costs a small part
// of a read, and the peer nothing. To be called by Plan only.
func (c *Conn) LookAhead(off int, p []byte) bool {
	c.rx.ahead.peeked = true
	n, err := c.sock.Load().PeekAt(off, p)
	return err == nil && n == len(p)
}

// plan asks the protocol where the next bytes belong, with up to so many predictions.
// Without an answer they go to staging.
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

// readPlan makes one read call: into the places of the frame in progress, then into
// those that were predicted, and what follows them into staging. What turns out to be
// something else is staged as if it had not been predicted.
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
	n, err = r.readV(from, iov, p.MayFault)
	come := max(n, 0)
	if p.MayFault && n > 0 && n < places {
		room = n // it ended where memory is gone, perhaps, and says nothing of whether there is more
	}
	taken, missing, lerr := c.planner.Landed(p, min(frame, come), max(come-frame, 0))
	if lerr != nil {
		return n, room, lerr
	}
	r.missing = missing
	if len(p.Predicted) > 0 && errors.Is(err, syscall.EFAULT) {
		// Nothing was read. What is in progress, and what comes, has its own try.
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
	if p.MayFault { // what came is lost if the memory is gone meanwhile
		return n, room, regmem.Guard(rest)
	}
	rest()
	return n, room, nil
}

// readV reads to iov, whose memory may be gone if mayFault is set: what did not find a place
// then is EFAULT, whatever moves the bytes.
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

// judge sees which predictions were right, by how many of the n bytes that came behind
// the frame in progress the protocol has taken.
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

// trusted has more frames predicted at a time.
func (r *receiver) trusted() {
	r.ahead.atOnce = min(max(2*r.ahead.atOnce, 2*minPredictions), maxPredictions)
}

// stageRest stages what the protocol has left of the n bytes read to iov, whose last
// piece is staging already, and sets aside what is too much for it.
func (r *receiver) stageRest(iov [][]byte, taken, n int) {
	for taken >= len(iov[0]) && taken < n {
		taken -= len(iov[0])
		n -= len(iov[0])
		iov = iov[1:]
	}
	if rest := iov[0][min(taken, len(iov[0])):]; len(rest) >= n-taken { // all that is left is here
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

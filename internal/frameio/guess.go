package frameio

import (
	"errors"

	"viaduct/internal/budget"
	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

// A Guesser is a Protocol that can tell where the payload of long frames would
// belong of which nothing has come yet. One read then brings many frames into
// place: the fewer reads there are, the less do sender and receiver get in each
// other's way. [receive role]
type Guesser interface {
	// Guess appends to g what will probably follow the frame in progress, or what
	// was handled if there is none; up to the capacity of g, and about MaxAhead
	// bytes. The memory is written to although something else comes. It is pinned
	// until GuessesOver.
	Guess(g []Guess) []Guess

	// Guessed tells that the header of g has come, that the payload is in place as
	// far as it has come, and that left bytes have come from the header on, those
	// of the guesses behind g among them. If that is a frame as long as it was
	// guessed, the protocol takes it, moves the payload if it belongs elsewhere, and
	// returns how many bytes of it are missing. If it is not, the error is
	// ErrWrongGuess, and all but the first taken bytes are shown to Receive. Any
	// other error ends the connection.
	Guessed(header []byte, g Guess, left int) (taken, direct int, err error)

	// GuessesOver follows the last Guessed of each read that guesses were made
	// for.
	GuessesOver()
}

// A Guess is what a frame will look like, by guess.
type Guess struct {
	Header int    // bytes between the payload before and this one, at most 64
	Place  []byte // where the payload belongs, as long as it is
}

// ErrWrongGuess is returned by a Guesser if something else came than it guessed.
var ErrWrongGuess = errors.New("frameio: wrong guess")

// MaxAhead is how many bytes should be read ahead of their headers at most: as many
// are copied if they turn out to be something else.
const MaxAhead = 1 << 20

const (
	maxGuessed = 64 // longest header of a frame whose payload's place is guessed

	// minGuesses and maxGuesses are how many frames are guessed at a time at most,
	// depending on whether guesses were right.
	minGuesses = 4
	maxGuesses = 36
)

// wrong is how guessing backs off: it takes many right guesses to make up for a
// wrong one.
var wrong = budget.Rule{Hits: 32, Max: 255}

// ahead is what a receiver keeps about guesses.
type ahead struct {
	guesser Guesser // the protocol, if it is one
	right   bool    // the last long frame was where it was guessed to be
	peeked  bool    // the socket shows what is behind the next bytes
	atOnce  uint8   // frames guessed at a time
	worth   budget.Budget
}

// guess asks the protocol what will come.
func (c *Conn) guess() []Guess {
	r := &c.rx
	if r.ahead.guesser == nil || !r.large || r.fill > 0 || !r.ahead.worth.Worth() {
		return nil
	}
	g := r.ahead.guesser.Guess(r.stage.guesses[:0:max(int(r.ahead.atOnce), minGuesses)])
	if r.ahead.peeked {
		r.ahead.peeked = false
		c.sock.Load().PeekFront()
	}
	return g
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
// have arrived and were not read. They stay. A Guesser that follows the headers of
// frames so, each to where the next one is, need not guess. A look costs a small part
// of a read, and the peer nothing. To be called by Guess only.
func (c *Conn) LookAhead(off int, p []byte) bool {
	c.rx.ahead.peeked = true
	n, err := c.sock.Load().PeekAt(off, p)
	return err == nil && n == len(p)
}

// readGuessed makes one read call: into the places of the frame in progress, if
// there is one, then into those that were guessed, and what follows them into
// staging. What turns out to be something else is staged as if no guess had been
// made.
func (c *Conn) readGuessed(from *sock.Socket, iov [][]byte, guesses []Guess) (n, room int, err error) {
	r := &c.rx
	want := r.direct
	for i, g := range guesses {
		iov = append(iov, r.stage.heads[i][:g.Header], g.Place)
	}
	iov = append(iov, r.stage.b[:r.glimpse()])
	for _, v := range iov {
		room += len(v)
	}
	n, err = from.ReadV(iov, &r.stage.vecs)
	room = c.room(n, room-len(iov[len(iov)-1]), room)
	clear(iov)
	r.stage.iov = iov[:0]
	if len(guesses) > 0 {
		defer func() {
			r.ahead.guesser.GuessesOver()
			clear(guesses)
		}()
	}
	if want > 0 {
		placed := min(max(n, 0), want)
		if derr := c.proto.DirectDone(placed); derr != nil {
			return n, room, derr
		}
		r.direct -= placed
	}
	if err == nil && n == 0 {
		err = c.eof()
	}
	if err != nil {
		return n, room, err
	}
	r.fill, err = r.settle(guesses, max(n-want, 0))
	return n, room, err
}

// settle sees which guesses were right for the n bytes that came behind the
// frame in progress, and returns how many bytes are staged.
func (r *receiver) settle(guesses []Guess, n int) (int, error) {
	for i, g := range guesses {
		head := r.stage.heads[i][:g.Header]
		if n <= len(head) {
			return copy(r.stage.b[:], head[:n]), nil
		}
		taken, direct, err := r.ahead.guesser.Guessed(head, g, n)
		if r.ahead.right = err == nil; err == ErrWrongGuess {
			r.ahead.atOnce = 0
			r.ahead.worth.Miss(&wrong)
			return r.takeBack(guesses[i:], i, taken, n)
		} else if err != nil {
			return 0, err
		}
		r.glimpses = 0
		r.ahead.worth.Hit(&wrong)
		if r.direct = direct; direct > 0 {
			if i > 0 {
				r.trusted()
			}
			return 0, nil
		}
		n -= len(head) + len(g.Place)
	}
	if len(guesses) > 0 {
		r.trusted()
	}
	return n, nil
}

// trusted has more frames guessed at a time.
func (r *receiver) trusted() { r.ahead.atOnce = min(max(2*r.ahead.atOnce, 2*minGuesses), maxGuesses) }

// takeBack stages the n bytes that came from the header of a guess that was
// wrong on, but for those taken, and sets aside what is too much for it.
// first is the number of that guess. The error is that the memory has gone meanwhile,
// and with it what came.
func (r *receiver) takeBack(guesses []Guess, first, taken, n int) (int, error) {
	all := make([]byte, 0, n)
	err := regmem.Guard(func() {
		for i, g := range guesses {
			head := r.stage.heads[first+i][:g.Header]
			all = append(all, head[:min(len(head), n-len(all))]...)
			all = append(all, g.Place[:min(len(g.Place), n-len(all))]...)
		}
	})
	if err != nil {
		return 0, err
	}
	all = append(all, r.stage.b[:n-len(all)]...)
	r.early = all[taken:]
	r.fill = 0
	r.refill()
	return r.fill, nil
}

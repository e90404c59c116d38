package frameio

import (
	"errors"
	"runtime"
	"sync/atomic"
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

	// Where guesses are often wrong they cost more than they save. Each wrong one
	// adds to the doubt, so many right ones take one off it, and after a wrong one
	// 2^doubt occasions are passed over.
	wrongDoubt = 2
	rightFrom  = 32
	maxDoubt   = 8
)

// guess asks the protocol what will come.
func (c *Conn) guess() []Guess {
	r := &c.rx
	if r.guesser == nil || !r.large || r.fill > 0 {
		return nil
	}
	if r.skip > 0 {
		r.skip--
		return nil
	}
	g := r.guesser.Guess(r.stage.guesses[:0:max(int(r.trust), minGuesses)])
	if r.looking {
		r.looking = false
		sysLookBack(c.sock.Load().fd)
	}
	return g
}

// blind tells that the system shows nothing but the next bytes: Linux before 6.9.
var blind atomic.Bool

// LooksAhead tells whether LookAhead is of any use on this system, for all that is known.
func LooksAhead() bool { return runtime.GOOS == "linux" && !blind.Load() }

// Ahead returns how many bytes have arrived and can be looked at by LookAhead.
func (c *Conn) Ahead() int {
	if blind.Load() {
		return 0
	}
	return c.Pending()
}

// LookAhead tells whether p could be filled with what follows off bytes of those that
// have arrived and were not read. They stay. A Guesser that follows the headers of
// frames so, each to where the next one is, need not guess. A look costs a small part
// of a read, and the peer nothing. To be called by Guess only.
func (c *Conn) LookAhead(off int, p []byte) bool {
	c.rx.looking = true
	n, err := sysLookAhead(c.sock.Load().fd, off, p)
	return err == nil && n == len(p)
}

// readGuessed makes one read call: into the places of the frame in progress, if
// there is one, then into those that were guessed, and what follows them into
// staging. What turns out to be something else is staged as if no guess had been
// made.
func (c *Conn) readGuessed(fd int, iov [][]byte, guesses []Guess) (n, room int, err error) {
	r := &c.rx
	want := r.direct
	for i, g := range guesses {
		iov = append(iov, r.stage.heads[i][:g.Header], g.Place)
	}
	iov = append(iov, r.stage.b[:r.glimpse()])
	for _, v := range iov {
		room += len(v)
	}
	n, err = c.sysReadv(fd, iov)
	clear(iov)
	r.stage.iov = iov[:0]
	if len(guesses) > 0 {
		defer func() {
			r.guesser.GuessesOver()
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
		taken, direct, err := r.guesser.Guessed(head, g, n)
		if r.guessed = err == nil; err == ErrWrongGuess {
			r.trust, r.right = 0, 0
			r.doubt = min(r.doubt+wrongDoubt, maxDoubt)
			r.skip = 1 << r.doubt
			return r.takeBack(guesses[i:], i, taken, n), nil
		} else if err != nil {
			return 0, err
		}
		r.glimpses = 0
		if r.right++; r.right == rightFrom {
			r.right, r.doubt = 0, max(r.doubt, 1)-1
		}
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
func (r *receiver) trusted() { r.trust = min(max(2*r.trust, 2*minGuesses), maxGuesses) }

// takeBack stages the n bytes that came from the header of a guess that was
// wrong on, but for those taken, and sets aside what is too much for it.
// first is the number of that guess.
func (r *receiver) takeBack(guesses []Guess, first, taken, n int) int {
	all := make([]byte, 0, n)
	for i, g := range guesses {
		head := r.stage.heads[first+i][:g.Header]
		all = append(all, head[:min(len(head), n-len(all))]...)
		all = append(all, g.Place[:min(len(g.Place), n-len(all))]...)
	}
	all = append(all, r.stage.b[:n-len(all)]...)
	r.early = all[taken:]
	r.fill = 0
	r.refill()
	return r.fill
}

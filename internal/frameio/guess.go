package frameio

// A Guesser is a Protocol that can tell where the payload of a long frame would
// belong of which nothing has come yet. One read then brings a whole frame into
// place. [receive role]
type Guesser interface {
	// Guess returns how many bytes of header come first, at most 64, and where
	// payload behind them probably belongs; nothing if it can't tell. The memory
	// must bear bytes that do not belong there: it may be written to although
	// something else comes.
	Guess() (header int, place []byte)

	// Guessed tells that the header has come and n bytes behind it, which are in
	// place. If that is a frame it could have begun in Receive, the protocol
	// begins it, moves the bytes if they belong elsewhere, and returns how many
	// bytes of payload are missing. If ok is false they are shown to Receive.
	Guessed(header []byte, n int) (direct int, ok bool)
}

// maxGuessed is the longest header of a frame whose payload's place is guessed.
const maxGuessed = 64

// readGuessed makes one read call whose bytes are probably h of a header and
// payload that belongs in place. If they turn out to be something else they are
// staged as if no guess had been made.
func (c *Conn) readGuessed(fd, h int, place []byte) (n, room int, err error) {
	r := &c.rx
	iov := append(r.iov[:0], r.head[:h], place, r.stage[:r.glimpse()])
	room = h + len(place) + r.glimpse()
	n, err = c.sysReadv(fd, iov)
	clear(iov)
	r.iov = iov[:0]
	switch {
	case err == nil && n == 0:
		return n, room, c.eof()
	case err != nil:
		return n, room, err
	case n <= h:
		r.fill = copy(r.stage[:], r.head[:n])
		return n, room, nil
	}
	placed := min(n-h, len(place))
	r.fill = n - h - placed
	if r.direct, r.guessed = r.guesser.Guessed(r.head[:h], placed); r.guessed {
		return n, room, nil
	}
	copy(r.stage[h+placed:], r.stage[:r.fill])
	copy(r.stage[h:], place[:placed])
	copy(r.stage[:], r.head[:h])
	r.fill = n
	return n, room, nil
}

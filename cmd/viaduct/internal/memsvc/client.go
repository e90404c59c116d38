package memsvc

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/store"
)

// Pieces of a transfer: big enough to cost nothing per byte, small enough that
// the window of them stays in the cache while it is hashed and written. A
// connection that takes only shorter messages gets shorter pieces. [V-14]
const (
	pieceBytes = 256 << 10
	maxWindow  = 16
)

// How long a server may keep a client waiting: for the next piece of a transfer or for
// an answer; and for that to a close, which has it read and hash the range, for each
// byte of the range besides. A server that was stopped keeps its connections.
const (
	stallTime    = 30 * time.Second
	hashTimeByte = 100 * time.Nanosecond // 10 MB/s
)

// ErrStalled means that the server did nothing for so long that it is given up.
var ErrStalled = fmt.Errorf("the server has stopped answering: %w", os.ErrDeadlineExceeded)

// ErrChanged means that the bytes received are not those the server has.
var ErrChanged = errors.New("SHA-256 differs from the server's: the file changed, or was damaged on the way")

// ErrTakenBack is what Get returns for a file that was cut short meanwhile.
var ErrTakenBack = errors.New("the server's file shrank, or was taken away, while it was being read")

// ErrSourceShrank is what Put returns for a file that became shorter meanwhile.
var ErrSourceShrank = errors.New("the file shrank while it was being sent")

// A takenBackError says what an access error means for a file that was granted:
// the mapping of a file that is cut short faults, and the server's protocol
// engine reports memory that is not there.
type takenBackError struct{ cause error }

func (e *takenBackError) Error() string   { return ErrTakenBack.Error() }
func (e *takenBackError) Unwrap() []error { return []error{ErrTakenBack, e.cause} }

// A Client asks a memory service on one connection. It is for one goroutine.
type Client struct {
	conn  msg.Conn
	piece int        // bytes moved by one RDMA Read or Write
	buf   []byte     // the window of pieces
	reg   msg.Region // of buf
}

// NewClient uses conn, which stays the caller's to close.
func NewClient(conn msg.Conn) (*Client, error) {
	return &Client{conn: conn, piece: min(pieceBytes, conn.MaxMessage())}, nil
}

// window returns how many pieces may be on their way at once, with memory for
// them.
func (c *Client) window(depth int) (int, error) {
	n := max(1, min(depth, maxWindow))
	if c.reg == nil {
		c.buf = make([]byte, maxWindow*c.piece)
		var err error
		if c.reg, err = c.conn.Register(c.buf, 0); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Close gives back the client's memory.
func (c *Client) Close() {
	if c.reg != nil {
		c.reg.Close()
		c.reg = nil
	}
}

// bounded calls wait with a context that ends after d.
func bounded(ctx context.Context, d time.Duration, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, ErrStalled)
	defer cancel()
	err := wait(ctx)
	if err != nil && context.Cause(ctx) == ErrStalled {
		return fmt.Errorf("%w: nothing for %v", ErrStalled, d.Round(time.Second))
	}
	return err
}

// ask sends a request and waits for its answer. The server hashes hashed bytes for it.
func (c *Client) ask(ctx context.Context, q request, hashed int64) (r reply, err error) {
	err = bounded(ctx, stallTime+time.Duration(hashed)*hashTimeByte, func(ctx context.Context) error {
		r, err = c.exchange(ctx, q)
		return err
	})
	return r, err
}

func (c *Client) exchange(ctx context.Context, q request) (reply, error) {
	b := encode(q)
	if most := min(MaxMessage, c.conn.MaxMessage()); len(b) > most {
		return reply{}, fmt.Errorf("the path is too long: the request has %d bytes, at most %d", len(b), most)
	}
	if err := c.conn.Send(ctx, msg.Message{Data: b}); err != nil {
		return reply{}, err
	}
	m, err := c.conn.Recv(ctx)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return reply{}, err
	}
	var r reply
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrNotServed, err)
	}
	if !r.OK && r.Error == "" { // an echo server's
		return reply{}, ErrNotServed
	}
	if !r.OK {
		return reply{}, fmt.Errorf("%w to %s %q: %s", ErrRefused, q.Op, q.Path, r.Error)
	}
	return r, nil
}

// open asks for a range and checks the answer.
func (c *Client) open(ctx context.Context, q request) (at msg.Remote, length, size int64, err error) {
	r, err := c.ask(ctx, q, 0)
	if err != nil {
		return at, 0, 0, err
	}
	if r.Handle == nil || r.Length == nil || *r.Length < 0 {
		return at, 0, 0, errors.New("the server's answer lacks handle or length")
	}
	at.Handle = *r.Handle
	if at.Address, err = parseAddress(r.Address); err != nil {
		return at, 0, 0, fmt.Errorf("the server's answer makes no sense: %w", err)
	}
	if r.Size != nil {
		size = *r.Size
	}
	return at, *r.Length, size, nil
}

// Get reads a file from offset to its end by RDMA Read and writes the bytes to
// w and to h, in order. begin, if not nil, is told the number of bytes to come
// and the size of the whole file before the first; progress is told of each
// piece. The bytes that came were compared with the server's SHA-256 of that range
// when the error is nil. h must be fresh, since its sum is compared.
func (c *Client) Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error {
	at, length, size, err := c.open(ctx, request{Op: "open", Path: path, Mode: "read", Offset: offset})
	if err != nil {
		return err
	}
	if begin != nil {
		begin(length, size)
	}
	_, depth := c.conn.Depth()
	if err := c.pump(ctx, at, length, depth, c.conn.PostRead, nil, func(b []byte) error {
		h.Write(b)
		if _, err := w.Write(b); err != nil {
			return err
		}
		if progress != nil {
			progress(len(b))
		}
		return nil
	}); err != nil {
		if access, ok := errors.AsType[*msg.RemoteAccessError](err); ok {
			return &takenBackError{access}
		}
		return err
	}
	r, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "read"}, length)
	if err != nil {
		return err
	}
	sum, err := parseSum(r.SHA256)
	if err != nil {
		return fmt.Errorf("the server's answer makes no sense: %w", err)
	}
	if !bytes.Equal(sum[:], h.Sum(nil)) {
		return ErrChanged
	}
	return nil
}

// Sum is the server's SHA-256 of the first n bytes of a file. Nothing is
// transferred.
func (c *Client) Sum(ctx context.Context, path string, n int64) (sum [32]byte, err error) {
	if n == 0 {
		return sum, errors.New("memsvc: a range of no bytes")
	}
	if _, _, _, err := c.open(ctx, request{Op: "open", Path: path, Mode: "read", Length: n}); err != nil {
		return sum, err
	}
	r, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "read"}, n)
	if err != nil {
		return sum, err
	}
	return parseSum(r.SHA256)
}

// Put stores length bytes of r under path by RDMA Write; h is fed with them
// and its sum verified by the server before the file becomes visible.
func (c *Client) Put(ctx context.Context, path string, length int64, r io.Reader, h hash.Hash, progress func(n int)) error {
	at, granted, _, err := c.open(ctx, request{Op: "open", Path: path, Mode: "write", Length: length})
	if err != nil {
		return err
	}
	if granted != length {
		return fmt.Errorf("the server opened %d bytes instead of %d", granted, length)
	}
	depth, _ := c.conn.Depth()
	if err := c.pump(ctx, at, length, depth, c.conn.PostWrite, func(b []byte) error {
		if _, err := io.ReadFull(r, b); err != nil {
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				err = ErrSourceShrank
			}
			return err
		}
		h.Write(b)
		return nil
	}, func(b []byte) error {
		if progress != nil {
			progress(len(b))
		}
		return nil
	}); err != nil {
		return err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	a, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "write", SHA256: sum}, length)
	if err != nil {
		return err
	}
	if a.SHA256 != sum {
		return ErrChanged
	}
	return nil
}

// PutStream stores the bytes of r up to its end under path by RDMA Write, a piece at a
// time; else it is as Put.
func (c *Client) PutStream(ctx context.Context, path string, r io.Reader, h hash.Hash, progress func(n int)) error {
	q := request{Path: path, Mode: "stream"}
	q.Op = "open"
	at, room, _, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	depth, _ := c.conn.Depth()
	for ended := false; !ended; {
		if room <= 0 {
			return errors.New("the server's answer has no room for a piece")
		}
		filled := int64(0)
		if filled, err = c.fill(ctx, at, room, depth, r, h, progress); err == io.EOF {
			ended, err = true, nil
		}
		if err == nil && filled > 0 {
			q.Op, q.Length = "extend", filled
			at, room, _, err = c.open(ctx, q)
		}
		if err != nil {
			return err
		}
	}
	sum := hex.EncodeToString(h.Sum(nil))
	a, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "stream", SHA256: sum}, 0)
	if err != nil {
		return err
	}
	if a.SHA256 != sum {
		return ErrChanged
	}
	return nil
}

// fill writes one piece of a stream, of at most room bytes. The error is io.EOF at the
// end of r.
func (c *Client) fill(ctx context.Context, at msg.Remote, room int64, depth int, r io.Reader, h hash.Hash, progress func(n int)) (filled int64, err error) {
	win, err := c.window(depth)
	if err != nil {
		return 0, err
	}
	var flight []int
	reap := func() error {
		n := flight[0]
		flight = flight[1:]
		err := bounded(ctx, stallTime, c.conn.Reap)
		if err == nil && progress != nil {
			progress(n)
		}
		return err
	}
	for slot := 0; filled < room && err == nil; slot = (slot + 1) % win {
		if len(flight) == win {
			if err := reap(); err != nil {
				return filled, err
			}
		}
		var n int
		b := c.buf[slot*c.piece:][:min(int64(c.piece), room-filled)]
		if n, err = io.ReadFull(r, b); err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		if err != nil && err != io.EOF {
			return filled, err
		}
		if n > 0 {
			h.Write(b[:n])
			if err := c.conn.PostWrite(c.reg, slot*c.piece, n, msg.Remote{Address: at.Address + uint64(filled), Handle: at.Handle}); err != nil {
				return filled, err
			}
			flight = append(flight, n)
			filled += int64(n)
		}
	}
	for len(flight) > 0 {
		if err := reap(); err != nil {
			return filled, err
		}
	}
	return filled, err
}

// pump moves length bytes in pieces through the window. before fills a piece
// that is about to be posted, after uses one that is done; both see the pieces
// in order.
func (c *Client) pump(ctx context.Context, at msg.Remote, length int64, depth int,
	post func(msg.Region, int, int, msg.Remote) error, before, after func([]byte) error) error {
	if length == 0 {
		return nil
	}
	win, err := c.window(depth)
	if err != nil {
		return err
	}
	type piece struct{ off, n int }
	var flight []piece
	slot := 0
	reap := func() error {
		p := flight[0]
		flight = flight[1:]
		if err := bounded(ctx, stallTime, c.conn.Reap); err != nil {
			return err
		}
		return after(c.buf[p.off:][:p.n])
	}
	for done := int64(0); done < length; {
		if len(flight) == win {
			if err := reap(); err != nil {
				return err
			}
		}
		p := piece{slot * c.piece, int(min(length-done, int64(c.piece)))}
		slot = (slot + 1) % win
		if before != nil {
			if err := before(c.buf[p.off:][:p.n]); err != nil {
				return err
			}
		}
		if err := post(c.reg, p.off, p.n, msg.Remote{Address: at.Address + uint64(done), Handle: at.Handle}); err != nil {
			return err
		}
		flight = append(flight, p)
		done += int64(p.n)
	}
	for len(flight) > 0 {
		if err := reap(); err != nil {
			return err
		}
	}
	return nil
}

// List lists a directory, by name. A listing that does not fit into one answer
// is asked for in parts.
func (c *Client) List(ctx context.Context, path string) (entries []store.Entry, err error) {
	after := ""
	for {
		r, err := c.ask(ctx, request{Op: "list", Path: path, After: after}, 0)
		if err != nil {
			return nil, err
		}
		if r.Entries == nil {
			return nil, errors.New("the server's answer lacks entries")
		}
		if es := *r.Entries; len(es) > 0 {
			if es[0].Name <= after {
				return nil, fmt.Errorf("the server does not go on with the listing of %q after %d entries (is it older?)", path, len(entries))
			}
			entries, after = append(entries, es...), es[len(es)-1].Name
		} else if r.More {
			return nil, errors.New("the server's listing has more entries but shows none")
		}
		if !r.More {
			return entries, nil
		}
	}
}

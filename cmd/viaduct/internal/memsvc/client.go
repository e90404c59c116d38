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
	"viaduct/cmd/viaduct/internal/token"
)

// pieceBytes is the length of a piece of a transfer, and maxWindow the number of pieces in flight.
// A piece is long enough to make the cost of messages irrelevant, and short enough that all pieces
// in flight stay in the cache during hashing and writing. On a connection for shorter messages,
// pieces are shorter. [V-14]
const (
	pieceBytes = 256 << 10
	maxWindow  = 16
)

// How long a client waits for the server. stallTime is for the next piece of a transfer, or for an
// answer. Before answering a close, the server reads and hashes the whole range. The client
// therefore waits hashTimeByte longer for each byte of the range. Time-outs are needed because the
// connections of a suspended or hung server stay open.
const (
	stallTime    = 30 * time.Second
	hashTimeByte = 100 * time.Nanosecond // 10 MB/s
)

// ErrStalled reports a server silent for so long that the client gave up.
var ErrStalled = fmt.Errorf("the server has stopped answering: %w", os.ErrDeadlineExceeded)

// ErrChanged reports received bytes that differ from the server's.
var ErrChanged = errors.New("SHA-256 differs from the server's: the file changed, or was damaged on the way")

// ErrTakenBack is the error of Get for a file truncated during the transfer.
var ErrTakenBack = errors.New("the server's file shrank, or was taken away, while it was being read")

// ErrSourceShrank is the error of Put for a file truncated during the transfer.
var ErrSourceShrank = errors.New("the file shrank while it was being sent")

// A takenBackError explains an access error for a granted range. If the file is truncated, the
// mapping faults, and the server's protocol engine reports memory that does not exist.
type takenBackError struct{ cause error }

func (e *takenBackError) Error() string   { return ErrTakenBack.Error() }
func (e *takenBackError) Unwrap() []error { return []error{ErrTakenBack, e.cause} }

// A Client is the client of a memory service on a connection. Only one goroutine may use a Client.
type Client struct {
	conn  msg.Conn
	piece int        // bytes moved by one RDMA Read or Write
	buf   []byte     // memory for all pieces in flight
	reg   msg.Region // buf, registered
}

// NewClient returns a client that uses conn. The caller must close both the client and conn.
func NewClient(conn msg.Conn) (*Client, error) {
	return &Client{conn: conn, piece: min(pieceBytes, conn.MaxMessage())}, nil
}

// window returns how many pieces may be in flight at once if the connection allows depth requests.
// The first call allocates memory for maxWindow pieces.
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

// Close releases the client's memory.
func (c *Client) Close() {
	if c.reg != nil {
		c.reg.Close()
		c.reg = nil
	}
}

// bounded calls wait with a context that ends after d. If the time d ends the wait, the error
// matches ErrStalled.
func bounded(ctx context.Context, d time.Duration, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, ErrStalled)
	defer cancel()
	err := wait(ctx)
	if err != nil && context.Cause(ctx) == ErrStalled {
		return fmt.Errorf("%w: nothing for %v", ErrStalled, d.Round(time.Second))
	}
	return err
}

// answerTime returns how long an answer may take if the server first hashes n bytes, or writes them
// to the disk.
func answerTime(n int64) time.Duration { return stallTime + time.Duration(n)*hashTimeByte }

// ask sends a request and waits for the answer. hashed is the number of bytes the server hashes
// before answering.
func (c *Client) ask(ctx context.Context, q request, hashed int64) (r reply, err error) {
	err = bounded(ctx, answerTime(hashed), func(ctx context.Context) error {
		r, err = c.exchange(ctx, q)
		return err
	})
	return r, err
}

func (c *Client) exchange(ctx context.Context, q request) (reply, error) {
	if err := c.send(ctx, q); err != nil {
		return reply{}, err
	}
	return c.receive(ctx, q)
}

func (c *Client) send(ctx context.Context, q request) error {
	b := encode(q)
	if most := min(MaxMessage, c.conn.MaxMessage()); len(b) > most {
		return fmt.Errorf("the path is too long: the request has %d bytes, at most %d", len(b), most)
	}
	return c.conn.Send(ctx, msg.Message{Data: b})
}

// receive waits for the answer to q. The error matches ErrRefused or an error of package token if
// the server refused, and ErrNotServed if another kind of server answered.
func (c *Client) receive(ctx context.Context, q request) (reply, error) {
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
	if !r.OK && r.Error == "" { // such as a message that an echo server returned
		return reply{}, ErrNotServed
	}
	for _, e := range []error{token.ErrMissing, token.ErrWrong} {
		if !r.OK && r.Error == e.Error() {
			return reply{}, fmt.Errorf("the server refused: %w", e)
		}
	}
	if !r.OK && q.Op == "auth" {
		return reply{}, fmt.Errorf("%w: %s", ErrRefused, r.Error)
	}
	if !r.OK {
		return reply{}, fmt.Errorf("%w to %s %q: %s", ErrRefused, q.Op, q.Path, r.Error)
	}
	return r, nil
}

// ErrNoToken is the error of Authenticate for a server without a token.
var ErrNoToken = errors.New("the server has no token, or is older than tokens")

// ErrImpostor is the error of Authenticate for a server that does not have the token.
var ErrImpostor = errors.New("the other side could not prove that it has the token: it is not the server that is meant")

// Authenticate proves possession of the token to the server, and asks for the same proof of the
// server. A server with a token answers no other request before.
func (c *Client) Authenticate(ctx context.Context, t *token.Token) error {
	mine := token.NewNonce()
	r, err := c.ask(ctx, request{Op: "auth", Nonce: hex.EncodeToString(mine[:])}, 0)
	if errors.Is(err, ErrRefused) {
		return fmt.Errorf("%w (%w)", ErrNoToken, err)
	}
	if err != nil {
		return err
	}
	n, err := parse32("nonce", r.Nonce)
	if err != nil {
		return fmt.Errorf("the server's answer makes no sense: %w", err)
	}
	theirs := token.Nonce(n)
	p := t.Prove(token.Client, mine, theirs)
	if r, err = c.ask(ctx, request{Op: "auth", Proof: hex.EncodeToString(p[:])}, 0); err != nil {
		return err
	}
	if b, err := parse32("proof", r.Proof); err != nil || !t.Verify(token.Server, mine, theirs, b) {
		return ErrImpostor
	}
	return nil
}

// open opens a range. open returns the memory lent by the server, the length of the range, and the
// size of the file, 0 if the answer has none.
func (c *Client) open(ctx context.Context, q request) (at msg.Remote, length, size int64, err error) {
	r, err := c.ask(ctx, q, 0)
	if err != nil {
		return at, 0, 0, err
	}
	if r.Handle == nil || r.Length == nil || *r.Length < 0 {
		return at, 0, 0, errors.New("the server's answer lacks handle or length")
	}
	if at, err = (piece{r.Address, *r.Handle}).remote(); err != nil {
		return at, 0, 0, err
	}
	if r.Size != nil {
		size = *r.Size
	}
	return at, *r.Length, size, nil
}

// Get reads a file from offset to the end by RDMA Read and writes the bytes to w and to h, in
// order. Before the first byte, Get calls begin, if not nil, with the number of bytes to transfer
// and the size of the whole file. Get calls progress after each piece. After a nil error, the
// received bytes match the server's SHA-256 of the range. h must be fresh, because the sum is
// compared.
func (c *Client) Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error {
	at, length, size, err := c.open(ctx, request{Op: "open", Path: store.Text(path), Mode: "read", Offset: offset})
	if err != nil {
		return err
	}
	if begin != nil {
		begin(length, size)
	}
	_, depth := c.conn.Depth()
	if err := c.pump(ctx, at, length, depth, func(b []byte) error {
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
	r, err := c.ask(ctx, request{Op: "close", Path: store.Text(path), Mode: "read"}, length)
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

// Sum returns the server's SHA-256 of the first n bytes of a file, n > 0. It transfers no data.
func (c *Client) Sum(ctx context.Context, path string, n int64) (sum [32]byte, err error) {
	if n == 0 {
		return sum, errors.New("memsvc: a range of no bytes")
	}
	if _, _, _, err := c.open(ctx, request{Op: "open", Path: store.Text(path), Mode: "read", Length: n}); err != nil {
		return sum, err
	}
	r, err := c.ask(ctx, request{Op: "close", Path: store.Text(path), Mode: "read"}, n)
	if err != nil {
		return sum, err
	}
	return parseSum(r.SHA256)
}

// pump reads length bytes of the server's memory at at, in pieces. depth is the limit of
// outstanding RDMA Reads. pump calls use with the bytes of each piece, in order.
func (c *Client) pump(ctx context.Context, at msg.Remote, length int64, depth int, use func([]byte) error) error {
	if length == 0 {
		return nil
	}
	win, err := c.window(depth)
	if err != nil {
		return err
	}
	type part struct{ off, n int }
	var flight []part
	slot := 0
	reap := func() error {
		p := flight[0]
		flight = flight[1:]
		if err := bounded(ctx, stallTime, c.conn.Reap); err != nil {
			return err
		}
		return use(c.buf[p.off:][:p.n])
	}
	for done := int64(0); done < length; {
		if len(flight) == win {
			if err := reap(); err != nil {
				return err
			}
		}
		p := part{slot * c.piece, int(min(length-done, int64(c.piece)))}
		slot = (slot + 1) % win
		if err := c.conn.PostRead(c.reg, p.off, p.n, msg.Remote{Address: at.Address + uint64(done), Handle: at.Handle}); err != nil {
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

// List returns the entries of a directory, sorted by name. List asks for a long listing in parts,
// because an answer has at most MaxMessage bytes.
func (c *Client) List(ctx context.Context, path string) (entries []store.Entry, err error) {
	var after store.Text
	for {
		r, err := c.ask(ctx, request{Op: "list", Path: store.Text(path), After: after}, 0)
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

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

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/store"
)

// Pieces of a transfer: big enough to cost nothing per byte, small enough that
// the window of them stays in the cache while it is hashed and written.
const (
	pieceBytes = 256 << 10
	maxWindow  = 16
)

// ErrChanged means that the bytes received are not those the server has.
var ErrChanged = errors.New("SHA-256 differs from the server's: the file changed, or was damaged on the way")

// A Client asks a memory service on one connection. It is for one goroutine.
type Client struct {
	conn msg.Conn
	buf  []byte     // the window of pieces
	reg  msg.Region // of buf
}

// NewClient uses conn, which stays the caller's to close.
func NewClient(conn msg.Conn) (*Client, error) {
	return &Client{conn: conn}, nil
}

// window returns how many pieces may be on their way at once, with memory for
// them.
func (c *Client) window(depth int) (int, error) {
	n := max(1, min(depth, maxWindow))
	if c.reg == nil {
		c.buf = make([]byte, maxWindow*pieceBytes)
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

// ask sends a request and waits for its answer.
func (c *Client) ask(ctx context.Context, q request) (reply, error) {
	b := encode(q)
	if len(b) > MaxMessage {
		return reply{}, fmt.Errorf("the path is too long: the request has %d bytes, at most %d", len(b), MaxMessage)
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
		return reply{}, fmt.Errorf("the server's answer makes no sense: %w", err)
	}
	if !r.OK {
		return reply{}, fmt.Errorf("%w to %s %q: %s", ErrRefused, q.Op, q.Path, r.Error)
	}
	return r, nil
}

// open asks for a range and checks the answer.
func (c *Client) open(ctx context.Context, q request) (at msg.Remote, length, size int64, err error) {
	r, err := c.ask(ctx, q)
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
		return err
	}
	r, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "read"})
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
	r, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "read"})
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
				err = errors.New("the file shrank while it was being sent")
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
	a, err := c.ask(ctx, request{Op: "close", Path: path, Mode: "write", SHA256: sum})
	if err != nil {
		return err
	}
	if a.SHA256 != sum {
		return ErrChanged
	}
	return nil
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
		if err := c.conn.Reap(ctx); err != nil {
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
		p := piece{slot * pieceBytes, int(min(length-done, pieceBytes))}
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

// List lists a directory; more says that the server cut the listing.
func (c *Client) List(ctx context.Context, path string) (entries []store.Entry, more bool, err error) {
	r, err := c.ask(ctx, request{Op: "list", Path: path})
	if err != nil {
		return nil, false, err
	}
	if r.Entries == nil {
		return nil, false, errors.New("the server's answer lacks entries")
	}
	return *r.Entries, r.More, nil
}

package verbs

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/samehost"
)

// A fileClient fetches and stores files on a server, by the mechanisms of a transport.
type fileClient interface {
	// Get fetches path from offset to the end and writes the bytes to w and h. h already holds the
	// bytes before offset. begin gets the number of bytes to fetch and the size of the file,
	// progress the length of each piece; both may be nil. With a nil error, all fetched bytes are
	// verified.
	Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error
	// Put stores length bytes of r. It may read r again from the start. It also writes the bytes to
	// h. h must be empty.
	Put(ctx context.Context, path string, length int64, r io.ReadSeeker, h hash.Hash, progress func(n int)) error
	// PutStream stores the bytes of r up to the end, and writes the bytes to h. h must be empty.
	PutStream(ctx context.Context, path string, r io.Reader, h hash.Hash, progress func(n int)) error
	// PrefixSum returns the SHA-256 of the first n bytes at the server. known is false if the
	// server cannot compute the sum without sending the bytes.
	PrefixSum(ctx context.Context, path string, n int64) (sum [32]byte, known bool, err error)
	// List returns the entries of a directory, sorted by name.
	List(ctx context.Context, path string) ([]store.Entry, error)
	Close()
	// Path reports whether the bytes go through shared memory.
	Path() samehost.Path
	// Mechanisms returns how the transport fetches and stores bytes, for messages.
	Mechanisms() (get, put string)
}

// dialFiles connects to a server, and counts the transfers in the metrics.
func dialFiles(ctx context.Context, e *shell.Env, u *addr.URL, t *transport.Transport, o *transport.Options) (fileClient, error) {
	fc, err := connectFiles(ctx, e, u, t, o)
	if err != nil {
		return nil, err
	}
	return &countedFiles{fc, e.Metrics, u.Scheme}, nil
}

// A countedFiles counts transfers in the metrics.
type countedFiles struct {
	fileClient
	m      *shell.Metrics
	scheme string
}

func (c *countedFiles) Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error {
	began := time.Now()
	err := c.fileClient.Get(ctx, path, offset, w, h, begin, counted(c.m.Bytes(c.scheme, "in"), progress))
	c.m.Transfer(ctx, c.scheme, "get", time.Since(began), err)
	return err
}

func (c *countedFiles) Put(ctx context.Context, path string, length int64, r io.ReadSeeker, h hash.Hash, progress func(n int)) error {
	began := time.Now()
	err := c.fileClient.Put(ctx, path, length, r, h, counted(c.m.Bytes(c.scheme, "out"), progress))
	c.m.Transfer(ctx, c.scheme, "put", time.Since(began), err)
	return err
}

func (c *countedFiles) PutStream(ctx context.Context, path string, r io.Reader, h hash.Hash, progress func(n int)) error {
	began := time.Now()
	err := c.fileClient.PutStream(ctx, path, r, h, counted(c.m.Bytes(c.scheme, "out"), progress))
	c.m.Transfer(ctx, c.scheme, "put", time.Since(began), err)
	return err
}

// counted returns a function that adds to a counter and calls progress, which may be nil.
func counted(to interface{ Add(float64) }, progress func(n int)) func(n int) {
	return func(n int) {
		to.Add(float64(n))
		if progress != nil {
			progress(n)
		}
	}
}

func connectFiles(ctx context.Context, e *shell.Env, u *addr.URL, t *transport.Transport, o *transport.Options) (fileClient, error) {
	if t.IsStream() {
		return dialHTTP(ctx, e, u, t, o)
	}
	o.MTU, o.RecvCount, o.RecvSize = 0, memReceives, memReceiveSize
	c, err := t.Messages(ctx, u, o)
	if err != nil {
		e.Metrics.Failed(u.Scheme, err)
		return nil, err
	}
	m, err := memsvc.NewClient(c)
	if err != nil {
		c.Close()
		return nil, err
	}
	if o.Token != nil {
		if err := m.Authenticate(ctx, o.Token); err != nil {
			e.Metrics.Failed(u.Scheme, err)
			ending(ctx, func() { c.Close() })
			return nil, err
		}
	}
	ended := e.Metrics.Connection(u.Scheme, "dial")
	// The connection is closed first: deregistering memory during an RDMA Read would end the
	// connection with an error.
	return &memFiles{m, c.Path(), func() { c.Close(); m.Close(); ended() }}, nil
}

type memFiles struct {
	*memsvc.Client
	path  samehost.Path
	close func()
}

func (m *memFiles) Path() samehost.Path { return m.path }

func (m *memFiles) Close() { m.close() }

func (m *memFiles) Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error {
	if offset == 0 {
		return m.Client.Get(ctx, path, 0, w, h, begin, progress)
	}
	// The service hashes only the range. h holds the whole file.
	return m.Client.Get(ctx, path, offset, io.MultiWriter(w, h), sha256.New(), begin, progress)
}

func (m *memFiles) Put(ctx context.Context, path string, length int64, r io.ReadSeeker, h hash.Hash, progress func(n int)) error {
	return m.Client.Put(ctx, path, length, r, h, progress)
}

func (m *memFiles) PrefixSum(ctx context.Context, path string, n int64) ([32]byte, bool, error) {
	sum, err := m.Client.Sum(ctx, path, n)
	return sum, err == nil, err
}

func (*memFiles) Mechanisms() (get, put string) { return "RDMA Read", "RDMA Write" }

// An httpFiles is a fileClient over HTTP with at most a single idle connection.
type httpFiles struct {
	httpfile.Client
	tr   *http.Transport
	path samehost.Path
}

func (h *httpFiles) Path() samehost.Path { return h.path }

// dialHTTP connects at once, so that an unreachable server is reported before the first request.
func dialHTTP(ctx context.Context, e *shell.Env, u *addr.URL, t *transport.Transport, o *transport.Options) (fileClient, error) {
	dial := func(ctx context.Context) (*countedConn, error) {
		c, err := t.Stream(ctx, u, o)
		if err != nil {
			e.Metrics.Failed(u.Scheme, err)
			return nil, err
		}
		return &countedConn{Conn: c, ended: e.Metrics.Connection(u.Scheme, "dial")}, nil
	}
	first, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	ready := make(chan net.Conn, 1)
	ready <- first
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case c := <-ready:
				return c, nil
			default:
				c, err := dial(ctx)
				if err != nil {
					return nil, err
				}
				return c, nil
			}
		},
		DisableCompression:    true,
		MaxIdleConns:          1,
		ExpectContinueTimeout: 10 * time.Second,
		ReadBufferSize:        64 << 10,
		WriteBufferSize:       256 << 10,
	}
	return &httpFiles{httpfile.Client{HTTP: &http.Client{Transport: tr, CheckRedirect: noRedirect}, Host: u.HostPort(), Token: o.Token}, tr, shell.StreamPath(first.Conn)}, nil
}

// noRedirect makes a redirect an unsuccessful answer, because the new address could be another
// server.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (h *httpFiles) Close() { h.tr.CloseIdleConnections() }

func (h *httpFiles) Put(ctx context.Context, path string, length int64, r io.ReadSeeker, sum hash.Hash, progress func(n int)) error {
	return h.Client.PutStream(ctx, path, &exactly{r, length}, sum, progress)
}

// An exactly reads the first left bytes of r. It is an error if r ends earlier.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	if e.left -= int64(n); err == io.EOF && e.left > 0 {
		err = memsvc.ErrSourceShrank
	}
	return n, err
}

func (*httpFiles) Mechanisms() (get, put string) { return "HTTP GET", "HTTP PUT" }

// A countedConn updates the metrics on Close.
type countedConn struct {
	net.Conn
	ended func()
	once  sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(c.ended)
	return c.Conn.Close()
}

package httpfile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
)

// ErrChanged reports received bytes that differ from the server's.
var ErrChanged = errors.New("SHA-256 differs from the server's: the file changed, or was damaged on the way")

// ErrNoDigest reports a server without a digest of the file's content.
var ErrNoDigest = errors.New("the server gives no SHA-256 to verify with (is it viaduct serve?)")

// A Client fetches and stores files on a single server.
type Client struct {
	HTTP *http.Client
	Host string // value of the Host header
	// Token is presented with every request; nil means no token.
	Token *token.Token
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	u := url.URL{Scheme: "http", Host: c.Host, Path: "/" + path}
	q, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err == nil && c.Token != nil {
		q.Header.Set("Authorization", c.Token.Authorization())
	}
	return q, err
}

// ErrRefused reports a request refused by the server. A request without the right token matches
// token.ErrMissing or token.ErrWrong, and not ErrRefused.
var ErrRefused = errors.New("the server refused")

// refused returns the error for an answer other than a success. The error matches ErrRefused or an
// error of package token.
func refused(r *http.Response) error {
	if err := denied(r); err != nil {
		return fmt.Errorf("the server refused (%s): %w", r.Status, err)
	}
	b, _ := io.ReadAll(io.LimitReader(r.Body, 1000))
	text := strings.TrimSpace(string(b))
	if text == "" {
		text = "no reason given"
	}
	return fmt.Errorf("%w (%s): %s", ErrRefused, r.Status, text)
}

// denied returns token.ErrMissing or token.ErrWrong if the server refused the request because of
// the token, and nil otherwise.
func denied(r *http.Response) error {
	switch {
	case r.StatusCode != http.StatusUnauthorized:
		return nil
	case strings.Contains(r.Header.Get("WWW-Authenticate"), "invalid_token"):
		return token.ErrWrong
	}
	return token.ErrMissing
}

// Get fetches a file from offset to the end. Get writes the bytes to w, in order, and to h, which
// must already hold the sum of the bytes before offset. If begin is not nil, Get calls begin before
// the first byte, with the number of bytes to transfer and the size of the whole file. If progress
// is not nil, Get calls progress with the length of each part. After a nil error, the whole file
// matches the server's SHA-256.
func (c *Client) Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error {
	q, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if offset > 0 {
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	q.Header.Set("Accept-Encoding", "identity")
	q.Header.Set("Accept", fileType) // not the listing of a directory
	r, err := c.HTTP.Do(q)
	if err != nil {
		return unwrapURL(err)
	}
	defer r.Body.Close()
	length := r.ContentLength
	switch {
	case r.StatusCode == http.StatusOK && offset == 0:
	case r.StatusCode == http.StatusPartialContent && offset > 0:
		if !strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)) {
			return fmt.Errorf("the server sent range %q instead of one from %d", r.Header.Get("Content-Range"), offset)
		}
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable &&
		strings.HasSuffix(r.Header.Get("Content-Range"), fmt.Sprintf("*/%d", offset)):
		length = 0 // nothing is missing
	default:
		return refused(r)
	}
	if length < 0 {
		return errors.New("the server does not say how long the file is")
	}
	if begin != nil {
		begin(length, offset+length)
	}
	if length > 0 {
		n, err := io.CopyBuffer(struct{ io.Writer }{w}, &meter{r.Body, h, progress}, make([]byte, 256<<10))
		if err == nil && n != length {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", n, length, unwrapURL(err))
		}
	}

	// The digest is requested after the bytes. Otherwise the server would read the file once for
	// the digest before sending the first byte.
	if q, err = c.request(ctx, http.MethodHead, path, nil); err != nil {
		return err
	}
	q.Header.Set("Accept", fileType)
	q.Header.Set(wantDigest, "sha-256=10")
	if r, err = c.HTTP.Do(q); err != nil {
		return unwrapURL(err)
	}
	r.Body.Close()
	sum, ok := parseDigest(r.Header.Get(reprDigest))
	switch {
	case r.StatusCode == http.StatusOK && !ok:
		return ErrNoDigest
	case r.StatusCode != http.StatusOK:
		return fmt.Errorf("the file is gone: %s", r.Status)
	case !bytes.Equal(sum[:], h.Sum(nil)):
		return ErrChanged
	}
	return nil
}

// PrefixSum returns the server's SHA-256 of the first n bytes of a file, without a transfer of the
// bytes. n must be above 0. known is false if the server has no sum of the prefix. ErrRefused
// reports a file that does not exist or has fewer than n bytes.
func (c *Client) PrefixSum(ctx context.Context, path string, n int64) (sum [32]byte, known bool, err error) {
	q, err := c.request(ctx, http.MethodHead, path, nil)
	if err != nil {
		return sum, false, err
	}
	q.Header.Set("Accept", fileType)
	q.Header.Set("Range", fmt.Sprintf("bytes=0-%d", n-1))
	q.Header.Set(wantContent, "sha-256=10")
	r, err := c.HTTP.Do(q)
	if err != nil {
		return sum, false, unwrapURL(err)
	}
	r.Body.Close()
	sum, ok := parseDigest(r.Header.Get(contentDigest))
	switch {
	case r.StatusCode == http.StatusNotFound, r.StatusCode == http.StatusUnauthorized:
		return sum, false, refused(r)
	case r.StatusCode != http.StatusPartialContent:
		return sum, false, nil
	case !strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes 0-%d/", n-1)):
		return sum, false, fmt.Errorf("%w: the file is shorter than %d bytes", ErrRefused, n)
	case !ok:
		return sum, false, nil
	}
	return sum, true, nil
}

// PutStream stores the bytes of r up to the end under path, and writes the bytes to h, which must
// be empty. The digest follows in the trailer, and the file appears only if the server stored the
// same bytes.
func (c *Client) PutStream(ctx context.Context, path string, r io.Reader, h hash.Hash, progress func(n int)) error {
	var q *http.Request
	body := &trailed{meter{r, h, progress}, func() { q.Trailer.Set(reprDigest, formatDigest([32]byte(h.Sum(nil)))) }}
	q, err := c.request(ctx, http.MethodPut, path, io.NopCloser(body))
	if err != nil {
		return err
	}
	q.ContentLength = -1
	q.Trailer = http.Header{reprDigest: nil}
	q.Header.Set("Expect", "100-continue") // the server then refuses before the bytes are sent
	a, err := c.HTTP.Do(q)
	if err != nil {
		return unwrapURL(err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusCreated && a.StatusCode != http.StatusOK && a.StatusCode != http.StatusNoContent {
		return refused(a)
	}
	stored, ok := parseDigest(a.Header.Get(reprDigest))
	if !ok {
		return ErrNoDigest
	}
	if stored != [32]byte(h.Sum(nil)) {
		return ErrChanged
	}
	return nil
}

// A trailed is a body that calls ended when the reader reaches the end.
type trailed struct {
	meter
	ended func()
}

func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.meter.Read(p)
	if err == io.EOF {
		t.ended()
	}
	return n, err
}

// maxListing bounds the bytes of a listing.
const maxListing = 64 << 20

// List returns the entries of a directory, sorted by name. The error matches ErrRefused if the path
// is not a directory.
func (c *Client) List(ctx context.Context, path string) ([]store.Entry, error) {
	q, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", "application/json")
	a, err := c.HTTP.Do(q)
	if err != nil {
		return nil, unwrapURL(err)
	}
	defer a.Body.Close()
	switch {
	case a.StatusCode != http.StatusOK:
		return nil, refused(a)
	case a.Header.Get("Content-Type") != "application/json":
		return nil, fmt.Errorf("%w to list %q: not a directory", ErrRefused, path)
	}
	var list struct {
		Entries *[]store.Entry `json:"entries"`
	}
	if err := json.NewDecoder(io.LimitReader(a.Body, maxListing)).Decode(&list); err != nil {
		return nil, fmt.Errorf("the server's listing makes no sense: %w", unwrapURL(err))
	}
	if list.Entries == nil {
		return nil, errors.New("the server's listing lacks entries")
	}
	io.Copy(io.Discard, a.Body)
	return *list.Entries, nil
}

// A meter is a reader that hashes the bytes and reports the number of bytes to progress. h and
// progress may be nil.
type meter struct {
	r        io.Reader
	h        hash.Hash
	progress func(int)
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if m.h != nil {
		m.h.Write(p[:n])
	}
	if m.progress != nil && n > 0 {
		m.progress(n)
	}
	return n, err
}

// unwrapURL drops the made-up http:// address from an error. If net/http has closed the connection
// because the server did, a request gets net.ErrClosed, which becomes io.ErrUnexpectedEOF.
func unwrapURL(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("the server ended the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

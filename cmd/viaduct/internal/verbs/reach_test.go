package verbs

import (
	"context"
	"hash"
	"io"
	"log/slog"
	"testing"

	"viaduct/cmd/viaduct/internal/shell"
)

// An abandoningClient fails while a Read of the source is in progress, as an HTTP transport can.
type abandoningClient struct {
	fileClient
	attempts int
	inside   chan struct{} // receives when a Read has begun
}

func (c *abandoningClient) PutStream(_ context.Context, _ string, r io.Reader, _ hash.Hash, _ func(int)) error {
	c.attempts++
	go r.Read(make([]byte, 1))
	<-c.inside
	return io.ErrUnexpectedEOF
}

func (c *abandoningClient) Close() {}

// A stuckReader reports the beginning of a Read, and then blocks.
type stuckReader struct{ inside, end chan struct{} }

func (r stuckReader) Read([]byte) (int, error) {
	r.inside <- struct{}{}
	<-r.end
	return 0, io.EOF
}

// TestPutStreamOnce: --retry makes no further attempt while a Read of the failed attempt may still
// take bytes of the source.
func TestPutStreamOnce(t *testing.T) {
	inside, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	c := &abandoningClient{inside: inside}
	f := &retryingFiles{
		reach: &reach{retry: 1}, e: &shell.Env{Log: slog.New(slog.DiscardHandler)},
		dial: func(context.Context) (fileClient, error) { return c, nil },
	}
	if err := f.PutStream(t.Context(), "x", stuckReader{inside, end}, nil, nil); err == nil || c.attempts != 1 {
		t.Errorf("%v after %d attempts", err, c.attempts)
	}
}

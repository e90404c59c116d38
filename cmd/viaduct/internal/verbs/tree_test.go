package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
)

// A noFiles is a fileClient that can only be closed.
type noFiles struct{ fileClient }

func (noFiles) Close() {}

// TestRefusalOfAnother: if the server refuses a file, the moves of the other files end, and do not
// take the refusal for an answer to themselves.
func TestRefusalOfAnother(t *testing.T) {
	tr := &tree{e: &shell.Env{Stdout: io.Discard, Stderr: io.Discard}, u: new(addr.URL), parallel: 2,
		dial: func(context.Context) (fileClient, error) { return noFiles{}, nil }}
	moves := make(chan struct{})
	var other error
	err := tr.run(t.Context(), func(_ context.Context, found func(job) error) error {
		return errors.Join(found(job{rel: "refused"}), found(job{rel: "other"}))
	}, func(ctx context.Context, _ fileClient, j job, _ func(int)) (bool, error) {
		if j.rel == "refused" {
			<-moves // both files are being moved
			return false, fmt.Errorf("%w to open it", memsvc.ErrRefused)
		}
		close(moves)
		<-ctx.Done()
		other = context.Cause(ctx)
		return false, other
	})
	if !errors.Is(err, memsvc.ErrRefused) {
		t.Errorf("run: %v, want the refusal", err)
	}
	if other == nil || errors.Is(other, memsvc.ErrRefused) {
		t.Errorf("the other move ended with %v", other)
	}
}

package verbs

import (
	"fmt"
	"sync"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
)

// An omission is a file a copy of a tree leaves out.
type omission struct {
	Path store.Text `json:"path"`
	Why  string     `json:"why"`
}

// The reasons to leave something out.
const (
	notAFile      = "neither a file nor a directory"
	linkToDir     = "a link to a directory"
	linkToNothing = "a link that leads to nothing"
	needsR        = "a directory, which -r copies"
)

// An omissions collects the files a copy leaves out. The zero value is ready. It is safe for
// concurrent use.
type omissions struct {
	mu  sync.Mutex
	out []omission // guarded by mu
}

func (o *omissions) add(path, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = append(o.out, omission{store.Text(path), why})
}

func (o *omissions) list() []omission {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out
}

// err logs the omissions and returns the error of an incomplete copy, or nil if nothing was left
// out.
func (o *omissions) err(e *shell.Env) error {
	out := o.list()
	if len(out) == 0 {
		return nil
	}
	for _, l := range out {
		e.Log.Warn("left out", "path", string(l.Path), "why", l.Why)
	}
	err := fmt.Errorf("%d left out, such as %s: %s", len(out), shell.Name(string(out[0].Path)), out[0].Why)
	return shell.Hint(err, "everything else was copied")
}

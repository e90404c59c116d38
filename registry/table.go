package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"viaduct/internal/perturb"
)

// A Table holds the known records of a registry, and answers queries for an implementation of
// Registry. Its zero value has no records and answers ErrUnavailable. It is safe for concurrent
// use.
type Table struct {
	mu      perturb.Mutex
	known   bool                    // guarded by mu; true once Set was called
	stale   bool                    // guarded by mu
	records map[string]*kindRecords // guarded by mu; the records by kind
	changed chan struct{}           // guarded by mu; closed by the next change; nil if nobody waits for it
}

// A kindRecords holds the records of a kind by name. The records of a name are in the order of Set.
type kindRecords struct{ byName map[string][]Record }

// Set replaces all known records. It leaves out invalid records, and returns the error of Check for
// the first. Set does not keep the slice.
func (t *Table) Set(records []Record) error {
	var bad error
	fresh := make(map[string]*kindRecords)
	for _, r := range records {
		if err := r.Check(); err != nil {
			if bad == nil {
				bad = err
			}
			continue
		}
		k := fresh[r.Kind]
		if k == nil {
			k = &kindRecords{make(map[string][]Record)}
			fresh[r.Kind] = k
		}
		k.byName[r.Name] = append(k.byName[r.Name], r)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.stale, t.records = true, false, fresh
	t.wake()
	return bad
}

// SetStale states that the registry cannot be reached. Known records are kept until expiry, and are
// marked as stale. The next Set removes the mark.
func (t *Table) SetStale() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known && !t.stale {
		t.stale = true
		t.wake()
	}
}

func (t *Table) wake() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// next returns a channel that is closed when the records change next. The caller holds t.mu.
func (t *Table) next() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// Resolve implements Registry. It does not block.
func (t *Table) Resolve(_ context.Context, kind, name string) (Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.answer(kind, name)
	switch {
	case !ok:
		return a, ErrUnavailable
	case len(a.Records) > 0:
		return a, nil
	case a.Stale && len(t.named(kind, name)) > 0:
		return a, fmt.Errorf("%w, and its last known answer has ended: %s %s", ErrUnavailable, kind, name)
	}
	return a, fmt.Errorf("%w: %s %s", ErrNotFound, kind, name)
}

// Watch implements Registry. It calls f with each new answer.
func (t *Table) Watch(ctx context.Context, kind, name string, f func(Answer)) error {
	var told *Answer
	for {
		t.mu.Lock()
		a, ok := t.answer(kind, name)
		changed := t.next()
		t.mu.Unlock()
		if !ok {
			return ErrUnavailable
		}
		if told == nil || told.Stale != a.Stale || !slices.Equal(told.Records, a.Records) {
			f(a)
			told = &Answer{slices.Clone(a.Records), a.Stale}
		}
		var end <-chan time.Time
		if at := a.Until(); !at.IsZero() {
			end = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-end:
		}
	}
}

// answer returns the valid records of a name. ok is false before Set. The caller holds t.mu.
func (t *Table) answer(kind, name string) (a Answer, ok bool) {
	return Answer{t.named(kind, name), t.stale}.at(time.Now()), t.known
}

// named returns the known records of a name, or of all names of the kind if name is empty. Some may
// have expired. The caller holds t.mu.
func (t *Table) named(kind, name string) []Record {
	k := t.records[kind]
	if k == nil {
		return nil
	}
	if name != "" {
		return k.byName[name]
	}
	var all []Record
	for _, rs := range k.byName {
		all = append(all, rs...)
	}
	slices.SortStableFunc(all, func(a, b Record) int { return strings.Compare(a.Name, b.Name) })
	return all
}

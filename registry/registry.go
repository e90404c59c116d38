package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// These are the kinds of names in this module. Any other word of lower-case letters, digits and
// hyphens is a kind too.
const (
	// PortMapper maps conventional addresses, for example "192.0.2.1:80" or "*:80", to SDP
	// addresses.
	PortMapper = "sdp"

	// VI maps host names to the host parts of addresses, in the text form of a VI provider.
	VI = "vi"

	// Fabric maps the names of fabrics to the addresses, HOST:PORT, at which their daemons accept
	// FCIP links.
	Fabric = "fabric"
)

// These are the largest lengths of the name and the value of a Record, in bytes.
const (
	maxName  = 255
	maxValue = 1024
)

var (
	// ErrNotFound means that a name has no record.
	ErrNotFound = errors.New("registry: no such name")

	// ErrUnavailable means that the registry is unreachable and no unexpired record is known.
	ErrUnavailable = errors.New("registry: not available")

	// ErrReadOnly is the error of Register if the registry can only be read.
	ErrReadOnly = errors.New("registry: can only be read")

	// ErrLeaseLost is the error of Renew for an ended registration: the lease was not renewed in
	// time, or the record was removed.
	ErrLeaseLost = errors.New("registry: the lease has ended")

	// ErrNoList is the error of Watch for all names, if the registry can't list them.
	ErrNoList = errors.New("registry: names can't be listed")
)

// A Record holds the address of an instance of a named service. Several records may have the same
// kind and name.
type Record struct {
	Kind  string
	Name  string // 1 to 255 bytes of visible characters without "/"; upper and lower case differ
	Value string // 1 to 1024 bytes of visible characters

	// Until is the time when the record expires; zero means never. Register ignores Until.
	Until time.Time
}

// Check returns an error if the record is not valid.
func (r Record) Check() error {
	if r.Kind == "" || strings.Trim(r.Kind, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("registry: kind %q is not a word of lower-case letters, digits and hyphens", r.Kind)
	}
	if err := visible(r.Name, maxName); err != nil || strings.Contains(r.Name, "/") {
		return fmt.Errorf("registry: name %.300q is not 1 to %d bytes of visible characters without a slash",
			r.Name, maxName)
	}
	if err := visible(r.Value, maxValue); err != nil {
		return fmt.Errorf("registry: value %.300q of %s is not 1 to %d bytes of visible characters",
			r.Value, r.Name, maxValue)
	}
	return nil
}

func visible(s string, most int) error {
	if s == "" || len(s) > most || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsGraphic(c) || unicode.IsSpace(c) || c == '#' }) {
		return errors.New("not visible")
	}
	return nil
}

// An Answer has the known records of a name, or of all names of a kind.
type Answer struct {
	// Records are sorted by name, and within a name in the registry's order of preference.
	Records []Record

	// Stale means that the registry was unreachable. Records then has the last known, unexpired
	// records.
	Stale bool
}

// Until returns the time when the first of the records expires, or the zero time if none does.
func (a Answer) Until() (t time.Time) {
	for _, r := range a.Records {
		if !r.Until.IsZero() && (t.IsZero() || r.Until.Before(t)) {
			t = r.Until
		}
	}
	return t
}

// at returns the answer without the records expired at time now.
func (a Answer) at(now time.Time) Answer {
	a.Records = slices.Clone(a.Records)
	a.Records = slices.DeleteFunc(a.Records, func(r Record) bool { return !r.Until.IsZero() && !now.Before(r.Until) })
	return a
}

// A Registry is a table of names. Its methods are safe for concurrent use.
type Registry interface {
	// Register adds a record. The record ends when lease has passed since this call or since the
	// last successful Renew. Errors: ErrReadOnly, ErrUnavailable, and the error of Check for an
	// invalid record.
	Register(ctx context.Context, r Record, lease time.Duration) (Lease, error)

	// Resolve returns the records of a name. Errors: ErrNotFound, with an Answer whose Stale is set
	// if only the last known state has no record, and ErrUnavailable.
	Resolve(ctx context.Context, kind, name string) (Answer, error)

	// Watch calls f with the records of a name, or of all names of the kind if name is empty. It
	// first calls f with the known records, and again with all records after every change,
	// including changes of validity and of Stale. When ctx ends, Watch returns nil. Errors:
	// ErrNoList, and ErrUnavailable if nothing is known at first. f is not called concurrently with
	// itself.
	Watch(ctx context.Context, kind, name string, f func(Answer)) error
}

// A Lease is a registration. Its methods must not be called concurrently.
type Lease interface {
	// Renew extends the registration by its lease. After ErrLeaseLost the registration does not
	// exist any more. After any other error Renew may be called again.
	Renew(ctx context.Context) error

	// Release ends the registration. The registration ends by itself if Release fails.
	Release(ctx context.Context) error
}

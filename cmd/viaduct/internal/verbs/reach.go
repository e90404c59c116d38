package verbs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
	"viaduct/iwarp"
	"viaduct/portmap"
	"viaduct/samehost"
	"viaduct/sdp"
	"viaduct/vi"
)

// A reach holds the flags for how long and how often a verb tries to reach a server.
type reach struct {
	wait    time.Duration // time to wait for a server that does not listen yet
	timeout time.Duration // time limit of the whole command; 0 means no limit
	retry   int           // further attempts after a failure
}

// errTimeout is the cause of a context ended by --timeout.
var errTimeout = errors.New("the time of --timeout is over")

// add adds the flags --timeout and --retry to c, and --wait if the server listens on TCP. It makes
// --timeout end the context of c.
func (r *reach) add(c *cobra.Command, wait bool) {
	f := c.Flags()
	if wait {
		f.DurationVar(&r.wait, "wait", 0, "wait up to `TIME` for the server to listen")
	}
	f.DurationVar(&r.timeout, "timeout", 0, "end the whole command after `TIME`, done or not; 0 never")
	f.IntVar(&r.retry, "retry", 0, "try up to `N` times more what a connection failed at")
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if r.timeout < 0 || r.wait < 0 || r.retry < 0 {
			return shell.Usagef("--timeout, --wait and --retry must not be negative")
		}
		if r.timeout == 0 {
			return run(cmd, args)
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), r.timeout, errTimeout)
		defer cancel()
		cmd.SetContext(ctx)
		err := run(cmd, args)
		end, _ := ctx.Deadline()
		// A socket's deadline can expire a moment before the context does.
		over := context.Cause(ctx) == errTimeout || !time.Now().Before(end) &&
			(errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded))
		switch {
		case err == nil || shell.IsUsage(err) || !over:
			return err
		case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
			err = fmt.Errorf("not done after %v: %w", r.timeout, errTimeout)
		default:
			err = fmt.Errorf("not done after %v: %w", r.timeout, err)
		}
		return shell.Hint(err, "give --timeout more, or see with --log-level debug what takes so long")
	}
}

// The pauses between two attempts of --retry: the first pause is doubled up to the last.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// A retrier counts the attempts of an operation and doubles the pause between attempts.
type retrier struct {
	e     *shell.Env
	left  int
	pause time.Duration
	ctx   context.Context
}

func (r *reach) retrier(ctx context.Context, e *shell.Env) *retrier {
	return &retrier{e: e, left: r.retry, pause: firstRetry, ctx: ctx}
}

// again reports whether the operation should be attempted again after err, and pauses before a
// result of true. It returns false if err is nil, if no attempts are left, if the context has
// ended, or if calls(err) is false.
func (r *retrier) again(err error, calls func(error) bool) bool {
	if err == nil || r.left <= 0 || r.ctx.Err() != nil || !calls(err) {
		return false
	}
	r.left--
	r.e.Metrics.Again()
	r.e.Log.Warn("trying again", "after", r.pause, "left", r.left, "err", err)
	t := time.NewTimer(r.pause)
	defer t.Stop()
	r.pause = min(2*r.pause, lastRetry)
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// do calls f until f succeeds, the error is not temporary, or no attempts are left. It returns the
// last error.
func (r *retrier) do(f func() error) error {
	for {
		if err := f(); !r.again(err, passing) {
			return err
		}
	}
}

// retrying is do for a function that also returns a value.
func retrying[T any](r *retrier, f func() (T, error)) (v T, err error) {
	err = r.do(func() error {
		v, err = f()
		return err
	})
	return v, err
}

// passing reports whether err is a temporary error of a server or of the network.
func passing(err error) bool {
	if shell.IsUsage(err) || refusedTLS(err) {
		return false
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return !dns.IsNotFound
	}
	return slices.ContainsFunc([]error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE,
		syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH,
		os.ErrDeadlineExceeded, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		vi.ErrNoMatch, vi.ErrNotReachable, vi.ErrTimeout, msg.ErrBroken, iwarp.ErrFlushed,
		iwarp.ErrClosed, iwarp.ErrPeerClosed, sdp.ErrReset, portmap.ErrNoAnswer,
	}, func(e error) bool { return errors.Is(err, e) })
}

// refusedTLS reports whether err is about a certificate. Another attempt does not help against
// certificate errors.
func refusedTLS(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(x509.HostnameError)) || errors.As(err, new(tls.AlertError))
}

// A localError concerns a local file, so that another attempt at the server does not help.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// broke reports whether another connection may help. It does not help if err is the server's
// answer, concerns a local file, or reports damage.
func broke(err error) bool {
	if shell.IsUsage(err) || refusedTLS(err) || errors.As(err, new(*localError)) {
		return false
	}
	return !slices.ContainsFunc([]error{
		memsvc.ErrRefused, memsvc.ErrNotServed, memsvc.ErrChanged, memsvc.ErrTakenBack, memsvc.ErrSourceShrank,
		httpfile.ErrRefused, httpfile.ErrChanged, httpfile.ErrNoDigest, token.ErrMissing, token.ErrWrong,
	}, func(e error) bool { return errors.Is(err, e) })
}

// A retryingFiles is a fileClient that reconnects when a connection fails, and continues the
// operation.
type retryingFiles struct {
	reach *reach
	e     *shell.Env
	dial  func(context.Context) (fileClient, error)
	fc    fileClient // nil while there is no connection
	names [2]string  // names of the mechanisms of get and put
}

// files connects to a server, and reconnects after failures as often as --retry allows.
func (r *reach) files(ctx context.Context, e *shell.Env, dial func(context.Context) (fileClient, error)) (fileClient, error) {
	if r.retry == 0 {
		return dial(ctx)
	}
	f := &retryingFiles{reach: r, e: e, dial: dial}
	return f, f.do(ctx, func(fc fileClient) error {
		f.names[0], f.names[1] = fc.Mechanisms()
		return nil
	})
}

// do calls op with a connection, and connects first if necessary. If the connection fails, do calls
// op again with a new connection, as often as --retry allows.
func (f *retryingFiles) do(ctx context.Context, op func(fileClient) error) error {
	r := f.reach.retrier(ctx, f.e)
	return f.attempts(ctx, r, op)
}

func (f *retryingFiles) attempts(ctx context.Context, r *retrier, op func(fileClient) error) error {
	for {
		var err error
		calls := passing
		if f.fc == nil {
			f.fc, err = f.dial(ctx)
		}
		if err == nil {
			if err = op(f.fc); err != nil {
				calls = broke
			}
		}
		if err == nil || !calls(err) {
			return err
		}
		f.drop(ctx)
		if !r.again(err, calls) {
			return err
		}
	}
}

// drop closes the connection, so that the next attempt connects again.
func (f *retryingFiles) drop(ctx context.Context) {
	if f.fc != nil {
		ending(ctx, f.fc.Close)
		f.fc = nil
	}
}

func (f *retryingFiles) Close() {
	if f.fc != nil {
		f.fc.Close()
		f.fc = nil
	}
}

// Path returns the path of the current connection. Without a connection, Why says so.
func (f *retryingFiles) Path() samehost.Path {
	if f.fc == nil {
		return samehost.Path{Why: "there is no connection"}
	}
	return f.fc.Path()
}

func (f *retryingFiles) Mechanisms() (get, put string) { return f.names[0], f.names[1] }

func (f *retryingFiles) List(ctx context.Context, path string) (es []store.Entry, err error) {
	err = f.do(ctx, func(fc fileClient) error {
		es, err = fc.List(ctx, path)
		return err
	})
	return es, err
}

func (f *retryingFiles) PrefixSum(ctx context.Context, path string, n int64) (sum [32]byte, known bool, err error) {
	err = f.do(ctx, func(fc fileClient) error {
		sum, known, err = fc.PrefixSum(ctx, path, n)
		return err
	})
	return sum, known, err
}

// Get continues after a failed connection, if the server's file still begins with the received
// bytes. The attempt counter restarts whenever a byte arrives.
func (f *retryingFiles) Get(ctx context.Context, path string, offset int64, w io.Writer, h hash.Hash, begin func(length, size int64), progress func(n int)) error {
	at, begun := offset, false
	r := f.reach.retrier(ctx, f.e)
	return f.attempts(ctx, r, func(fc fileClient) error {
		if at > offset {
			sum, known, err := fc.PrefixSum(ctx, path, at)
			if err != nil {
				return err
			}
			if known && sum != [32]byte(h.Sum(nil)) {
				return fmt.Errorf("after the connection failed: %w", memsvc.ErrChanged)
			}
		}
		return fc.Get(ctx, path, at, &localWriter{w}, h, func(length, size int64) {
			if !begun && begin != nil {
				begin(length, size)
			}
			begun = true
		}, func(n int) {
			at += int64(n)
			*r = *f.reach.retrier(ctx, f.e)
			if progress != nil {
				progress(n)
			}
		})
	})
}

// Put starts again after a failure. Progress is reported once for each byte.
func (f *retryingFiles) Put(ctx context.Context, path string, length int64, r io.ReadSeeker, h hash.Hash, progress func(n int)) error {
	told, tries := int64(0), 0
	return f.do(ctx, func(fc fileClient) error {
		if tries++; tries > 1 {
			h.Reset()
			if _, err := r.Seek(0, io.SeekStart); err != nil {
				return &localError{err}
			}
		}
		at := int64(0)
		return fc.Put(ctx, path, length, &localReader{r}, h, func(n int) {
			at += int64(n)
			if n := at - told; n > 0 && progress != nil {
				told = at
				progress(int(n))
			}
		})
	})
}

// PutStream makes no further attempt after the first read of r, because bytes of r cannot be read
// again.
func (f *retryingFiles) PutStream(ctx context.Context, path string, r io.Reader, h hash.Hash, progress func(n int)) error {
	once := &onceReader{r: r}
	return f.do(ctx, func(fc fileClient) error {
		err := fc.PutStream(ctx, path, once, h, progress)
		if err != nil && once.read.Load() {
			return &localError{err}
		}
		return err
	})
}

// A onceReader records whether Read was called. An unfinished Read counts too: an HTTP transport
// can fail while a goroutine is still inside Read. The Read would then take bytes from a further
// attempt.
type onceReader struct {
	r    io.Reader
	read atomic.Bool
}

func (o *onceReader) Read(p []byte) (int, error) {
	o.read.Store(true)
	return o.r.Read(p)
}

type localWriter struct{ io.Writer }

func (w *localWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = &localError{err}
	}
	return n, err
}

type localReader struct{ io.ReadSeeker }

func (r *localReader) Read(p []byte) (int, error) {
	n, err := r.ReadSeeker.Read(p)
	if err != nil && err != io.EOF {
		err = &localError{err}
	}
	return n, err
}

package shell

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/term"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/pcapng"
	"viaduct/cmd/viaduct/internal/systemd"
	"viaduct/portmap"
)

// An Env is the environment of a run of the command.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Command is the command line without the program's name. If Command is nil, there is no
	// Status.
	Command []string

	// The fields below are set by flags.
	JSON      bool
	LogLevel  string
	LogFormat string
	PcapFile  string
	MetricsAt string

	// DataOnStdout is set by a verb whose standard output is a data stream. Listening addresses and
	// errors are then printed to Stderr.
	DataOnStdout bool

	Log     *slog.Logger
	Capture *pcapng.Capture
	Metrics *Metrics
	Status  *Status

	sockets   *systemd.Sockets // of a service manager; see Inherit
	ready     chan struct{}    // closed at the end; nil if there is no service manager to notify
	reloading reloading

	printed bool // guarded by mu: PrintJSON has printed the result

	mu      sync.Mutex                         // one writer of stdout at a time
	mappers map[netip.AddrPort]*portmap.Client // guarded by mu; see Mapper
}

// NewEnv returns the environment of the process.
func NewEnv() *Env {
	return &Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Log: slog.New(slog.DiscardHandler)}
}

// Open applies the flags: Open sets up the log, the capture and the metrics server. The caller must
// call Close even if Open fails.
func (e *Env) Open() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(e.LogLevel)); err != nil ||
		!strings.Contains("debug info warn error", e.LogLevel) {
		return Usagef("--log-level %q is none of debug, info, warn, error", e.LogLevel)
	}
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: plainAttr}
	switch e.LogFormat {
	case "text":
		e.Log = slog.New(slog.NewTextHandler(e.Stderr, o))
	case "json":
		e.Log = slog.New(slog.NewJSONHandler(e.Stderr, o))
	default:
		return Usagef("--log-format %q is neither text nor json", e.LogFormat)
	}
	if e.PcapFile != "" {
		c, err := pcapng.Create(e.PcapFile, "viaduct "+Version())
		if err != nil {
			return err
		}
		e.Capture = c
	}
	e.Metrics = newMetrics()
	if e.Command != nil {
		e.Status = newStatus(e)
	}
	if e.MetricsAt != "" {
		if err := e.Metrics.serve(e); err != nil {
			return err
		}
	}
	return nil
}

// levelNotice is the level of messages a user must see during a normal start. The level is above
// warnings, so that a log of warnings has these messages.
const levelNotice = slog.LevelWarn + 1

// Notice logs a message users must see during a normal start.
func (e *Env) Notice(msg string, args ...any) {
	e.Log.Log(context.Background(), levelNotice, msg, args...)
}

// HTTPLog returns the logger for messages of net/http.
func (e *Env) HTTPLog() *log.Logger { return slog.NewLogLogger(e.Log.Handler(), slog.LevelInfo) }

// plainAttr gives network addresses one form, because in JSON some would be text and others
// objects. plainAttr also names levelNotice.
func plainAttr(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.LevelKey && a.Value.Any() == levelNotice {
		a.Value = slog.StringValue("NOTICE")
	}
	if a.Value.Kind() == slog.KindAny {
		if at, ok := a.Value.Any().(net.Addr); ok {
			a.Value = slog.StringValue(at.String())
		}
	}
	return a
}

// Close ends everything started by Open, OnHangup and Ready, and returns the error of the capture.
func (e *Env) Close() error {
	e.endReloading()
	e.Status.close()
	e.stopping()
	if e.Metrics != nil {
		e.Metrics.close()
	}
	if e.Capture != nil {
		c := e.Capture
		e.Capture = nil
		return c.Close()
	}
	return nil
}

// Wrap returns c or, if there is a capture, a connection that records the traffic of c. dialed is
// true if this process opened the connection.
func (e *Env) Wrap(c net.Conn, dialed bool) net.Conn {
	if e.Capture == nil {
		return c
	}
	return e.Capture.Conn(c, dialed)
}

// Listening prints the address where a command listens, and lists the address in "viaduct ps". The
// caller must call over if listening stops before the command ends.
func (e *Env) Listening(u *addr.URL) (over func()) {
	over = e.Status.Server().Listening(u.Scheme, u.String())
	e.PrintListening(u.String())
	return over
}

// PrintListening prints the line for the address of a listener not shown by ps.
func (e *Env) PrintListening(url string) {
	if e.JSON {
		e.PrintEvent(map[string]string{"listening": url})
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Fprintf(e.results(), "listening %s\n", url)
}

// results returns the stream for results, as opposed to the data the command moves.
func (e *Env) results() io.Writer {
	if e.DataOnStdout {
		return e.Stderr
	}
	return e.Stdout
}

// Printf writes to stdout. Output of other goroutines does not interleave.
func (e *Env) Printf(format string, a ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Fprintf(e.Stdout, format, a...)
}

// PrintJSON writes the result of the command, as a document on a line. The result must include
// failures, because PrintFailure prints nothing afterwards.
func (e *Env) PrintJSON(v any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.printed = true
	return e.encode(v)
}

// PrintEvent writes a document on a line, for documents before the result, and for commands with
// any number of results.
func (e *Env) PrintEvent(v any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.encode(v)
}

func (e *Env) encode(v any) error {
	enc := json.NewEncoder(e.results())
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// IsTerminal reports whether progress can be shown on stderr.
func (e *Env) IsTerminal() bool { return isTerminal(e.Stderr) }

// OnTerminal reports whether results and progress both go to a terminal, where their lines would be
// mixed.
func (e *Env) OnTerminal() bool { return e.IsTerminal() && isTerminal(e.Stdout) }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// commit is set when a package is built (-ldflags -X), because the package's tree may lack the Git
// data the Go tool reads.
var commit string

// Commit returns the commit set at the build of the package, or otherwise the commit of the
// checkout. id is "unknown" without either. modified reports whether the checkout had changes.
func Commit() (id string, modified bool) {
	id = "unknown"
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				id = s.Value
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
	}
	if commit != "" {
		id = commit
	}
	return id, modified
}

// version is set by the build of a package (-ldflags -X).
var version string

// Version returns the version of the package or the module. It returns "devel" for a build from a
// checkout.
func Version() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

// Package shell holds the functions shared by all verbs of the command: output of results, logs and
// progress, exit codes, captures, metrics.
package shell

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/iwarp"
	"viaduct/sdp"
	"viaduct/vi"
)

// Exit codes.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// A usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Usage marks err as a mistake in the command line.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// Usagef makes an error for a mistake in the command line.
func Usagef(format string, a ...any) error { return &usageError{fmt.Errorf(format, a...)} }

// IsUsage reports whether err is a mistake in the command line.
func IsUsage(err error) bool {
	_, ok := errors.AsType[*usageError](err)
	return ok
}

// A hinted error has a remedy.
type hinted struct {
	err  error
	hint string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

// Hint adds a remedy to err, unless err is nil or already has a remedy.
func Hint(err error, hint string) error {
	var h *hinted
	if err == nil || errors.As(err, &h) {
		return err
	}
	return &hinted{err, hint}
}

// An Exit makes the process end with Code. If Err is nil, no error is printed.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// ErrInterrupted is the cause of a context ended by a signal.
var ErrInterrupted = errors.New("interrupted")

// ExitCode returns the exit code of the process for err.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if x, ok := errors.AsType[*Exit](err); ok {
		return x.Code
	}
	if IsUsage(err) {
		return ExitUsage
	}
	return ExitFailed
}

// LastLine returns the last line on stderr of a failed command: the reason and the remedy.
func LastLine(verb string, err error) string {
	at := "viaduct"
	if verb != "command" {
		at += " " + verb
	}
	reason := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
	return fmt.Sprintf("%s: %s (%s)", at, reason, advice(verb, err))
}

// A Failure is the JSON document of a failed command.
type Failure struct {
	Error  string `json:"error"`
	Advice string `json:"advice"`
	Status int    `json:"status"`
}

// PrintFailure writes the document of an error, unless the command has already written a result
// with the failure.
func (e *Env) PrintFailure(verb string, err error) {
	e.mu.Lock()
	printed := e.printed
	e.mu.Unlock()
	if !printed {
		e.PrintJSON(Failure{err.Error(), advice(verb, err), ExitCode(err)})
	}
}

// advice returns the hint of an error or, without a hint, the usual remedy.
func advice(verb string, err error) string {
	if h, ok := errors.AsType[*hinted](err); ok {
		return h.hint
	}
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case IsUsage(err):
		if verb == "command" {
			verb = ""
		}
		return strings.Join(strings.Fields("see viaduct "+verb+" --help"), " ")
	case errors.Is(err, ErrInterrupted):
		return "run it again to start from the beginning"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "check that the server is running and that host and port are right"
	case errors.Is(err, syscall.EADDRINUSE):
		return "choose another port, or port 0 to let the system pick one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "listen on an address of this host"
	case errors.Is(err, syscall.EACCES) || errors.Is(err, fs.ErrPermission):
		if _, ok := errors.AsType[*net.OpError](err); ok {
			return "check the permissions, or use a port above 1023"
		}
		return "check the permissions of the file"
	case errors.Is(err, syscall.ENOTDIR):
		return "name a directory"
	case errors.Is(err, syscall.ENOSPC):
		return "make room on the disk and run it again"
	case errors.As(err, &dns):
		return "check the host name, or give an IP address"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "check the clock of this host, and have the certificate renewed"
	case errors.As(err, &unknown), errors.As(err, &wrongHost):
		return "give the server's certificate authority by --tls-ca, or its fingerprint by --tls-pin"
	case errors.As(err, &record):
		return "the other side speaks without TLS: leave --tls out"
	case errors.Is(err, fs.ErrNotExist):
		return "check the name of the file"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		return "check that the host can be reached and answers"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, sdp.ErrReset):
		return "the other side ended the connection: look at its log"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "check the route to that host"
	}
	return "run it again with --log-level debug to see more"
}

// ErrorKind returns the kind of an error in one word, for counters. There are about fifteen kinds.
func ErrorKind(err error) string {
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var remote *msg.RemoteAccessError
	var rejected *iwarp.RejectedError
	var terminated *iwarp.TerminateError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &dns):
		return "name"
	case errors.As(err, &unknown), errors.As(err, &wrongHost), errors.As(err, &invalid),
		errors.As(err, &alert), errors.As(err, &record):
		return "tls"
	case errors.As(err, &remote):
		return "access"
	case errors.Is(err, vi.ErrNoMatch), errors.Is(err, vi.ErrReject), errors.As(err, &rejected):
		return "rejected"
	case errors.As(err, &terminated):
		return "terminated"
	case errors.Is(err, syscall.ENOSPC):
		return "no_space"
	case errors.Is(err, fs.ErrPermission):
		return "permission"
	case errors.Is(err, fs.ErrNotExist):
		return "not_found"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		return "timeout"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, vi.ErrNotReachable):
		return "unreachable"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, sdp.ErrReset):
		return "reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "ended"
	case errors.Is(err, msg.ErrBroken):
		return "broken"
	}
	return "other"
}

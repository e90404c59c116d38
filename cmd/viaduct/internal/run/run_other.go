//go:build !linux || (!amd64 && !arm64)

package run

import (
	"context"
	"errors"

	"viaduct/cmd/viaduct/internal/shell"
)

// IsSupervisor returns false, because nothing is supervised except on Linux with amd64 or arm64.
func IsSupervisor() bool { return false }

var errSystem = shell.Hint(errors.New("programs can be run over SDP on Linux with amd64 or arm64 only"),
	"use viaduct proxy")

// Main returns an error, because programs can be run on Linux with amd64 or arm64 only.
func Main(_ context.Context, _ *shell.Env, o *Options) error {
	if _, err := parseRules(o); err != nil {
		return &shell.Exit{Code: ExitRun, Err: shell.Usage(err)}
	}
	return &shell.Exit{Code: ExitRun, Err: errSystem}
}

// Check returns an error, as Main does.
func Check(*shell.Env, []Finding) error { return &shell.Exit{Code: ExitRun, Err: errSystem} }

// NewService and Restarts are unused except on Linux with amd64 or arm64.
type (
	NewService func()
	Restarts   func()
)

//go:build !unix

package verbs

import (
	"context"
	"errors"
)

var errNoHandover = errors.New("connections cannot be handed over on this system")

func (p *proxy) takeOver(context.Context, string) (bool, error) { return false, errNoHandover }

func (p *proxy) serveHandover(context.Context, string, chan<- error) error { return errNoHandover }

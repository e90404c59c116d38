//go:build !linux

package main

import (
	"context"
	"errors"
	"flag"
)

func program(context.Context) error {
	flag.Parse()
	return skip{errors.New("network namespaces are Linux's")}
}

//go:build !linux

package roceudp

import (
	"errors"
	"io"
)

// reserveSlot returns no slot: ports are shared on Linux only.
func reserveSlot(int) (slot uint8, name io.Closer) { return 0, nil }

// meet returns errors.ErrUnsupported.
func (p *Port) meet(uint8) error { return errors.ErrUnsupported }

package decode

import (
	"encoding/binary"
	"errors"
	"io"

	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/sdpwire"
	"viaduct/internal/wire/vitcpwire"
)

// identify returns the protocol of a stream with the first bytes b, or "". more means that b is too
// short to decide.
func identify(b []byte) (name string, more bool) {
	_, _, err := mpa.ParseFrame(b)
	switch {
	case err == nil, errors.Is(err, mpa.ErrPrivate), errors.Is(err, mpa.ErrRevision):
		return "iwarp", false
	case errors.Is(err, io.ErrUnexpectedEOF), !errors.Is(err, mpa.ErrKey):
		if len(b) >= 16 {
			return "iwarp", false
		}
		more = true
	}
	if len(b) >= 8 {
		// FCIP repeats the first word, so that damage to a single copy does not matter. A VI/TCP
		// segment differs, because the second word, the offset, is 0 in the first segment.
		if binary.BigEndian.Uint32(b) == fcipWord || binary.BigEndian.Uint32(b[4:]) == fcipWord {
			return "fcip", false
		}
	} else {
		more = true
	}
	var d vitcpwire.Dialect
	h, _, err := d.ParseHeader(b)
	switch {
	case err == nil && h.Type.HasCE() && int(h.Length) >= vitcpwire.HeaderLen+vitcpwire.CELen:
		return "vitcp", false
	case errors.Is(err, io.ErrUnexpectedEOF):
		more = more || b[0] == vitcpwire.Version
	}
	if l, ok := sdpwire.DetectLayout(b); ok {
		_, _, err := sdpwire.ParseHello(b, l)
		if err == nil {
			return "sdp", false
		}
		more = more || errors.Is(err, io.ErrUnexpectedEOF) && len(b) < sdpwire.HelloLen
	}
	return "", more
}

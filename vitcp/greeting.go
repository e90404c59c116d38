package vitcp

import (
	"errors"
	"io"
	"net"

	"viaduct/internal/sock"
	"viaduct/internal/wire/vitcpwire"
)

// A greeting is a connect message: a segment with a CE header.
type greeting struct {
	h        vitcpwire.Header
	ce       vitcpwire.CE
	security []byte // security information as on the wire
}

// writeGreeting writes g as a single segment. It sets the flags and the length by the format of
// connect messages. [V-06] [V-09]
func writeGreeting(w io.Writer, d vitcpwire.Dialect, g greeting) error {
	g.h.Flags = vitcpwire.EndOfMessage
	g.h.Length = uint16(vitcpwire.HeaderLen + vitcpwire.CELen + len(g.security))
	b := make([]byte, 0, g.h.Length)
	b = d.AppendHeader(b, g.h)
	b = g.ce.Append(b)
	b = append(b, g.security...)
	_, err := w.Write(b)
	return err
}

// readGreeting reads a connect message and no further byte, because data may follow a Connect
// Accept at once. [V-45] n is the number of bytes read. The error is the stream's (io.EOF only if
// the stream ended before the first byte), a *ProtocolError, or vitcpwire.ErrDiscriminator. With
// ErrDiscriminator all fields of g except the discriminators are valid.
func readGreeting(r net.Conn, d vitcpwire.Dialect, maxSecurity int) (g greeting, n int, err error) {
	var head [vitcpwire.HeaderLen + vitcpwire.CELen]byte
	n, err = io.ReadFull(soonReader{r}, head[:vitcpwire.HeaderLen])
	if err != nil {
		return g, n, err
	}
	g.h, _, err = d.ParseHeader(head[:])
	if err != nil {
		return g, n, &ProtocolError{Reason: "connect message", Err: err}
	}
	if !g.h.Type.HasCE() {
		return g, n, framingf("%v before a connection is set up", g.h.Type)
	}
	security := int(g.h.Length) - len(head)
	if security > maxSecurity {
		return g, n, framingf("%d bytes of security information, at most %d", security, maxSecurity)
	}
	m, err := io.ReadFull(r, head[vitcpwire.HeaderLen:])
	n += m
	if err != nil {
		return g, n, tornStream(err)
	}
	g.ce, _, err = vitcpwire.ParseCE(head[vitcpwire.HeaderLen:])
	g.security = make([]byte, security)
	m, rerr := io.ReadFull(r, g.security)
	n += m
	if rerr != nil {
		return g, n, tornStream(rerr)
	}
	return g, n, err
}

// A soonReader polls for a moment before it sleeps, because a connect message is expected soon.
type soonReader struct{ nc net.Conn }

func (r soonReader) Read(p []byte) (int, error) { return sock.ReadSoon(r.nc, p) }

// tornStream returns io.ErrUnexpectedEOF instead of io.EOF, for an end inside a message, and any
// other error unchanged.
func tornStream(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

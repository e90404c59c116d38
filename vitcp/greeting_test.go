package vitcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"viaduct/internal/wire/vitcpwire"
)

// A connect message is read up to its last byte, in whatever pieces it arrives, and no byte after
// it. The number of bytes read is also returned for an incomplete message. [V-01] [V-06] [V-45]
func TestReadGreeting(t *testing.T) {
	const max = 10
	var d vitcpwire.Dialect
	ce := ceOf(reliableAll, "caller", "called")
	message := func(security int, change func(b []byte)) []byte {
		g := greeting{h: vitcpwire.Header{Type: vitcpwire.ConnectAccept, Number: 7}, ce: ce,
			security: bytes.Repeat([]byte{'s'}, security)}
		var b bytes.Buffer
		if err := writeGreeting(&b, d, g); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(b.Bytes())
		}
		return b.Bytes()
	}
	read := func(b []byte) (g greeting, n int, rest []byte, err error) {
		here, there := net.Pipe()
		defer here.Close()
		go func() {
			for _, c := range b {
				there.Write([]byte{c})
			}
			there.Close()
		}()
		g, n, err = readGreeting(here, d, max)
		rest, _ = io.ReadAll(here)
		return g, n, rest, err
	}
	head := vitcpwire.HeaderLen + vitcpwire.CELen
	for _, security := range []int{0, 1, max} {
		b := message(security, nil)
		g, n, rest, err := read(append(bytes.Clone(b), "data"...))
		if err != nil || n != len(b) || string(rest) != "data" {
			t.Errorf("%d bytes of security information: read %d of %d, %q behind it, %v",
				security, n, len(b), rest, err)
		}
		if len(g.security) != security || g.h.Number != 7 || g.h.Flags != vitcpwire.EndOfMessage ||
			int(g.h.Length) != len(b) || g.ce != ce {
			t.Errorf("%d bytes of security information: %v %v", security, g.h, g.ce)
		}
		for i := range b {
			want := io.ErrUnexpectedEOF
			if i == 0 {
				want = io.EOF
			}
			if _, n, _, err := read(b[:i]); err != want || n != i {
				t.Errorf("ended after %d of %d bytes: read %d, %v", i, len(b), n, err)
			}
		}
	}
	// Security information above the limit is not read. A message of another type is not read
	// either.
	for name, b := range map[string][]byte{
		"too much security": message(max+1, nil),
		"another version":   message(0, func(b []byte) { b[0] = 2 }),
		"data":              message(0, func(b []byte) { b[1] = byte(vitcpwire.Send) << 3 }),
	} {
		_, n, rest, err := read(b)
		if _, ok := errors.AsType[*ProtocolError](err); !ok || n != vitcpwire.HeaderLen || len(rest) != len(b)-n {
			t.Errorf("%s: read %d, %d left, %v", name, n, len(rest), err)
		}
	}
	// If the message can't be written, writeGreeting returns an error.
	here, there := net.Pipe()
	there.Close()
	defer here.Close()
	if err := writeGreeting(here, d, greeting{ce: ce}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("to a closed pipe: %v", err)
	}
	// If a discriminator is too long, the rest of the message is still usable.
	g, n, _, err := read(message(3, func(b []byte) { b[vitcpwire.HeaderLen+27] = 17 }))
	if !errors.Is(err, vitcpwire.ErrDiscriminator) || n != head+3 || len(g.security) != 3 {
		t.Errorf("a long discriminator: read %d, %q, %v", n, g.security, err)
	}
}

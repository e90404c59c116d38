package testkit

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Hex returns the bytes spelled by s in hexadecimal. s may contain white space anywhere, and
// comments from '#' to the end of the line, so that a vector can show its fields. Hex panics if s
// is not hexadecimal.
func Hex(s string) []byte {
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		for _, f := range strings.Fields(line) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		panic(fmt.Sprintf("testkit: bad hex vector %q: %v", s, err))
	}
	return b
}

// A Vector is a value of a wire format, with the encoding.
type Vector[T any] struct {
	Name  string
	Value T
	Hex   string // see [Hex]
}

// CheckVectors checks a codec against each vector:
//
//   - Append of the value returns the bytes, also after existing bytes.
//   - Parse of the bytes returns the value and the whole length, also if more bytes follow.
//   - Parse of every proper prefix returns an error.
//
// Options are for [cmp.Diff].
func CheckVectors[T any](t *testing.T, vs []Vector[T], appendTo func(T, []byte) []byte, parse func([]byte) (T, int, error), opts ...cmp.Option) {
	t.Helper()
	for _, v := range vs {
		t.Run(v.Name, func(t *testing.T) {
			t.Helper()
			want := Hex(v.Hex)
			EqualBytes(t, appendTo(v.Value, nil), want)
			if got := appendTo(v.Value, []byte{0xAA}); len(got) == 0 || got[0] != 0xAA || !bytes.Equal(got[1:], want) {
				t.Errorf("Append behind a byte = % x, want aa % x", got, want)
			}
			for _, tail := range []int{0, 1, 64} {
				got, n, err := parse(append(bytes.Clone(want), bytes.Repeat([]byte{0xEE}, tail)...))
				if err != nil {
					t.Fatalf("Parse with %d bytes behind: %v", tail, err)
				}
				if n != len(want) {
					t.Errorf("Parse with %d bytes behind took %d bytes, want %d", tail, n, len(want))
				}
				if d := cmp.Diff(v.Value, got, opts...); d != "" {
					t.Errorf("Parse (-want +got):\n%s", d)
				}
			}
			for n := range want {
				if got, _, err := parse(bytes.Clone(want[:n])); err == nil {
					t.Errorf("Parse of the first %d of %d bytes = %+v, want an error", n, len(want), got)
				}
			}
		})
	}
}

// EqualBytes fails the test if got and want differ, and reports the first difference.
func EqualBytes(t testing.TB, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Errorf("bytes differ at %d (lengths %d and %d)\n got %s\nwant %s", at, len(got), len(want),
		window(got, at), window(want, at))
}

// window returns the bytes around offset at as text, with the byte at the offset in brackets.
func window(b []byte, at int) string {
	from, to := max(0, at-16), min(len(b), at+33)
	var s strings.Builder
	if from > 0 {
		s.WriteString("... ")
	}
	for i := from; i < to; i++ {
		if i == at {
			fmt.Fprintf(&s, "[%02x] ", b[i])
		} else {
			fmt.Fprintf(&s, "%02x ", b[i])
		}
	}
	if at >= len(b) {
		s.WriteString("[end]")
	} else if to < len(b) {
		s.WriteString("...")
	}
	return s.String()
}

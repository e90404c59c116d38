package fcvi

import "viaduct/internal/fc"

// A WWN is the 64-bit name of a port or a node. 0 means no name.
type WWN uint64

// String writes w as eight bytes with colons.
func (w WWN) String() string { return fc.WWN(w).String() }

// ParseWWN parses a name in the form of its String method, or as sixteen hexadecimal digits with or
// without 0x.
func ParseWWN(s string) (WWN, error) {
	w, err := fc.ParseWWN(s)
	return WWN(w), err
}

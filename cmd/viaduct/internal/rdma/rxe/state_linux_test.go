package rxe

import (
	"testing"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// TestStates tries every pair of states, with each mask of one attribute more or less than the
// transition needs. Transitions of the table succeed. All others fail and change nothing.
func TestStates(t *testing.T) {
	const allBits = 21
	f := NewFabric() // a network namespace has too few shares for a fabric each
	for _, typ := range []Type{RC, UC, UD} {
		for from := abi.Reset; from <= abi.Err; from++ {
			for to := abi.Reset; to <= abi.Err+1; to++ {
				n, listed := changes[typ][change{from, to}]
				always := to == abi.Reset || to == abi.Err
				for bit := -1; bit < allBits; bit++ {
					mask := n.must | MaskState
					extra := Mask(0)
					if bit >= 0 {
						extra = 1 << bit
					}
					mask ^= extra &^ MaskState
					want := listed || always
					switch {
					case extra == 0, extra == MaskState:
					case n.must&extra != 0: // a required attribute is missing
						want = false
					case n.may&extra == 0:
						want = false
					}
					e := newEnd(t, f, typ, nil)
					a := Attributes{State: from}
					e.qp.attrs.Store(&a)
					c := changeTo(e.qp, to)
					c.Mask, c.CurState = mask, from
					c.AltPath = c.Path
					_, err := e.qp.Modify(c)
					if (err == nil) != want {
						t.Fatalf("type %d, %v -> %v with %#x: %v, want done %v", typ, from, to, mask, err, want)
					}
					state := from
					if want {
						state = to
					}
					if s := e.qp.Attributes().State; s != state {
						t.Fatalf("type %d, %v -> %v with %#x: is %v", typ, from, to, mask, s)
					}
				}
			}
		}
	}
}

// Attribute values the device does not support are refused.
func TestAttributeValues(t *testing.T) {
	for name, set := range map[string]func(*Change){
		"port":          func(c *Change) { c.port = 2; c.Mask |= MaskPort },
		"pkey":          func(c *Change) { c.PKey = 1; c.Mask |= MaskPKey },
		"mtu 0":         func(c *Change) { c.MTU = 0 },
		"mtu":           func(c *Change) { c.MTU = maxMTU + 1 },
		"no GRH":        func(c *Change) { c.Path.bytes[30] = 0 },
		"GID":           func(c *Change) { c.Path.SGID = 1 },
		"reads":         func(c *Change) { c.MaxDestReads = MaxReads + 1 },
		"RNR timer":     func(c *Change) { c.MinRNR = maxTimer + 1 },
		"another state": func(c *Change) { c.Mask |= MaskCurState; c.CurState = abi.RTS },
	} {
		e := newEnd(t, NewFabric(), RC, nil)
		e.modify(abi.Init, 0, nil)
		c := changeTo(e.qp, abi.RTR)
		set(&c)
		if _, err := e.qp.Modify(c); err != ErrInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

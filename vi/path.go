package vi

import "viaduct/samehost"

// A routed is a Link able to report the path of its bytes. A provider's Link need not be a routed.
type routed interface{ Path() samehost.Path }

// Path reports whether the bytes of the connection go through shared memory. If not, Path also
// returns the reason. Any goroutine may call Path at any time.
func (v *VI) Path() samehost.Path {
	ep := v.conn.Load()
	if ep == nil {
		return samehost.Path{Why: "there is no connection"}
	}
	if r, ok := ep.link.(routed); ok {
		return r.Path()
	}
	return samehost.Path{Why: "the provider does not tell how the bytes go"}
}

package vi

import "viaduct/samehost"

// A routed link reports the path of its bytes. Links of providers need not implement it.
type routed interface{ Path() samehost.Path }

// Path reports whether the bytes of the connection go through shared memory, or by TCP and why. It
// may be called at any time, by any goroutine.
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

package fcvi

import (
	"slices"

	"viaduct/internal/fc"
)

// A keptIU is an IU for a port whose mapping is being verified. Nothing may be sent to the port
// meanwhile. [FCVI 7.7]
type keptIU struct {
	r     *fc.Remote
	class fc.Class
	f     fc.Frame
	buf   []byte
}

// maxKept is the maximum number of kept IUs. A further IU is dropped, and sent again when its timer
// expires.
const maxKept = 1024

// keep stores f, a whole IU, until sending to r is allowed. Otherwise a state change in the middle
// of a set-up would delay it by T_RQST.
func (p *port) keep(r *fc.Remote, class fc.Class, f *fc.Frame) bool {
	if !r.LoggedIn() || len(p.kept) >= maxKept {
		return false
	}
	k := keptIU{r: r, class: class}
	k.buf = f.CloneTo(&k.f, nil)
	p.kept = append(p.kept, k)
	return true
}

// sendKept sends the IUs that were kept for r.
func (p *port) sendKept(now fc.Time, r *fc.Remote) {
	mine := p.takeKept(func(k *keptIU) bool { return k.r == r })
	for i := range mine {
		if k := &mine[i]; !p.np.Send(now, r, k.class, true, &k.f) {
			p.keep(r, k.class, &k.f)
		}
	}
}

// takeKept removes the kept IUs that match, and returns them.
func (p *port) takeKept(match func(k *keptIU) bool) (taken []keptIU) {
	if len(p.kept) == 0 {
		return nil
	}
	p.kept = slices.DeleteFunc(p.kept, func(k keptIU) bool {
		if !match(&k) {
			return false
		}
		taken = append(taken, k)
		return true
	})
	return taken
}

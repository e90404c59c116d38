package fcvi

import (
	"slices"

	"viaduct/internal/fc"
)

// A keptIU is an IU for a port whose address mapping is being verified. Until the result is known,
// nothing may be sent to that port. [FCVI 7.7]
type keptIU struct {
	r     *fc.Remote
	class fc.Class
	f     fc.Frame
	buf   []byte
}

// maxKept is the maximum number of kept IUs. A further IU is dropped, and sent again when the timer
// expires.
const maxKept = 1024

// keep stores a copy of f, a whole IU, until sending to r is allowed. It returns false if r is not
// logged in or maxKept IUs are stored. If f were dropped instead, a verification during a set-up
// would delay the set-up by T_RQST.
func (p *port) keep(r *fc.Remote, class fc.Class, f *fc.Frame) bool {
	if !r.LoggedIn() || len(p.kept) >= maxKept {
		return false
	}
	k := keptIU{r: r, class: class}
	k.buf = f.CloneTo(&k.f, nil)
	p.kept = append(p.kept, k)
	return true
}

// sendKept sends the IUs kept for r. An IU that can't be sent is kept again.
func (p *port) sendKept(now fc.Time, r *fc.Remote) {
	mine := p.takeKept(func(k *keptIU) bool { return k.r == r })
	for i := range mine {
		if k := &mine[i]; !p.np.Send(now, r, k.class, true, &k.f) {
			p.keep(r, k.class, &k.f)
		}
	}
}

// takeKept removes and returns the matching kept IUs.
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

package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// An early stores the frames that arrive while the consumer has not started.
type early struct {
	paused bool // the consumer has not started
	frames []earlyFrame
}

// An earlyFrame is a frame received before the consumer started.
type earlyFrame struct {
	f   fc.Frame
	buf []byte
}

// maxEarly is the maximum number of frames stored for a consumer that has not started.
const maxEarly = 4096

// add stores a copy of f. It returns false, without effect, if maxEarly frames are stored.
func (e *early) add(f *fc.Frame) bool {
	if len(e.frames) >= maxEarly {
		return false
	}
	e.frames = append(e.frames, earlyFrame{})
	x := &e.frames[len(e.frames)-1]
	x.buf = f.CloneTo(&x.f, nil)
	return true
}

// end ends the pause, and returns the stored frames.
func (e *early) end() []earlyFrame {
	frames := e.frames
	*e = early{}
	return frames
}

// begin handles the stored frames when the consumer has started.
func (c *conn) begin(now fc.Time) {
	frames := c.early.end()
	for i := range frames {
		f := &frames[i].f
		var h iu.Header
		_, err := c.p.cfg.codec.ParseHeader(f.Opt, &h)
		if err == nil && !c.gone {
			messageTypes[h.Op].arrive(c, now, f, &h)
		}
	}
	c.p.activate(c)
	c.p.pump(now)
}

package sdpcore

import "time"

// common is what all parts of a Machine share: the parameters, the state of the connection, and the
// event in progress. A part reads it, appends actions to out, and counts its work in stats. Only
// close.go and suspend.go change life, and only resize changes p without a call of the driver.
type common struct {
	p     Params
	life  life
	now   time.Duration // time of the current event; never goes back
	out   []Action      // actions of the current event
	keys  uint64        // number of advertisements made by both ends
	stats Stats
}

// begin starts an event, whose actions are appended to out.
func (c *common) begin(now time.Duration, out []Action) {
	c.now, c.out = max(now, c.now), out
}

// actions ends the event and returns its actions.
func (c *common) actions() []Action {
	out := c.out
	c.out = nil
	return out
}

func (c *common) do(a Action) { c.out = append(c.out, a) }

// newKey returns the key of another advertisement.
func (c *common) newKey() uint64 {
	c.keys++
	return c.keys
}

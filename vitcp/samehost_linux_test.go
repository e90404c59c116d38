package vitcp

import (
	"strings"
	"testing"

	"viaduct/samehost"
	"viaduct/vi"
)

// Path reports which path the bytes of a VI take, and why.
func TestPath(t *testing.T) {
	for _, c := range []struct {
		policy samehost.Policy
		why    string
	}{{samehost.Require, ""}, {samehost.Auto, ""}, {samehost.Off, "turned off"}} {
		attrs := reliableAll
		attrs.Reliability = vi.ReliableReception
		p := connectPair(t, Config{SameHost: c.policy}, attrs)
		// On a busy machine the caller may decide for TCP.
		late := c.policy == samehost.Auto && strings.HasPrefix(p.a.Path().Why, "the listener has not ")
		for _, v := range []*vi.VI{p.a, p.b} {
			got := v.Path()
			if got.SharedMemory != (c.policy != samehost.Off && !late) || !strings.Contains(got.Why, c.why) ||
				(got.Why == "") != got.SharedMemory {
				t.Errorf("%v: %v", c.policy, got)
			}
		}
		idle, err := p.na.CreateVI(attrs, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := idle.Path(); got.SharedMemory || got.Why != "there is no connection" {
			t.Errorf("not connected: %v", got)
		}
		if err := idle.Destroy(); err != nil {
			t.Error(err)
		}
	}
}

package frameio

import "testing"

// scripted is a protocol that consumes every byte and returns the missing count the test sets.
type scripted struct {
	Protocol
	direct int
}

func (p *scripted) Receive(b []byte, _ bool) (n, direct int, err error) {
	return len(b), p.direct, nil
}

// TestGlimpses: few bytes are staged at a time after a long frame, because another long frame is
// likely, until several reads have brought none.
func TestGlimpses(t *testing.T) {
	p := &scripted{}
	c := &Conn{proto: p}
	r := &c.rx
	r.stage = new(stage)
	take := func(fill, direct int) {
		t.Helper()
		r.fill, r.missing, p.direct = fill, 0, direct
		if err := c.handle(); err != nil {
			t.Fatal(err)
		}
		r.missing = 0
	}
	if r.limit() != stageSize {
		t.Errorf("stages up to %d at first", r.limit())
	}
	for range 2 {
		take(100, 50000)
		for range maxGlimpses - 1 {
			take(longGlimpse, 0)
			take(longGlimpse/2, 0) // does not count, because no more bytes had arrived
		}
		if r.limit() != longGlimpse {
			t.Errorf("stages up to %d not long after a long frame", r.limit())
		}
	}
	r.fill = 5000
	if r.limit() != 5000+longGlimpse {
		t.Errorf("stages up to %d behind a partial frame", r.limit())
	}
	r.fill = stageSize - 10
	if r.limit() != stageSize {
		t.Errorf("stages up to %d, beyond the buffer", r.limit())
	}
	take(longGlimpse, 0)
	if r.limit() != stageSize {
		t.Errorf("stages up to %d long after a long frame", r.limit())
	}
}

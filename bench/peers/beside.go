package main

// besides returns the contests that measure only our own sides. Each side is compared with the same
// measurement by another build, program, to show what a change has gained or lost. The goal is to
// be no slower than the other build; the floor is to be at most 5 % slower.
func besides(cs []contest, program string) []contest {
	var out []contest
	for _, c := range cs {
		b := contest{title: c.title}
		for _, s := range c.sides {
			if s.m == nil || s.why != "" {
				continue
			}
			m := *s.m
			then := side{name: s.name + ", before", run: func() (result, error) { return driveApart(program, m) }}
			b.sides = append(b.sides, s, then)
			r := row{metric: "before and now", ours: s.name, theirs: then.name, what: m.quantity(), goal: 1, floor: 0.95}
			if r.what == latency || r.what == memory {
				r.least, r.floor = true, 1.05
			}
			b.rows = append(b.rows, r)
		}
		if b.sides != nil {
			out = append(out, b)
		}
	}
	return out
}

// quantity returns the quantity for comparing a measurement in besides.
func (m *measure) quantity() quantity {
	switch m.Op {
	case opPing:
		return latency
	case opIdle:
		return memory
	case opSetup, opHTTP, opGRPC, opEcho:
		return rate
	case opStream:
		return bandwidth
	}
	if m.Size < 4*kib {
		return rate
	}
	return bandwidth
}

package notify

import (
	"testing"

	"pgregory.net/rapid"
)

// execute runs a filter like the kernel, and returns the filter's action for a call.
func execute(t interface{ Fatalf(string, ...any) }, p []Insn, arch, nr uint32, args [6]uint64) Action {
	var a uint32
	for pc := 0; pc < len(p); pc++ {
		switch in := p[pc]; in.Code {
		case opLoad:
			switch {
			case in.K == dataNr:
				a = nr
			case in.K == dataArch:
				a = arch
			case in.K >= dataArgs && in.K < dataArgs+48 && in.K%8 == 0:
				a = uint32(args[(in.K-dataArgs)/8])
			default:
				t.Fatalf("loads from %d", in.K)
			}
		case opAnd:
			a &= in.K
		case opJump:
			pc += int(in.K)
		case opJeq, opJgt, opJge:
			var is bool
			switch in.Code {
			case opJeq:
				is = a == in.K
			case opJgt:
				is = a > in.K
			case opJge:
				is = a >= in.K
			}
			if is {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		case opRet:
			return Action(in.K)
		default:
			t.Fatalf("no such instruction: %#x", in.Code)
		}
	}
	t.Fatalf("the filter has no end")
	return 0
}

// decide evaluates the rules directly, without a filter. It returns the action the filter must
// return.
func decide(rules []Rule, compat bool, nr uint32, args [6]uint64) Action {
next:
	for _, r := range rules {
		if uint32(r.Nr) != nr || r.Compat != compat {
			continue
		}
		for _, c := range r.If {
			v := uint32(args[c.Arg])
			if c.Mask != 0 {
				v &= c.Mask
			}
			if v < c.Low || v > c.High {
				continue next
			}
		}
		return r.Do
	}
	return Allow
}

const testArch, testCompat = 0xc000003e, 0x40000003

// TestFilter checks that, for random rules and arguments, the filter gives every system call number
// the action that decide returns.
func TestFilter(t *testing.T) {
	word := rapid.OneOf(rapid.Uint32Range(0, 12), rapid.Uint32())
	rapid.Check(t, func(t *rapid.T) {
		var rules []Rule
		for range rapid.IntRange(0, 40).Draw(t, "rules") {
			r := Rule{Nr: rapid.IntRange(0, 12).Draw(t, "nr"),
				Do:     rapid.SampledFrom([]Action{Allow, Notify, Errno(38), Errno(95)}).Draw(t, "do"),
				Compat: rapid.Bool().Draw(t, "compat")}
			for range rapid.IntRange(0, 3).Draw(t, "conditions") {
				r.If = append(r.If, Cond{Arg: rapid.IntRange(0, 5).Draw(t, "arg"), Mask: word.Draw(t, "mask"),
					Low: word.Draw(t, "low"), High: word.Draw(t, "high")})
			}
			rules = append(rules, r)
		}
		var args [6]uint64
		for i := range args {
			args[i] = uint64(rapid.Uint32().Draw(t, "upper"))<<32 | uint64(word.Draw(t, "lower"))
		}
		for _, m := range []struct {
			arch, compat uint32
			x32          bool
		}{{testArch, testCompat, true}, {0xc00000b7, 0x40000028, false}} { // the audit numbers of amd64 with i386, and of arm64 with arm
			p, err := assemble(m.arch, m.compat, m.x32, rules)
			if err != nil {
				t.Fatal(err)
			}
			for nr := range uint32(500) {
				want := decide(rules, false, nr, args)
				if got := execute(t, p, m.arch, nr, args); got != want {
					t.Fatalf("call %d with %x: %#x, want %#x", nr, args, got, want)
				}
				if want = Allow; m.x32 {
					want = Errno(enosys)
				}
				if got := execute(t, p, m.arch, nr|x32Bit, args); got != want {
					t.Fatalf("call %d of x32: %#x, want %#x", nr, got, want)
				}
				want = decide(rules, true, nr, args)
				if got := execute(t, p, m.compat, nr, args); got != want {
					t.Fatalf("32-bit call %d with %x: %#x, want %#x", nr, args, got, want)
				}
				if got := execute(t, p, 0xc00000f3, nr, args); got != Allow {
					t.Fatalf("call %d of another processor: %#x, want it to pass", nr, got)
				}
			}
		}
	})
}

// TestFilterRanges checks rules with a range of descriptors and with several conditions, as needed
// for a supervisor's own descriptors.
func TestFilterRanges(t *testing.T) {
	rules := []Rule{
		{Nr: 1, If: []Cond{{Arg: 0, Low: 960, High: 1019}}, Do: Notify},
		{Nr: 41, If: []Cond{{Arg: 0, Low: 16, High: 16}, {Arg: 2, Low: 20, High: 20}}, Do: Notify},
		{Nr: 44, If: []Cond{{Arg: 3, Mask: 0x20000000, Low: 0x20000000, High: 0x20000000}}, Do: Errno(95)},
	}
	p, err := assemble(testArch, testCompat, true, rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		nr   uint32
		args [6]uint64
		want Action
	}{
		{1, [6]uint64{959}, Allow},
		{1, [6]uint64{960}, Notify},
		{1, [6]uint64{1019}, Notify},
		{1, [6]uint64{1020}, Allow},
		{1, [6]uint64{1<<32 | 960}, Notify}, // only the lower 32 bits count, because a descriptor has 32
		{41, [6]uint64{16, 3, 20}, Notify},
		{41, [6]uint64{16, 3, 0}, Allow},
		{41, [6]uint64{2, 1, 20}, Allow},
		{44, [6]uint64{5, 0, 0, 0x20004000}, Errno(95)},
		{44, [6]uint64{5, 0, 0, 0x4000}, Allow},
		{2, [6]uint64{960}, Allow},
	} {
		if got := execute(t, p, testArch, tc.nr, tc.args); got != tc.want {
			t.Errorf("call %d with %v: %#x, want %#x", tc.nr, tc.args, got, tc.want)
		}
	}
}

// TestFilterErrors: assemble refuses invalid rules, and filters that are too long.
func TestFilterErrors(t *testing.T) {
	long := []Rule{{Nr: 1, Do: Notify}}
	for range 1000 {
		long = append(long, Rule{Nr: 2, If: []Cond{{Mask: 1, High: 1}}, Do: Notify})
	}
	for name, rules := range map[string][]Rule{
		"negative number":  {{Nr: -1, Do: Notify}},
		"x32 number":       {{Nr: x32Bit, Do: Notify}},
		"seventh argument": {{Nr: 1, If: []Cond{{Arg: 6}}, Do: Notify}},
		"too long":         long,
		"32-bit number":    {{Nr: -1, Do: Notify, Compat: true}},
	} {
		if _, err := assemble(testArch, testCompat, true, rules); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

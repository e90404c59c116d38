package notify

import "fmt"

// An Insn is one instruction of classic BPF, as the kernel's struct sock_filter.
type Insn struct {
	Code   uint16
	Jt, Jf uint8
	K      uint32
}

// These are the codes of the instructions of a filter.
const (
	opLoad = 0x20 // A = word at K
	opAnd  = 0x54 // A &= K
	opJump = 0x05 // skip K
	opJeq  = 0x15 // if A == K skip Jt instructions, otherwise Jf
	opJgt  = 0x25 // if A > K skip Jt instructions, otherwise Jf
	opJge  = 0x35 // if A >= K skip Jt instructions, otherwise Jf
	opRet  = 0x06 // end with action K
)

// These are the offsets of the words of struct seccomp_data.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16 // 8 bytes each, the lower word first: both processors are little-endian
)

// maxInsns is the kernel's limit for the instructions of a filter.
const maxInsns = 4096

// x32Bit marks the numbers of the x32 interface of amd64. The rules have no x32 numbers, so the
// filter fails these calls with ENOSYS, as kernels built without x32 do.
const (
	x32Bit = 0x40000000
	enosys = 38
)

// assemble returns the filter of rules for the processor with the given audit number, and of rules
// with Compat for the processor's 32-bit calls, whose audit number is compat. All other calls pass.
//
// Numbers without conditions come last: the kernel caches such allowed numbers, and runs no filter
// for these calls at all.
func assemble(arch, compat uint32, hasX32 bool, rules []Rule) ([]Insn, error) {
	p := []Insn{{Code: opLoad, K: dataArch}}
	for _, is := range []struct {
		arch        uint32
		compat, x32 bool
	}{{arch, false, hasX32}, {compat, true, false}} {
		groups, err := group(rules, is.compat)
		if err != nil {
			return nil, err
		}
		calls := []Insn{{Code: opLoad, K: dataNr}}
		if is.x32 {
			calls = append(calls, Insn{Code: opJge, K: x32Bit, Jf: 1}, Insn{Code: opRet, K: uint32(Errno(enosys))})
		}
		for _, g := range groups {
			calls = append(calls, beyond(uint32(g.nr), g.body())...)
		}
		p = append(p, beyond(is.arch, append(calls, Insn{Code: opRet, K: uint32(Allow)}))...)
	}
	p = append(p, Insn{Code: opRet, K: uint32(Allow)})
	if len(p) > maxInsns {
		return nil, fmt.Errorf("notify: a filter of %d instructions, %d are possible", len(p), maxInsns)
	}
	return p, nil
}

// beyond returns p after a test that skips p unless A is k.
func beyond(k uint32, p []Insn) []Insn {
	// A conditional jump reaches at most 255 instructions; an unconditional jump reaches any
	// number.
	return append([]Insn{{Code: opJeq, K: k, Jt: 1}, {Code: opJump, K: uint32(len(p))}}, p...)
}

// A numberRules holds the rules for a system call number, in order.
type numberRules struct {
	nr    int
	rules []Rule
}

// group returns the rules for calls of one kind, 64-bit or compat, grouped by number.
func group(all []Rule, compat bool) ([]*numberRules, error) {
	var rules []Rule
	for _, r := range all {
		if r.Compat == compat {
			rules = append(rules, r)
		}
	}
	var conditional, plain []*numberRules
	byNr := map[int]*numberRules{}
	for _, r := range rules {
		if r.Nr < 0 || r.Nr >= x32Bit {
			return nil, fmt.Errorf("notify: %d is no number of a system call", r.Nr)
		}
		for _, c := range r.If {
			if c.Arg < 0 || c.Arg > 5 {
				return nil, fmt.Errorf("notify: call %d: argument %d, there are 0 to 5", r.Nr, c.Arg)
			}
		}
		g := byNr[r.Nr]
		if g == nil {
			g = &numberRules{nr: r.Nr}
			byNr[r.Nr] = g
		}
		g.rules = append(g.rules, r)
	}
	for _, r := range rules {
		g := byNr[r.Nr]
		if g == nil {
			continue
		}
		delete(byNr, r.Nr)
		if len(g.rules[0].If) > 0 {
			conditional = append(conditional, g)
		} else {
			plain = append(plain, g)
		}
	}
	return append(conditional, plain...), nil
}

// body returns the instructions that decide a call of this number.
func (g *numberRules) body() (p []Insn) {
	for _, r := range g.rules {
		var conds []Insn
		for _, c := range r.If {
			conds = append(conds, Insn{Code: opLoad, K: dataArgs + 8*uint32(c.Arg)})
			if c.Mask != 0 {
				conds = append(conds, Insn{Code: opAnd, K: c.Mask})
			}
			// If the bound is not met, the jump after the test skips the rest of the rule.
			conds = append(conds,
				Insn{Code: opJge, K: c.Low, Jt: 1}, Insn{Code: opJump},
				Insn{Code: opJgt, K: c.High, Jf: 1}, Insn{Code: opJump})
		}
		for i := range conds {
			if conds[i].Code == opJump {
				conds[i].K = uint32(len(conds) - i) // jump to the instruction after the return of this rule
			}
		}
		p = append(append(p, conds...), Insn{Code: opRet, K: uint32(r.Do)})
	}
	return append(p, Insn{Code: opRet, K: uint32(Allow)})
}

package main

import (
	"os"
	"runtime"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestMain runs the test program as a peer if the first argument is drive, because the initiator of
// a measurement starts its own program as the peer.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "drive" {
		main()
		os.Exit(0)
	}
	testkit.Main(m)
}

// TestDrive checks that every operation of every transport gives a figure. Memory is measured with
// enough idle connections to distinguish their memory from the runtime's memory.
func TestDrive(t *testing.T) {
	testkit.Long(t, "20 s")
	for _, c := range []measure{
		{Transport: "vitcp", Op: opWrite, Size: 64, Depth: 64, Bell: 16, Footprint: 1024},
		{Transport: "vitcp", Op: opWrite, Size: 100000, Depth: 4, Wait: true, Level: "reception"},
		{Transport: "vitcp", Op: opWrite, Size: 4096, Depth: 2, Conns: 20},
		{Transport: "vitcp", Op: opRead, Size: 4096, Depth: 8, Bell: 4},
		{Transport: "vitcp", Op: opSend, Size: 1000, Depth: 16},
		{Transport: "vitcp", Op: opPing, Size: 8, Wait: true},
		{Transport: "vitcp", Op: opSetup},
		{Transport: "vitcp", Op: opIdle, Conns: 200},
		{Transport: "iwarp", Op: opWrite, Size: 64, Depth: 64, Bell: 16, Footprint: 1024},
		{Transport: "iwarp", Op: opWrite, Size: 100000, Depth: 4, CRC: true, FPDU: 1460},
		{Transport: "iwarp", Op: opWrite, Size: 4096, Depth: 2, Conns: 20},
		{Transport: "iwarp", Op: opRead, Size: 4096, Depth: 8, Bell: 4, Wait: true},
		{Transport: "iwarp", Op: opSend, Size: 1000, Depth: 16},
		{Transport: "iwarp", Op: opPing, Size: 8, Wait: true},
		{Transport: "iwarp", Op: opSetup},
		{Transport: "iwarp", Op: opIdle, Conns: 200},
		{Transport: "fcvi", Op: opWrite, Size: 64, Depth: 64, Bell: 16, Footprint: 1024},
		{Transport: "fcvi", Op: opWrite, Size: 100000, Depth: 4, Wait: true},
		{Transport: "fcvi", Op: opRead, Size: 4096, Depth: 8, Bell: 4},
		{Transport: "fcvi", Op: opSend, Size: 1000, Depth: 16, Level: "reception"},
		{Transport: "fcvi", Op: opPing, Size: 8, Wait: true},
		{Transport: "fcvi", Op: opSetup},
		{Transport: "sdp", Op: opStream, Size: 4096, Conns: 3},
		{Transport: "sdp", Op: opStream, Size: 100000, CRC: true},
		{Transport: "sdp", Op: opPing, Size: 8},
		{Transport: "sdp", Op: opSetup},
		{Transport: "sdp", Op: opIdle, Conns: 200},
		{Transport: "sdp", Op: opHTTP, Size: 1000, Conns: 4},
		{Transport: "sdp", Op: opHTTP, Size: 1000, Conns: 4, Rings: runtime.GOOS == "linux"},
		{Transport: "sdp", Op: opGRPC, Size: 128, Conns: 4},
		{Transport: "sdp", Op: opEcho, Size: 128, Conns: 4, Rings: runtime.GOOS == "linux"},
		{Transport: "sdp", Op: opSetup, Rings: runtime.GOOS == "linux"},
		{Transport: "vitcp", Op: opWrite, Size: 64, Depth: 64, Rings: runtime.GOOS == "linux"},
		{Transport: "iwarp", Op: opSend, Size: 100000, Depth: 4, Rings: runtime.GOOS == "linux"},
		{Transport: "unix", Op: opPing, Size: 8},
		{Transport: "tcp", Op: opStream, Size: 4096, Conns: 3},
		{Transport: "tcp", Op: opPing, Size: 8},
		{Transport: "tcp", Op: opSetup},
		{Transport: "tcp", Op: opIdle, Conns: 200},
	} {
		t.Run(c.Transport+"/"+c.Op, func(t *testing.T) {
			c.Time = 20 * time.Millisecond
			run := drive
			if c.Op == opIdle {
				run = func(m measure) (result, error) { return driveApart("", m) } // in a new process, because memory left by other tests would count
			}
			r, err := run(c)
			if err != nil {
				t.Fatal(err)
			}
			ok := r.Messages > 0 && r.Seconds > 0
			switch c.Op {
			case opPing:
				ok = ok && r.LatencyUS > 0
			case opIdle:
				ok = ok && r.TxMemory > 0 && r.RxMemory > 0
			case opSetup:
			case opHTTP, opGRPC, opEcho:
				ok = ok && r.SlowUS > 0
			default:
				ok = ok && r.Bytes > 0
			}
			if !ok {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestContests: every row names sides of its contest, and no floor is harder to reach than the
// goal.
func TestContests(t *testing.T) {
	tools := &toolbox{missing: map[string]string{}}
	titles := make(map[string]bool)
	for _, c := range tools.contests(measure{Time: time.Second}) {
		if titles[c.title] {
			t.Errorf("two contests %q", c.title)
		}
		titles[c.title] = true
		sides := make(map[string]bool)
		for _, s := range c.sides {
			if sides[s.name] {
				t.Errorf("%s: two sides %q", c.title, s.name)
			}
			sides[s.name] = true
		}
		for _, r := range c.rows {
			if !sides[r.ours] || r.theirs != "" && !sides[r.theirs] {
				t.Errorf("%s: %q beside %q, which are not both measured", c.title, r.ours, r.theirs)
			}
			if r.least && r.floor < r.goal || !r.least && r.floor > r.goal {
				t.Errorf("%s: floor %v, goal %v", c.title, r.floor, r.goal)
			}
		}
	}
}

// TestBesides checks a comparison with another build. The comparison must contain our own sides
// only, each with a row, and must run the program of the other build.
func TestBesides(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tools := &toolbox{missing: map[string]string{"c": "not wanted"}}
	cs := besides([]contest{
		{title: "both", sides: []side{tools.cSide("C TCP", "stream", 64, 1, 64), tools.ucxSide("tag_lat", 8)}},
		tools.ping(),
	}, self)
	if len(cs) != 1 || cs[0].title != "a ping" || len(cs[0].sides) != 2 || len(cs[0].rows) != 1 {
		t.Fatalf("%+v", cs)
	}
	then, row := cs[0].sides[1], cs[0].rows[0]
	if row.ours != "tcp" || row.theirs != then.name || then.name != "tcp, before" || row.what != latency || !row.least {
		t.Errorf("row %+v of sides %q and %q", row, cs[0].sides[0].name, then.name)
	}
	if r, err := then.run(); err != nil || r.LatencyUS <= 0 {
		t.Errorf("the other program: %+v, %v", r, err)
	}
	if cs := besides([]contest{tools.ping()}, self+".none"); len(cs) != 1 {
		t.Fatalf("%+v", cs)
	} else if _, err := cs[0].sides[1].run(); err == nil {
		t.Error("a program that is not there has run")
	}
}

// ping returns a contest with one short side.
func (t *toolbox) ping() contest {
	p := &programme{toolbox: t, base: measure{Time: 20 * time.Millisecond}}
	p.add("a ping", []side{p.ours("tcp", "tcp", pings(8))})
	return p.all[0]
}

func TestJudge(t *testing.T) {
	of := func(v ...float64) (s samples) {
		for _, x := range v {
			s = append(s, result{Bytes: x, Seconds: 1, LatencyUS: x, Messages: 1, TxMemory: x})
		}
		return s
	}
	for _, c := range []struct {
		name    string
		row     row
		got     map[string]samples
		verdict string
		ratio   float64
		best    float64
	}{
		{"goal", row{ours: "a", theirs: "b", what: bandwidth, goal: 1.5, floor: 1}, map[string]samples{"a": of(10, 40, 45), "b": of(20, 10, 30)}, goalMet, 1.5, 1.5},
		{"another machine in between", row{ours: "a", theirs: "b", what: bandwidth, goal: 2.5, floor: 1.5}, map[string]samples{"a": of(10, 20, 20), "b": of(5, 5, 10)}, floorMet, 2, 2},
		{"floor", row{ours: "a", theirs: "b", what: bandwidth, goal: 2, floor: 1.5}, map[string]samples{"a": of(30), "b": of(20)}, floorMet, 1.5, 1.5},
		{"missed", row{ours: "a", theirs: "b", what: bandwidth, goal: 2, floor: 1.6}, map[string]samples{"a": of(30), "b": of(20)}, missed, 1.5, 1.5},
		{"less is better", row{ours: "a", theirs: "b", what: latency, goal: 1.2, floor: 1.5, least: true}, map[string]samples{"a": of(5, 6, 7), "b": of(5, 5, 4)}, goalMet, 1.2, 1.25},
		{"shown", row{ours: "a", theirs: "b", what: latency}, map[string]samples{"a": of(5), "b": of(5)}, shown, 1, 1},
		{"figure", row{ours: "a", what: memory, goal: 8192, floor: 16384, least: true}, map[string]samples{"a": of(9000)}, floorMet, 0, 0},
		{"nothing", row{ours: "a", theirs: "b", what: bandwidth, goal: 1}, map[string]samples{"a": of(9000)}, "not available: no result", 0, 0},
	} {
		l := c.row.judge("x", c.got, nil)
		if l.Verdict != c.verdict || l.Ratio != c.ratio || l.Best != c.best {
			t.Errorf("%s: %q, ratio %v, best %v; want %q, %v, %v", c.name, l.Verdict, l.Ratio, l.Best, c.verdict, c.ratio, c.best)
		}
	}
	if l := (row{ours: "a", theirs: "b"}).judge("x", nil, map[string]string{"b": "is not there"}); l.Verdict != "not available: is not there" {
		t.Errorf("%q", l.Verdict)
	}
}

package main

// A rule says what the packages in one place may import. Places and arrows are
// paths below the module; "vi" stands for that package, "vi/..." for it and
// everything below it. "internal/..." among the imports means the packages of
// the kind internal alone: an engine, a core or a codec below internal is
// imported where its own name stands.
type rule struct {
	place   string
	imports []string // packages of this module
	kind    kind
}

// A kind is a row of the picture.
type kind uint8

const (
	codec    kind = iota // leaf: bytes in, bytes out
	core                 // state machine without input and output
	suite                // the contract of an interface: imported by tests and other suites
	internal             // knows no protocol
	engine
	protocol
	root     // a program: not imported
	tool     // part of the build: imports nothing but what tools share
	testOnly // imported by tests only
	docs     // the front page
)

// rules is the picture. The longest place that fits a package is its rule; a
// package that fits none is an offence of its own, so that the picture keeps
// up with the tree.
var rules = []rule{
	{".", nil, docs},

	{"cmd/...", []string{"..."}, root},
	{"interop/...", []string{"..."}, root},
	{"bench/...", []string{"..."}, root},
	{"examples/...", []string{"..."}, root},
	{"capi/...", []string{"..."}, root},

	{"sdp", []string{"iwarp", "samehost", "internal/sdpcore", "internal/wire/sdpwire", "internal/..."}, protocol},
	{"vitcp", []string{"vi", "samehost", "internal/wire/vitcpwire", "internal/..."}, protocol},
	{"internal/viplcode", []string{"vi"}, protocol},
	{"internal/viplconf", []string{"vi", "vitcp", "fcvi", "samehost", "internal/fc/fcip", "internal/wire/vitcpwire", "internal/..."}, protocol},
	{"fcvi", []string{"vi", "samehost", "internal/fc/...", "internal/wire/iu", "internal/..."}, protocol},
	{"nvme", []string{"iwarp", "samehost", "internal/nvmecore", "internal/wire/nvmewire", "internal/..."}, protocol},
	{"registry", []string{"internal/..."}, internal}, // a table of names; the protocols see its interface
	{"portmap", []string{"registry", "internal/wire/portmapwire", "internal/..."}, protocol},
	{"internal/status", []string{"iwarp", "sdp", "vi"}, protocol},
	{"debug", []string{"iwarp", "sdp", "vi", "internal/status"}, protocol},
	{"internal/rping", []string{"iwarp", "internal/..."}, protocol},

	{"iwarp", []string{"samehost", "internal/wire/mpa", "internal/wire/ddp", "internal/wire/rdmap", "internal/..."}, engine},
	{"vi", []string{"samehost", "internal/..."}, engine},
	{"roce", []string{"internal/roceudp", "internal/rocecore", "internal/wire/ib", "internal/..."}, engine},
	{"internal/roceudp", []string{"internal/rocecore", "internal/wire/ib", "internal/..."}, engine},
	{"internal/fc/...", []string{"samehost", "internal/fc/...", "internal/..."}, engine},

	{"internal/vitest/...", []string{"vi", "internal/vitest/...", "internal/..."}, suite},

	{"internal/sdpcore", []string{"internal/wire/sdpwire"}, core},
	{"internal/rocecore", []string{"internal/wire/ib"}, core},
	{"internal/rocecm", []string{"internal/wire/ib"}, core},
	{"internal/nvmecore", []string{"internal/wire/nvmewire"}, core},

	{"samehost", []string{"internal/shm"}, internal}, // words that the protocols share with internal/sock, and memory
	{"internal/sock", []string{"samehost", "internal/..."}, internal},
	{"internal/fault", nil, internal},
	{"internal/wire/sdpwire", []string{"internal/fault"}, codec},
	{"internal/wire/mpa", []string{"internal/crc", "internal/fault"}, codec},
	{"internal/wire/ddp", []string{"internal/wire/mpa", "internal/fault"}, codec},
	{"internal/wire/rdmap", []string{"internal/wire/ddp", "internal/wire/mpa", "internal/fault"}, codec},
	{"internal/wire/vitcpwire", []string{"internal/fault"}, codec},
	{"internal/wire/iu", []string{"internal/fault"}, codec},
	{"internal/wire/portmapwire", []string{"internal/fault"}, codec},
	{"internal/wire/ib", nil, codec},
	{"internal/wire/nvmewire", nil, codec},

	{"internal/placer", []string{"internal/frameio", "internal/regmem"}, internal}, // no codec: a Wire knows its frames
	{"internal/...", []string{"internal/..."}, internal},
	{"internal/tools/...", []string{"internal/tools/register"}, tool},
	{"internal/testkit", nil, testOnly},
	{"internal/replay", []string{"iwarp", "internal/wire/mpa", "internal/wire/ddp", "internal/wire/rdmap"}, testOnly},
}

// notInCodecs are the parts of the standard library that a codec and a core
// have no business with: they mean input, output or sharing.
var notInCodecs = map[string]bool{
	"context":     true,
	"net":         true,
	"net/http":    true,
	"os":          true,
	"os/exec":     true,
	"os/signal":   true,
	"reflect":     true,
	"sync":        true,
	"sync/atomic": true,
	"syscall":     true,
	"unsafe":      true,
}

// A library package, which is all but programs and tools, imports the standard
// library and these modules.
var inLibraries = []string{"golang.org/x/sys"}

// Tests of library packages may import these modules as well.
var inTests = []string{
	"github.com/google/go-cmp",
	"go.uber.org/goleak",
	"golang.org/x/net/nettest",
	"pgregory.net/rapid",
}

// Examples show a package as a program uses it, and a program needs what the
// package itself must not know: the tests outside of these packages may import
// that too.
var inExamples = map[string][]string{
	"vi":       {"vitcp"},
	"samehost": {"iwarp"},
}

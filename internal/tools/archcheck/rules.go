package main

// A rule lists the allowed imports of the packages in a place. Places and arrows are paths relative
// to the module; "vi" stands for the package, "vi/..." for the package and everything below.
// "internal/..." among the imports means the packages of the kind internal alone: an engine, a core
// or a codec below internal must be listed by its own name.
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

// rules is the picture. The longest matching place gives the rule of a package. A package without a
// rule is an offence, so that the picture stays complete.
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

	{"samehost", []string{"internal/shm"}, internal}, // types that the protocols share with internal/sock, and Alloc
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

	{"internal/ulp", []string{"internal/attend"}, internal},                        // what protocols above iwarp need besides its public face
	{"internal/placer", []string{"internal/frameio", "internal/regmem"}, internal}, // no codec: a Wire knows its frames
	{"internal/...", []string{"internal/..."}, internal},
	{"internal/tools/...", []string{"internal/tools/register"}, tool},
	{"internal/testkit", nil, testOnly},
	{"internal/badwire", []string{"internal/wire/ib"}, testOnly},
	{"internal/replay", []string{"iwarp", "internal/wire/mpa", "internal/wire/ddp", "internal/wire/rdmap"}, testOnly},
}

// notInCodecs are the packages of the standard library no codec or core may import, because they do
// input or output, or share state.
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

// inLibraries are the modules a library package may import besides the standard library. Every
// package except programs and tools is a library package.
var inLibraries = []string{"golang.org/x/sys"}

// inTests are further modules for tests of library packages.
var inTests = []string{
	"github.com/google/go-cmp",
	"go.uber.org/goleak",
	"golang.org/x/net/nettest",
	"pgregory.net/rapid",
}

// inExamples are further imports of the external tests of a package. Their examples show the
// package in a program with packages the package itself must not import.
var inExamples = map[string][]string{
	"vi":       {"vitcp"},
	"samehost": {"iwarp"},
}

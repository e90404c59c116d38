package main

// A rule says what the packages in one place may import. Places and arrows are
// paths below the module; "vi" stands for that package, "vi/..." for it and
// everything below it.
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
	internal             // knows no protocol
	engine
	protocol
	root     // a program: imported by nobody
	tool     // part of the build: imported by nobody, imports nobody
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

	{"sdp", []string{"sdp/...", "iwarp/...", "internal/..."}, protocol},
	{"vitcp", []string{"vitcp/...", "vi/...", "internal/..."}, protocol},
	{"fcvi", []string{"fcvi/...", "vi/...", "fc/...", "internal/..."}, protocol},
	{"portmap", []string{"internal/..."}, protocol},
	{"iwarp/rping", []string{"iwarp/...", "internal/..."}, protocol},
	{"iwarp/perftest", []string{"iwarp/...", "internal/..."}, protocol},

	{"iwarp", []string{"iwarp/...", "internal/..."}, engine},
	{"vi/...", []string{"vi/...", "internal/..."}, engine},
	{"fc/...", []string{"fc/...", "internal/..."}, engine},

	{"sdp/sdpcore", []string{"sdp/sdpwire"}, core},

	{"sdp/sdpwire", nil, codec},
	{"iwarp/mpa", []string{"internal/crc"}, codec},
	{"iwarp/ddp", []string{"iwarp/mpa"}, codec},
	{"iwarp/rdmap", []string{"iwarp/ddp", "iwarp/mpa"}, codec},
	{"vitcp/vitcpwire", nil, codec},
	{"fcvi/iu", nil, codec},

	{"internal/...", []string{"internal/..."}, internal},
	{"internal/tools/...", nil, tool},
	{"internal/testkit", nil, testOnly},
	{"iwarp/internal/replay", []string{"iwarp", "iwarp/mpa", "iwarp/ddp", "iwarp/rdmap"}, testOnly},
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

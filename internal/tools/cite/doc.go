// Cite ties the code to the requirement matrices of docs/requirements.
//
// It reads every citation in the Go files of the module, checks that each names an existing row or
// recorded decision, and reports rows without code and rows without a test:
//
//	go run ./internal/tools/cite              # the rows still open
//	go run ./internal/tools/cite -only MPA    # those of one document
//	go run ./internal/tools/cite -summary     # one line per document
//	go run ./internal/tools/cite -write       # write docs/conformance.md and its pages
//	go run ./internal/tools/cite -check       # list open rows; fail if those pages are stale
//	go run ./internal/tools/cite -helpers     # the rows cited in helpers of tests
//
// # What counts as a citation
//
// In comments, a tag in square brackets:
//
//	[SDP-9.5.1-3]              a row
//	[SDP-9.1-1..4]             the rows 1 to 4 of a section
//	[SDP-9.1-1, SDP-9.2-3]     several
//	[SDP-9.1-1/3]              rows 1 and 3 of a section
//	[D-40]                     a recorded decision
//	[SDP 9.5.1]                a section; only its key is checked
//
// Comments of the public packages shown by go doc have no citations, and -check refuses citations
// there. In the public packages a tag stands after the first line of a function or struct; in a
// list at the end of a group or struct, as "// Port [SDP-7.4-1], MessageLen [SDP-7.3-1]."; or above
// the comment, separated by an empty line.
//
// In test files, tags in strings count too, as in t.Errorf("[SDP-12.4-3] ..."), and so do the first
// words of a string, so that names of subtests count: t.Run("SDP-12.4-3", ...).
//
// A citation in a file named *_test.go, in a package of a test suite (in a directory named *test,
// such as vitest), or anywhere under interop, counts as a test; any other as code. A citation in a
// fake counts as neither. Fakes are packages below a test suite, packages named like msgfake, and
// testkit. The tool does not read directories called testdata, nor the tools.
//
// A row needs no test if its line in docs/requirements/exceptions.md begins with "untested". It
// needs neither code nor test if the line begins with "n/a" or "deviates", or if the matrix itself
// marks the row "n/a:". Deviating rows are counted separately from kept rows.
//
// Tests in C, files below a directory test, cite in comments.
//
// A citation in a test file belongs at the failing test, or at a case of the test's table. With
// -helpers the tool lists the citations at other functions.
//
// The exit status is 1 if a citation or an exception names no row, or if -check finds a stale page
// or a tag in documentation; open rows alone do not change it.
package main

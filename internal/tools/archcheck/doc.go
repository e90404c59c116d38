// Archcheck prints the imports that should not be there.
//
//	go run ./internal/tools/archcheck
//
// The picture it holds the module to is the one in ARCHITECTURE.md: codecs are
// leaves, engines never import each other or what is above them, a protocol
// knows the engine under it, and nothing imports the programs. The table in
// rules.go is that picture in Go; a change that moves an arrow changes both.
//
// It looks at the imports on Linux, macOS and Windows, those of tests included.
// The exit status is 1 if it printed anything.
package main

// Archcheck prints the imports forbidden by the architecture.
//
//	go run ./internal/tools/archcheck
//
// The architecture is the picture in ARCHITECTURE.md: codecs are leaves, engines never import each
// other or a package above them, a protocol imports the engine below it, and nothing imports the
// programs. The table in rules.go is the picture in Go; a change of an arrow changes both.
//
// Archcheck checks the imports on Linux, macOS and Windows, including imports of tests. The exit
// status is 1 if anything was printed.
package main

//go:build plaintcp

package samehost

// auto is the value of Auto. In builds with the tag plaintcp the zero value is Off: so
// the suites of the transports run over TCP.
const auto = 1

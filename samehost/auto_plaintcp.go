//go:build plaintcp

package samehost

// auto is the value of Auto. In builds with the tag plaintcp auto is 1, so that the zero value is
// Off and the test suites of the transports run over TCP.
const auto = 1

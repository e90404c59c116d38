//go:build !plaintcp

package samehost

// auto is the value of Auto. It differs in builds with the tag plaintcp.
const auto = 0
